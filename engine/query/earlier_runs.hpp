// The earlier runs of a pipeline, searched for the run that has a task of the same name.
#pragma once
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/core/core.hpp"
#include "engine/runs/run_rows.hpp"

namespace flow {

/// Each run is loaded once, when it is first needed. `store` and `blobs` outlive it.
class EarlierRuns {
 public:
  /// The runs `records`, in the order in which they are searched.
  EarlierRuns(const Store& store, const Blobs& blobs, std::vector<RunRecord> records)
      : store_(store), blobs_(blobs), records_(std::move(records)) {}
  /// The newest 200 runs of the pipeline before the run `before`, or all if it is "". Newest first.
  static EarlierRuns of_pipeline(const Store& store, const Blobs& blobs,
                                 const std::string& pipeline, const core::RunId& before = "");

  struct EarlierUnit {
    const LoadedRun* loaded = nullptr;
    core::UnitId unit = kNoNode;
  };
  /// The unit `name` of the first run that computed its key.
  std::optional<EarlierUnit> find(const std::string& name);

 private:
  struct IndexedRun {
    LoadedRun loaded;
    std::map<std::string, core::UnitId> units;  // those with a key
  };
  IndexedRun load(const RunRecord& record) const;

  const Store& store_;
  const Blobs& blobs_;
  std::vector<RunRecord> records_;
  std::deque<IndexedRun> indexed_;  // of the first records
};

}  // namespace flow
