// How runs enter the state: submitted, replaced by other code, or resumed.
#pragma once
#include <optional>
#include <string>

#include "engine/core/core.hpp"
#include "engine/runtime/active_runs.hpp"
#include "engine/runtime/group_commit.hpp"
#include "engine/runtime/inbox.hpp"
#include "engine/runtime/missing_results.hpp"
#include "engine/runtime/recorder.hpp"
#include "engine/runtime/stored_runs.hpp"
#include "engine/runtime/worker_registry.hpp"
#include "engine/submission/submission.hpp"

namespace flow {

/// Its functions block until their turn is committed. Not within a turn.
class RunSubmission {
 public:
  RunSubmission(Inbox& inbox, Recorder& recorder, TurnBlobs& blobs, StoredRuns& stored_runs,
                ActiveRuns& active_runs, MissingResults& missing_results, GroupCommit& group_commit,
                WorkerRegistry& workers, Store& store, Blobs& stored, const StopCause& stop,
                std::string state_dir)
      : inbox_(inbox),
        recorder_(recorder),
        blobs_(blobs),
        stored_runs_(stored_runs),
        active_runs_(active_runs),
        missing_results_(missing_results),
        group_commit_(group_commit),
        workers_(workers),
        store_(store),
        stored_(stored),
        stop_(stop),
        state_dir_(std::move(state_dir)) {}

  /// Commits the run with its plan and bundle, then starts it on `jobs` CPU slots; 0: all.
  Status submit(Prepared prepared, int32_t jobs) { return add(std::move(prepared), jobs, false); }
  /// Submits an unfinished or archived run again, with other code and under the same id.
  Status replace(Prepared prepared, int32_t jobs) { return add(std::move(prepared), jobs, true); }
  /// Resumes an unfinished or failed run, or if `task` is not empty runs that task again. A run
  /// that the engine resumed by itself continues for this request, unless that `is_retry`: failed
  /// tasks of an active run are not run again.
  Status resume(RunContext context, const std::string& task, bool is_retry = false);
  /// Waits while a run of this engine is being interrupted; returns whether it was.
  Result<bool> await_interrupted(const core::RunId& run);

 private:
  struct Loaded {
    core::UnitId unit = kNoNode;  // of the task that is to run again
    MissingResults::Outputs missing;
    bool was_over = false;         // the run had ended before the call
    bool is_from_archive = false;  // it was archived
    bool is_loaded = false;        // it is in the state and has a context
    bool is_admitted = false;      // the request to continue is recorded
  };
  Status add(Prepared prepared, int32_t jobs, bool replaces);
  static core::RetryRequested retry_of(const core::RunId& id, const Loaded& loaded,
                                       const std::string& by, bool is_retry);
  Result<Loaded> load(RunContext context, const std::string& task, bool is_retry,
                      std::optional<core::State> archived, bool has_waited);
  /// Gives the unattended run, which is active, to the request with this context. In a turn.
  void attend(RunContext context, const core::Run& run, Batch& batch);

  Inbox& inbox_;
  Recorder& recorder_;
  TurnBlobs& blobs_;
  StoredRuns& stored_runs_;
  ActiveRuns& active_runs_;
  MissingResults& missing_results_;
  GroupCommit& group_commit_;
  WorkerRegistry& workers_;
  Store& store_;
  Blobs& stored_;
  const StopCause& stop_;
  const std::string state_dir_;
};

}  // namespace flow
