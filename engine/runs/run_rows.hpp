// The rows of a state's runs, and the runs themselves. Used by the writer and by readers.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/core/core.hpp"
#include "engine/store/rows.hpp"
#include "engine/store/store.hpp"

namespace flow {

/// A run loaded from the archive or the journal.
struct LoadedRun {
  RunRecord record;
  std::shared_ptr<core::State> state;  // owns the run
  const core::Run* run = nullptr;      // null if only the row exists
};

/// All rows, oldest first.
Result<std::vector<RunRecord>> all_records(const Store& store);
/// The row of the run with exactly this id, if it exists and can be read.
std::optional<RunRecord> record_of(const Store& store, const core::RunId& id);
/// Selects by id, unique prefix, name (the newest run of that name), "last" or "".
Result<RunRecord> select_record(const Store& store, const std::string& selector);
Result<LoadedRun> load_run(const Store& store, const Blobs& blobs, const RunRecord& record);
Result<core::UnitId> find_unit(const core::Run& run, const std::string& name);

}  // namespace flow
