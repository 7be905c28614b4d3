// The effect of one event on the state. A Transition lives as long as one apply; each of its steps
// keeps the derived fields consistent with the essential ones.
#pragma once
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/core.hpp"
#include "engine/core/graph.hpp"

namespace flow::core {

using UnitDetailPtr = std::shared_ptr<const UnitDetail>;

class Transition {
 public:
  /// `former_at` is the state's time before the record.
  Transition(State& state, Time at, Time former_at, std::vector<Command>& out)
      : state_(state), at_(at), former_at_(former_at), out_(out) {}

  // apply.cc: events of units and attempts
  void on(const InputsResolved& event);
  void on(const InputsFailed& event);
  void on(const InputsMissing& event);
  void on(const MapExpanded& event);
  void on(const ResourcesComputed& event);
  void on(const WhenResolved& event);
  void on(const ValueGathered& event);
  void on(const Assigned& event);
  void on(const AttemptRequeued& event);
  void on(const AttemptSucceeded& event);
  void on(const AttemptFailed& event);
  void on(const AttemptWaiting& event);
  void on(const AttemptStopped& event);
  void on(const ServiceReady& event);
  void on(const StepSaved& event);
  void on(const CheckpointSaved& event);
  void on(const ResizeRequested& event);
  void on(const SignalReceived& event);
  void on(const TimerFired& event);
  void on(const WorkersAnnounced& event);  // workers.cc
  // runs.cc: events of runs
  void on(const EngineStarted& event);
  void on(const RunSubmitted& event);
  void on(const CancelRequested& event);
  void on(const StopRequested& event);
  void on(const ServeEnded& event);
  void on(const RetryRequested& event);  // retry.cc
  void on(const RunDeleted& event);
  void on(const TrafficShifted& event);  // rollover.cc
  void on(const TrafficMeasured& event);
  void on(const GateCalled& event);  // gates.cc
  void on(const GateAnswered& event);
  void on(const ReplicasScaled& event);  // scaling.cc
  void on(const BudgetSet& event);       // budget.cc
  void on(const BudgetReached& event);
  void on(const GpusFound& event);
  void on(const GpuFailed& event);     // gpu_faults.cc
  void on(const WorkerJoined& event);  // workers.cc
  void on(const WorkerDisconnected& event);
  void on(const WorkerLost& event);
  void on(const WorkerDraining& event);

  /// Skips units that cannot run any more and updates the status of the touched runs.
  void propagate();

 private:
  /// The worker of an ended attempt, and whether the worker or one of its GPUs died.
  struct Ending {
    WorkerId worker = 0;
    bool is_death = false, is_gpu = false;
    std::string co_located{};  // other units that ran on the worker
  };

  Run& run(const RunId& id);
  /// Keeps the action with the run if it has a requester.
  static void note_action(Run& run, Action action);
  template <typename C>
  void emit(C command) {
    out_.push_back(Command(std::move(command)));
  }

