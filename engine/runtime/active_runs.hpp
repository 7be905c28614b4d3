// The contexts of the runs in the state, and the calls that wait until a run is interrupted.
#pragma once
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "engine/base/latch.hpp"
#include "engine/core/core.hpp"
#include "engine/runs/detached_runs.hpp"
#include "engine/runtime/turn_input.hpp"
#include "engine/store/store.hpp"
#include "engine/submission/submission.hpp"

namespace flow {

/// Whether the next writer resumes the run when this one has died, or the run has options that a
/// later request to resume it takes over.
bool has_kept_options(const RunContext& context);
/// Keeps that with the run.
void put_kept_options(const RunContext& context, Batch& batch);
/// Keeps the run's notification settings with it.
void put_notify_settings(const RunContext& context, Batch& batch);
/// The options that a request to resume the run does not set are those that it had.
void keep_options(RunContext& context, const DetachedRun& before);

/// Used by the turn's thread.
class ActiveRuns {
 public:
  explicit ActiveRuns(const core::State& state) : state_(state) {}

  /// Null if this process does not drive the run.
  RunContext* find(const core::RunId& run);
  /// The listener of the run; null if it has none.
  RunListener* listener_of(const core::RunId& run);
  void put(const core::RunId& run, RunContext context) {
    contexts_.insert_or_assign(run, Entry{std::move(context), ++last_number_});
  }
  bool contains(const core::RunId& run) const { return contexts_.contains(run); }
  /// Number of the run's context, which changes with each put(); 0: none.
  uint64_t number_of(const core::RunId& run) const {
    auto found = contexts_.find(run);
    return found == contexts_.end() ? 0 : found->second.number;
  }
  /// Erases the context with this number. A run that was resumed meanwhile has another one.
  void erase(const core::RunId& run, uint64_t number) {
    if (number_of(run) == number) contexts_.erase(run);
  }
  /// Until when the run serves: once, when it serves in this process and a limit was given. The
  /// time continues in the next process, for which the end is kept in `batch`.
  std::optional<core::Time> take_serve_end(const core::RunId& run, core::Time now, Batch& batch);

  /// Whether the run will have the status `interrupted`.
  bool is_being_interrupted(const core::RunId& run) const;
  /// Opens the latch when is_being_interrupted() has become false and the turn is durable.
  void await_interruption(const core::RunId& run, std::shared_ptr<Latch> latch) {
    interruptions_.emplace(run, std::move(latch));
  }
  /// Whether the run has ended or is interrupted, or is not driven by this process.
  bool is_at_rest(const core::RunId& run) const;
  /// Opens the latch when is_at_rest() has become true and the turn is durable.
  void await_rest(const core::RunId& run, std::shared_ptr<Latch> latch) {
    rests_.emplace(run, std::move(latch));
  }
  bool has_waiting_calls() const { return !interruptions_.empty() || !rests_.empty(); }
  /// Adds the outcomes of the calls whose run is interrupted, or at rest.
  void end_waiting_calls(std::vector<std::pair<OnAdmission, bool>>& outcomes);
  /// After the commit: an interrupted run has no further event, and its listener leaves.
  void end_if_interrupted(const core::RunId& run);
  /// The engine ends, with this error if it has stopped.
  void end_all(const std::optional<Error>& why);

 private:
  const core::State& state_;
  struct Entry {
    RunContext context;
    uint64_t number = 0;
  };
  std::map<core::RunId, Entry> contexts_;  // of runs in the state; entries leave after RunEnded
  uint64_t last_number_ = 0;
  using Latches = std::multimap<core::RunId, std::shared_ptr<Latch>>;
  Latches interruptions_, rests_;  // they leave in end_waiting_calls()
};

}  // namespace flow
