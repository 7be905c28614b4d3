// One record to its message and back (schema 15 and later). For engine/store only, since it shows
// generated types.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "engine/store/journal.pb.h"
#include "engine/store/store.hpp"

namespace flow {

/// Writes records into one batch, each run's id once. Keeps views of the records' run ids: the
/// records outlive it.
class RecordWriter {
 public:
  explicit RecordWriter(journal::Batch& batch) : batch_(batch) {}

  void add(const core::Record& record);
  /// The run's index in the batch, plus 1; 0 for "".
  uint32_t run_index(const core::RunId& run);

 private:
  journal::Batch& batch_;
  std::map<std::string_view, uint32_t> indexes_;
  std::string_view newest_;  // most records are of the run of the record before
  uint32_t newest_index_ = 0;
};

/// Reads the records of one batch. All arguments outlive it.
class RecordReader {
 public:
  RecordReader(const journal::Batch& batch, const FindPlan& plan, const FindFragment& fragment)
      : batch_(batch), plan_(plan), fragment_(fragment) {}

  /// The error names the record's sequence number and the field.
  Status read(const journal::Record& m, core::Record& record);

 private:
  const journal::Batch& batch_;
  const FindPlan& plan_;
  const FindFragment& fragment_;
};

}  // namespace flow