  // units.cc: the life of a unit
  void move(Run& run, UnitId unit, Phase phase, UnitStatus status);
  /// Releases what the unit's phase holds: its slot, its entry in the ready queue, its wait.
  void leave(Run& run, UnitId unit);
  /// Called when every edge is satisfied: issues the next query.
  void advance(Run& run, UnitId unit);
  void emit_query(Run& run, UnitId unit);
  void to_ready(Run& run, UnitId unit);
  /// Whether the unit's resource functions must be called before its next attempt is placed.
  bool needs_sizing(const Run& run, UnitId unit) const;
  void to_parked(Run& run, UnitId unit);
  void to_backoff(Run& run, UnitId unit, int64_t delay_ms);
  void to_gathering(Run& run, UnitId unit);
  void satisfy_dependents(Run& run, UnitId unit);
  void satisfy(Run& run, UnitId unit);
  void succeed(Run& run, UnitId unit, const Digest& result);
  /// Ends the unit without a result and skips its dependents.
  void end(Run& run, UnitId unit, UnitStatus status, UnitDetailPtr detail);
  /// Ends the unit as failed or skipped, with flow.missing as its result.
  void end_missing(Run& run, UnitId unit, UnitStatus status, UnitDetailPtr detail);
  void close(Run& run, UnitId unit, UnitStatus status);
  void instance_ended(Run& run, UnitId unit);
  void complete_map(Run& run, UnitId map_unit);
  void fail(Run& run, UnitId unit, Failure failure);
  /// Handles an attempt without a result: schedules another one if the budget allows it.
  void retry_or_fail(Run& run, UnitId unit, const Failure& failure, const Ending& ending);
  void fail_attempt(Run& run, UnitId unit, const Failure& failure, const Ending& ending);
  static AttemptEnding outcome_of(Cause cause);
  /// Starts a service again whose attempt was ready. It costs no retry.
  void restart_service(Run& run, UnitId unit, const Failure& failure, const Ending& ending);
  /// Spends one retry of the budget. Returns the number spent, or 0 if the budget is exhausted.
  uint32_t spend(UnitDetail& detail, const RetryPolicy& policy, Cause cause);
  /// Whether the unit kills the workers that run it; then sets its failure.
  bool is_quarantined(const Run& run, UnitId unit, UnitDetail& detail, const Ending& ending);
  void clear_deaths_of_others(const Run& quarantined_run, UnitId quarantined_unit,
                              const std::vector<Death>& deaths);
  void record_failure(UnitDetail& detail, const Unit& unit, Cause cause, const Ending& ending);
  /// Counts the failure against the worker, which is set aside after too many in a row.
  void record_worker_failure(WorkerId at, Run& run, UnitId unit, Cause cause);
  void forget_failures(const RunId& run, uint32_t def);
  void clear(const Unit& unit);  // it succeeded on its worker
  void note_progress(const AttemptId& id);
  /// Without an outcome the attempt had not begun. `kills`: ranks that still run are killed; else
  /// its result counts. False: nothing waits for the unit, which is no part of the run any more.
  [[nodiscard]] bool end_attempt(Run& run, UnitId unit, std::optional<AttemptEnding> outcome,
                                 bool kills = true);
  // usage.cc
  void begin_usage(Run& run, UnitId unit);
  void note_usage(const AttemptId& id, const AttemptUsage& usage);
  void note_gpus_held(Run& run, UnitId unit, Time until);
  // presence.cc
  /// Call this after the GPUs of the worker, or whether it is lost, may have changed.
  void note_presence(WorkerId at);
  void end_presences(Time until);
  // consumption.cc
  void note_consumption(Run& run, UnitId unit, AttemptEnding outcome, bool is_result, Time until);
  void keep_consumption(Run& run, UnitId unit);
  void count_ended_with_engine();  // runs.cc
  // budget.cc
  void spend_budget(Run& run, UnitId unit, const std::vector<Consumption>& used,
                    AttemptEnding outcome);
  void budget_timer_fired(Run& run);
  /// Returns whether it stopped the run.
  bool review_budget(Run& run);
  void end_service(Run& run, UnitId unit);
  void wait_for_result(Run& run, UnitId unit);  // a resolved when, an expanded dynamic task
  bool check_unit_limit(Run& run, UnitId unit, size_t more);
  void append_instances(Run& run, UnitId map_unit, uint32_t count);
  void append_calls(Run& run, UnitId unit, const std::shared_ptr<const PlanFragment>& fragment,
                    const Digest& digest);
  void append_units(Run& run, UnitId owner, const std::shared_ptr<const PlanFragment>& fragment,
                    const Digest& digest);
  void start_timer(Run& run, UnitId unit, Time at);

  // keys.cc: equal keys are computed once
  /// Makes the unit the holder of its key. False: another unit computes the key; wait for it.
  bool acquire_key(Run& run, UnitId unit);
  void wait_for_duplicate(Run& run, UnitId unit);
  /// Releases the key without a result: the next waiting unit computes it.
  void release_key(Run& run, UnitId unit);
  /// Releases the key with a result: it serves all waiting units.
  void publish_result(Run& run, UnitId unit);
  void restrict_key_to_run(Run& run, UnitId unit);
  std::vector<std::pair<RunId, UnitId>> duplicates_of(const Run& run, UnitId unit) const;

  // runs.cc
  void touch(Run& run);
  void update_run_status(Run& run);
  void set_run_status(Run& run, RunStatus status);
  void end_run(Run& run, RunStatus status);
  void cancel_open(Run& run, const std::string& why, bool stop_running);
  void stop_services(Run& run);
  bool is_winding_down(const Run& run) const;  // no unit of it starts any more

