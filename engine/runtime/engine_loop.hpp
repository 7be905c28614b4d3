// The engine loop: takes what happened from the inbox, lets the pure core decide, commits, and only
// then executes the effects. It owns the parts that do so, and the thread that runs the turns.
#pragma once
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "engine/runtime/engine_components.hpp"

namespace flow {

/// Thread-safe. The only writer of the state and of the store.
class EngineLoop {
 public:
  /// Recovers the state, then starts this machine's worker and the threads. `store` is used by no
  /// other process.
  static Result<std::unique_ptr<EngineLoop>> start(const EngineLoopOptions& options,
                                                   std::unique_ptr<Store> store);
  /// Recovers the state, without threads and without a worker of this machine: for a simulator,
  /// whose one thread calls run_turn() and write_deferred(). parts().workers.set_own() gives it a
  /// worker.
  static Result<std::unique_ptr<EngineLoop>> open(const EngineLoopOptions& options,
                                                  std::unique_ptr<Store> store);
  ~EngineLoop() { shut_down(); }

  /// Runs one turn on the calling thread; false if there is nothing to do or the engine has
  /// stopped. Only after open().
  bool run_turn() { return parts_->inbox.run_turn(); }
  /// Writes the commit that is under way, as the writing thread does; the next turn finishes it.
  /// False if none is under way. Only after open().
  bool write_deferred() { return parts_->group_commit.write_deferred(); }

  // They block until the run is committed.
  Status submit(Prepared prepared, int32_t jobs) {
    return parts_->submission.submit(std::move(prepared), jobs);
  }
  Status replace(Prepared prepared, int32_t jobs) {
    return parts_->submission.replace(std::move(prepared), jobs);
  }
  Status resume(RunContext context, const std::string& task, bool is_retry = false) {
    return parts_->submission.resume(std::move(context), task, is_retry);
  }

  /// Posts an event and blocks until it is committed, or rejected (false).
  Result<bool> post_and_wait(core::Event event, NamedBlobs blobs = {}, MetadataRows metadata = {});
  /// Asks the run to stop; with `kill` its attempts are killed at once.
  /// `by`: who asks; "": the engine itself.
  void interrupt(const RunId& run, bool kill, const std::string& by = {});
  /// The client that the run was executed for has died: interrupts the run; one that only serves
  /// continues, as if it had been submitted as detached. Whether it continues.
  bool outlive_client(const RunId& run);
  /// The latch opens when the run has ended or is interrupted: with true, or with false if the
  /// engine ends before.
  std::shared_ptr<Latch> watch_rest(const RunId& run);
  /// Calls `read` within a turn of its own, and blocks. Earlier turns are durable then.
  void inspect(const std::function<void(const core::State&, InputResolver&)>& read);
  /// Garbage collection: calls `mark` within a turn while no blob is held. Its batch is committed
  /// with a snapshot, so the journal, which may name blobs of runs that have ended, is not replayed
  /// any more. Then calls `sweep`, unless the commit failed.
  void collect(const std::function<void(const core::State&, Batch&)>& mark,
               const std::function<void()>& sweep);
  /// Writes a row that belongs to no event; "" erases it.
  void put_metadata(std::string key, std::string value);

  /// The error that stopped the engine, if one did.
  std::optional<Error> stopped_by() const { return parts_->stop.get(); }
  /// Waits until all ranks of gangs that have succeeded have reported their ends, and so their last
  /// log lines, but at most this long. Rank 0 may be the first to report.
  void await_rank_ends(std::chrono::milliseconds most);
  /// Ends the threads and every attempt of this machine, but services of detached runs and of a
  /// head, which keep running for their lease. Running runs are interrupted.
  void shut_down();

  EngineComponents& parts() const { return *parts_; }

 private:
  EngineLoop(const EngineLoopOptions& options, std::unique_ptr<Store> store)
      : parts_(std::make_unique<EngineComponents>(options, std::move(store))) {}
  Status recover_state();
  Status start_threads();
  /// Without its threads.
  std::set<RunId> runs_left_to_next() const;

  const std::unique_ptr<EngineComponents> parts_;
  std::thread thread_;
};

/// Names of the workers of the engine before this one that may rejoin; with `at_work` those of them
/// that run an attempt, as far as the state knows. Blocks.
std::vector<std::string> disconnected_workers(EngineLoop& engine_loop, bool at_work = false);

}  // namespace flow
