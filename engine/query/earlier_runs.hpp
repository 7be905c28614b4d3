// The earlier runs of a pipeline, searched for the run that has the same task.
#pragma once
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "engine/core/core.hpp"
#include "engine/query/unit_pairs.hpp"
#include "engine/runs/run_rows.hpp"

namespace flow {

/// Each run is loaded once, when it is first needed. `store` and `blobs` outlive it.
class EarlierRuns {
 public:
  /// `records`: the runs to search, in this order.
  EarlierRuns(const Store& store, const Blobs& blobs, std::vector<RunRecord> records)
      : store_(store), blobs_(blobs), records_(std::move(records)) {}
  /// The newest 200 runs of the pipeline before the run `before`, or all if it is "". Newest first.
  static EarlierRuns of_pipeline(const Store& store, const Blobs& blobs,
                                 const std::string& pipeline, const core::RunId& before = "");

  struct EarlierUnit {
    const LoadedRun* loaded = nullptr;
    core::UnitId unit = kNoNode;
  };
  /// The same task as `unit` in the first run that computed its key. All calls are about the same
  /// run, whose units and keys do not change in between. `has_tags` as for UnitPairs.
  std::optional<EarlierUnit> find(const core::Run& run, core::UnitId unit, InputResolver& resolver,
                                  bool has_tags = true);

 private:
  struct PairedRun {
    LoadedRun loaded;
    std::optional<UnitPairs> pairs;  // nothing if the run was not loaded
  };

  const Store& store_;
  const Blobs& blobs_;
  std::vector<RunRecord> records_;
  std::deque<PairedRun> paired_;  // of the first records
};

}  // namespace flow