  // rollover.cc
  void shift(Run& run, uint32_t step);
  void observe(Run& run, int64_t for_ms);
  void observed(Run& run);  // the timer of its step fired
  void pass_step(Run& run);
  void revert(Run& run, const std::string& problem);
  void abandon_rollover(Run& run);
  void finish_rollover(Run& run);
  Run* owner_beside(const Run& run);
  bool previous_is_at_work(const Run& run) const;
  bool has_other_rollover(const Run& run) const;
  bool has_rivals(const Run& run) const;
  bool takes_over(Run& run);
  void check_rollover(Run& run);
  bool must_hold_back(const Run& run, UnitId unit);
  void release_held_back(Run& run);
  void interrupt_rollover(Run& run);
  void resume_rollover(Run& run);
  void review_rollovers();
  void refuse_misfits(const Run& changed);

  // gates.cc
  void call_gate(Run& run, const TrafficMeasured& measured);
  void gate_ended(Run& run, UnitId unit);
  void leave_gate(Run& run);
  void drop_gate(Run& run, UnitId gate);
  void drop_left_gates(Run& run);

  // scaling.cc
  void use_replica(Run& run, UnitId unit);
  void spare_replica(Run& run, UnitId unit);
  void park_spare(Run& run, UnitId unit);
  void end_left_spares(Run& run, UnitId set);
  /// The detail with which the own unit of a service ends keeps how many of its replicas are in
  /// use.
  UnitDetailPtr with_replicas(const Run& run, UnitId unit, UnitDetailPtr detail) const;

  // workers.cc
  struct LostAttempt {
    Run* run;
    UnitId unit;
    std::string why;
    Cause cause = Cause::lost;
    Ending ending{};
  };
  void fail_lost(const LostAttempt& loss);
  /// The other units that run on the worker: "`a`, `b` and 2 more".
  std::string co_located(WorkerId at, const Run& run, UnitId unit);
  void adopt(WorkerId at, const WorkerInfo& info, const std::set<AttemptId>& offered,
             bool is_restarted);
  void reconcile_offer(WorkerId at, const AttemptId& id);
  void mark_workers_disconnected();
  void stop_attempt(const Run& run, UnitId unit);
  void end_ranks(const Run& run, UnitId unit, bool kills);
  void note_change(const Run& run, UnitId unit);
  template <typename Visit>
  void for_each_on(WorkerId worker, Visit visit);

  // gpu_faults.cc
  void end_gpu_holders(WorkerId at, const Gpu& gpu, const std::string& fault);
  bool is_unschedulable(const Run& run, UnitId unit) const;
  void note_unschedulable();
  void fail_unschedulable();

  // retry.cc
  void continue_run(Run& run);
  void reset_unit(Run& run, UnitId unit, Phase phase, bool keep_waits);
  void drop(Run& run, UnitId unit);
  void drop_gates(Run& run);
  void drop_expansion(Run& run, UnitId unit);
  void rerun(Run& run, UnitId target);
  void retry_ignored(Run& run);
  void regather(Run& run, UnitId target);
  void invalidate_downstream(Run& run, const std::vector<UnitId>& targets, UnitId regathered);

  State& state_;
  Time at_, former_at_;
  std::vector<Command>& out_;
  std::vector<Run*> touched_;
  // What the ended attempt of this unit used, from the event.
  const Run* reported_run_ = nullptr;
  UnitId reported_unit_ = kNoNode;
  AttemptUsage reported_{};
  struct Skip {
    RunId run;
    UnitId unit;
    UnitDetailPtr detail;
  };
  std::vector<Skip> skips_;
  void propagate_skips();
  std::vector<std::pair<RunId, UnitId>> unschedulable_;  // ready, but their GPUs have failed
};

// rebuild.cc
/// Add a ready unit to the ready queue; remove it.
void enqueue_ready(State& state, Run& run, UnitId unit);
void dequeue_ready(State& state, Run& run, UnitId unit);
/// Called when the workers' capacities changed; requests of ready units depend on them.
void rebuild_capacity(State& state);
/// Remove the run from the state's shared indices; add it.
void detach(State& state, Run& run);
void attach(State& state, Run& run);
void count_unit(RunCounts& counts, const Unit& unit, int by);
/// Recomputes the derived fields of the run.
void rebuild_run(State& state, Run& run);

/// The scope in which the unit holds its key, from its phase and its task.
KeyScope key_scope_of(const Run& run, UnitId unit);

Failure dependency_failure(const Run& run,
                           UnitId unit);  // of a dependent of a unit without a result

}  // namespace flow::core
