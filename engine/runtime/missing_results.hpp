// Blobs that the state does not hold any more, because they were removed or damaged: which results
// and calls a resumed run has to compute again.
#pragma once
#include <functional>
#include <optional>
#include <vector>

#include "engine/core/core.hpp"
#include "engine/runs/input_resolver.hpp"
#include "engine/runtime/inbox.hpp"
#include "engine/runtime/recorder.hpp"
#include "engine/runtime/state_clock.hpp"
#include "engine/runtime/stop_cause.hpp"
#include "engine/runtime/turn_blobs.hpp"
#include "engine/store/store.hpp"

namespace flow {

class MissingResults {
 public:
  struct Outputs {
    std::vector<core::UnitId> results;  // units whose results, or blobs of these, are missing
    std::vector<core::UnitId> calls;    // dynamic tasks: a blob of their calls is missing
  };
  MissingResults(Inbox& inbox, Recorder& recorder, InputResolver& resolver, const TurnBlobs& blobs,
                 Blobs& stored, const StopCause& stop)
      : inbox_(inbox),
        recorder_(recorder),
        resolver_(resolver),
        blobs_(blobs),
        stored_(stored),
        stop_(stop) {}

  /// In a turn: what is missing of the inputs of tasks that failed with `staging`.
  Outputs find(const core::Run& run) const;
  /// Before a resume: verifies the inputs of tasks that failed with `staging` and deletes damaged
  /// blobs. `archived` holds the run if it is not in the state. Not in a turn.
  void drop_damaged(const core::RunId& run, const std::optional<core::State>& archived);
  /// Lets the dynamic tasks of `missing` make their calls again when the run continues, and removes
  /// from its results those that are computed again with them. For a run at rest; not in a turn.
  Status rerun_dynamic_tasks(const core::RunId& run, Outputs& missing);

 private:
  Inbox& inbox_;
  Recorder& recorder_;
  InputResolver& resolver_;
  const TurnBlobs& blobs_;
  Blobs& stored_;
  const StopCause& stop_;
};

}  // namespace flow
