// The rows of runs in the store: their records, their archives, and what else they leave there.
#pragma once
#include <optional>

#include "engine/core/core.hpp"
#include "engine/runtime/active_runs.hpp"
#include "engine/runtime/stop_cause.hpp"
#include "engine/store/store.hpp"

namespace flow {

/// Used by the turn's thread, except find_archived() and new_id().
class StoredRuns {
 public:
  StoredRuns(const core::State& state, ActiveRuns& active_runs, const Store& store, Blobs& blobs,
             StopCause& stop)
      : state_(state), active_runs_(active_runs), store_(store), blobs_(blobs), stop_(stop) {}

  /// Writes the record of a run in the state as the run is now, and once it serves, that it did.
  void put_record(const core::RunId& run, Batch& batch);
  /// Writes the record and the archive of a run that has ended, and its notifications.
  void archive(const core::RunId& run, Batch& batch);
  /// A state that holds this run alone; nothing if the run is not archived. From any thread.
  Result<std::optional<core::State>> find_archived(const core::RunId& run) const;
  /// An id that sorts behind those of all runs in the store. From any thread.
  core::RunId new_id() const;
  /// Erases what a run left that is replaced: its archive, its inputs and its logs. Attempts of the
  /// new run are numbered from 1 again; it finds steps and checkpoints by their keys.
  void erase(const core::RunId& run, Batch& batch);

 private:
  void put_notification(const core::Run& run, Batch& batch);

  const core::State& state_;
  ActiveRuns& active_runs_;
  const Store& store_;
  Blobs& blobs_;
  StopCause& stop_;
};

}  // namespace flow
