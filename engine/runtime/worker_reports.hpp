// From what workers and native tasks report to the inputs of a turn.
#pragma once
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "engine/runtime/gang_supervisor.hpp"
#include "engine/runtime/state_clock.hpp"
#include "engine/runtime/stop_cause.hpp"
#include "engine/runtime/turn_input.hpp"
#include "engine/runtime/worker_registry.hpp"
#include "engine/worker/report.hpp"

namespace flow {

/// Thread-safe: used by the threads that report, so that hashing and decoding do not take the time
/// of turns.
class WorkerReports {
 public:
  /// Called within a turn, with a report of progress.
  using PublishProgress = std::function<void(const Report&)>;
  /// All outlive it, and the inputs that it makes. Only these inputs use `gangs`.
  WorkerReports(GangSupervisor& gangs, const StateClock& clock, WorkerRegistry& workers,
                const StopCause& stop, PublishProgress publish)
      : gangs_(gangs),
        clock_(clock),
        workers_(workers),
        stop_(stop),
        publish_(std::move(publish)) {}

  /// `worker`: the name of the worker that reports; "" for this machine's own.
  TurnInput input_of(Report&& report, const std::string& worker) const;
  /// Of a worker of another machine. `row` is committed with the report; then `decided` learns
  /// whether it was admitted, and `durable` is called if the commit succeeded. If the engine stops
  /// before, neither is called: the worker sends the report to the next engine.
  std::vector<TurnInput> inputs_of(Report report, const std::string& worker,
                                   std::pair<std::string, std::string> row, OnAdmission decided,
                                   std::function<void()> durable) const;

 private:
  bool is_rejected(bool admitted) const { return !admitted && !stop_.is_set(); }
  /// A checkpoint or a step.
  TurnInput input_of_save(SavedProgress saved, const std::string& worker) const;
  /// `finished` is the body of `report`.
  TurnInput input_of_end(const Report& report, TaskFinished& finished) const;
  TurnInput input_of_rank_end(const Report& report, TaskFinished& finished) const;
  TurnInput input_of_gang_report(Report report) const;
  void fill_end(const Report& report, TaskFinished& finished, PostedEvent& posted) const;

  GangSupervisor& gangs_;
  const StateClock& clock_;
  WorkerRegistry& workers_;
  const StopCause& stop_;
  const PublishProgress publish_;
};

}  // namespace flow
