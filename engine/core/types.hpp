// The vocabulary of the pure core: events (facts) and commands (requests). Values only.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "engine/core/attempt_usage.hpp"
#include "engine/costs/prices.hpp"
#include "engine/plan/plan.hpp"
#include "engine/plan/worker_selector.hpp"
#include "flow/gpu.hpp"

namespace flow::core {

using RunId = std::string;  // sorts by time: "20261121-051700-k3f9x2"
using UnitId = uint32_t;    // index in Run::units: the schedulable instances of a run's nodes
using WorkerId = uint16_t;  // index in State::workers; 0 is the engine's own machine
using Time = int64_t;       // milliseconds since the Unix epoch, stamped by the engine loop

/// Identifies one attempt, for the lifetime of the state. `epoch` is the fencing token: the engine
/// start that assigned the attempt and the number of earlier requeues (see fencing_token).
struct AttemptId {
  RunId run;
  UnitId unit = 0;
  uint32_t attempt = 0;  // 1 is the first
  uint64_t epoch = 0;
  auto operator<=>(const AttemptId&) const = default;
};

/// Why an attempt ended without a result. Each cause has its evidence and its retry budget.
enum class Cause : uint8_t {
  none,
  user_error,
  exit_code,
  signal,
  out_of_memory,
  timeout,
  input_changed,
  missing_output,
  bad_result,
  lost,
  preempted,
  staging,
  cancelled,
  stopped,
  internal,
  quarantined,
  dependency,
  gpu_fault,
  environment,  // a module, an environment or a container runtime that a command needs is missing
};
constexpr Cause kCauseLast = Cause::environment;  // the numbers are journaled: only append
const char* cause_name(Cause cause);              // "user_error", …

struct Failure {
  Cause cause = Cause::none;
  std::string message;   // what, where, why, what to do
  std::string evidence;  // traceback, last lines of stderr, limit and usage
  int32_t code = 0;      // exit code or signal number
};

/// An action that a user requests for a run.
enum class ActionKind : uint8_t {
  none,
  cancel,
  stop,    // as Ctrl-C; services drain
  resume,  // also with new code
  retry,
  signal,
  serve,     // a new run that serves the results of another run
  rollback,  // as serve, of the previous version
};
constexpr ActionKind kActionKindLast = ActionKind::rollback;  // journaled: only append
const char* action_name(ActionKind kind);                     // "cancel", …

/// A recorded action. Events with an empty `by` are not recorded as actions: the engine caused
/// them, or an older build wrote them.
struct Action {
  ActionKind kind = ActionKind::none;
  Time at = 0;
  std::string by{};    // who asked: see engine/base/requester.hpp
  std::string name{};  // of the signal, or of the task that runs again; else ""
  bool operator==(const Action&) const = default;
};
/// Maximum number of actions kept per run; the oldest are dropped.
constexpr size_t kActionsMax = 100;

// ---- events

struct EngineStarted {
  uint64_t epoch = 0;
  int32_t cpus_milli = 0;
  int64_t memory_bytes = 0;
  ResourceQuantities custom_resources{};
  bool leads_workers = false;     // workers may join
  bool restarts_services = true;  // see State
};
struct RunSubmitted {
  RunId run;
  std::string name;
  Digest plan_digest;
  std::shared_ptr<const Plan> plan;  // journaled as plan_digest; the decoder looks it up
  int32_t jobs = 0;                  // CPU slots this run may use; 0: all
  bool fail_fast = false;
  bool fresh = false;
  std::string user{};             // who submitted it: a name of the operating system; "" if unknown
  std::vector<Action> actions{};  // of the run that it replaces, then the action that made it
};
/// All inputs of a unit are available: its cache key, and its cache entry if there is one.
struct InputsResolved {
  RunId run;
  UnitId unit = 0;
  Digest key;
  bool hit = false;
  Digest result;                                 // of the cache entry
  std::shared_ptr<const PlanFragment> fragment;  // cached calls of a dynamic task; by digest
  Digest fragment_digest;
};
/// The inputs of a unit cannot be resolved: a missing part of a result, a value that is not a list.
struct InputsFailed {
  RunId run;
  UnitId unit = 0;
  Failure failure;
};
/// An argument of a shell task, service or native task is flow.missing, or the list of a map is:
/// the unit is skipped, and its own result is flow.missing.
struct InputsMissing {
  RunId run;
  UnitId unit = 0;
  std::string why;
};
struct MapExpanded {
  RunId run;
  UnitId unit = 0;
  uint32_t count = 0;
  std::vector<std::string> tags{};  // of the instances, if a function tags them; else empty
};
/// The resources of one attempt of a task with resource functions: those of its definition, with
/// the values that the functions returned.
struct AttemptResources {
  uint32_t attempt = 0;
  Resources resources;
  int64_t timeout_ms = 0;  // 0: none
};
/// The resource functions of a unit returned; the unit may be placed.
struct ResourcesComputed {
  RunId run;
  UnitId unit = 0;
  AttemptResources computed;
};
struct WhenResolved {
  RunId run;
  UnitId unit = 0;
  bool then_branch = false;  // the first function of flow.when is taken
};
/// A value was assembled: the list of a map, the value of a when, or the run's result.
struct ValueGathered {
  RunId run;
  UnitId unit = 0;
  Digest result;
};
/// The worker of a rank and the UUIDs of the GPUs that are assigned to it.
struct Placement {
  WorkerId worker = 0;
  std::vector<std::string> gpus{};
  bool operator==(const Placement&) const = default;
};
/// The resources that each rank of a gang holds on its worker.
struct Share {
  int32_t cpus_milli = 0;
  int64_t memory_bytes = 0;
  bool operator==(const Share&) const = default;
};
/// The scheduler's decision. `gpus` and `worker` are those of rank 0.
struct Assigned {
  AttemptId id;
  std::vector<std::string> gpus{};
  WorkerId worker = 0;
  std::vector<Placement> others{};  // of a gang: ranks 1, 2, …
  Share share{};                    // of a gang
};
/// The worker returned an attempt that had not begun.
struct AttemptRequeued {
  AttemptId id;
};
struct AttemptSucceeded {
  AttemptId id;
  Digest result;
  std::shared_ptr<const PlanFragment> fragment;  // dynamic tasks; journaled by digest
  Digest fragment_digest;
  int64_t duration_us = 0;  // measured by the worker
  bool waited = false;      // ctx:wait was called: the result depends on this run's signal
  AttemptUsage usage{};
};
struct AttemptFailed {
  AttemptId id;
  Failure failure;
  uint32_t rank = 0;         // of a gang: the rank that failed first
  bool worker_died = false;  // the worker's process ended
  AttemptUsage usage{};
};
/// The attempt ended at ctx:wait and released its slot. The unit continues after the signal or the
/// deadline.
struct AttemptWaiting {
  AttemptId id;
  std::string signal;
  std::string wait_name;
  Time deadline = 0;
  AttemptUsage usage{};
};
/// The attempt ended on request with its state saved. It does not count as a retry.
struct AttemptStopped {
  AttemptId id;
  AttemptUsage usage{};
};
struct ServiceReady {
  AttemptId id;
  std::string url;
};
struct StepSaved {
  AttemptId id;
  std::string name;
  Digest value;
};
struct CheckpointSaved {
  AttemptId id;
  Digest value;
};
struct SignalReceived {
  RunId run;
  std::string name;
  Digest value;
  std::string by{};  // as Action::by; also "" if it was sent to the run that this one replaces
};
/// The timer of a unit. If `run` is empty, `unit` is a WorkerId: the time for which that worker was
/// set aside is over.
struct TimerFired {
  RunId run;
  UnitId unit = 0;
  uint32_t serial = 0;
};
struct CancelRequested {
  RunId run;
  std::string by{};
};
/// SIGINT: no new attempts start, and running ones are asked to stop.
struct StopRequested {
  RunId run;
  std::string by{};
};
/// The end of --serve-for, or Ctrl-C while services run.
struct ServeEnded {
  RunId run;
  std::string by{};
};
/// A resume or retry: failed units get new attempts. With `unit`, that unit runs again even if it
/// succeeded, and its dependents follow.
struct RetryRequested {
  RunId run;
  bool has_unit = false;
  UnitId unit = 0;
  std::vector<UnitId> lost{};  // without `unit`: units whose results are missing; they run again
  std::string by{};
  bool is_retry = false;  // asked for as a retry, not as a resume
};
/// Garbage collection deleted the run.
struct RunDeleted {
  RunId run;
};
/// A worker's GPUs. For worker 0 these are all GPUs of the engine's machine, which is queried when
/// a run first requests one; a starting engine knows none. For another worker they are added: it
/// offered them when it joined, and the worker that held them is lost.
struct GpusFound {
  std::vector<Gpu> gpus;
  WorkerId worker = 0;
};
/// A GPU failed. It is not assigned until its worker reports its GPUs again. Attempts that hold it
/// end if it is dead; otherwise they continue.
struct GpuFailed {
  WorkerId worker = 0;
  std::string uuid;
  std::string fault;  // as Gpu::fault
  bool is_dead = false;
};
/// An elastic gang that has just saved a checkpoint can have more ranks: it is asked to stop, and
/// its next attempt has `ranks` ranks.
struct ResizeRequested {
  AttemptId id;
  uint32_t ranks = 0;
};

/// The capacity of a worker, as the worker reports it.
struct WorkerInfo {
  std::string name;
  int32_t cpus_milli = 0;
  int64_t memory_bytes = 0;
  std::vector<Gpu> gpus;
  Labels labels{};  // such as "rack" to "a"; sorted by name
  ResourceQuantities custom_resources{};
};
/// A worker joined or rejoined.
struct WorkerJoined {
  WorkerInfo worker;
  /// Attempts that it offers: running ones, and ended ones whose reports are not acknowledged.
  std::vector<AttemptId> attempts{};
  bool is_restarted = false;  // the process differs from the one that was connected before
};
/// The connection to a worker broke. Its attempts keep running until it rejoins or is lost.
struct WorkerDisconnected {
  WorkerId worker = 0;
  std::string why;
};
/// A worker drains: it gets no new attempts and asks running ones to stop.
struct WorkerDraining {
  WorkerId worker = 0;
  std::string why;
};
/// A worker is lost, and its attempts with it.
struct WorkerLost {
  WorkerId worker = 0;
  std::string why;
  bool has_died = false;  // its process ended; otherwise its lease expired
};
/// The number of workers that will join in all. Until they have joined, a gang waits for them
/// before its ranks get fewer CPUs than they request.
struct WorkersAnnounced {
  uint32_t count = 0;
};

/// The fronts of a run's services apply the weights of this step of its rollover. `error`: a front
/// could not be reached.
struct TrafficShifted {
  RunId run;
  uint32_t step = 0;
  std::string error{};
};
/// The requests that the new version answered in this step of its rollover, over all its services.
struct TrafficMeasured {
  RunId run;
  uint32_t step = 0;
  uint64_t requests = 0, errors = 0;  // errors: status 500 and above
  int64_t p50_us = 0, p99_us = 0;     // the highest of its services
  std::string error{};                // a front did not answer, or a user ended the canary
};

/// The new target number of replicas of a service that scales.
struct ReplicasScaled {
  RunId run;
  UnitId unit = 0;  // the service's own
  uint32_t replicas = 0;
};
/// The gate task of this canary step was called; `fragment` adds its nodes to the run.
struct GateCalled {
  RunId run;
  uint32_t step = 0;
  std::shared_ptr<const PlanFragment> fragment;  // journaled by digest
  Digest fragment_digest;
};
/// The result of the gate task.
struct GateAnswered {
  RunId run;
  uint32_t step = 0;
  bool passes = false;
  std::string why{};  // the reason if it does not pass, as a clause
};

/// The budget of a run and the prices by which it is charged.
struct BudgetTerms {
  Prices prices;
  int64_t limit_nano = 0;   // billionths of the currency's unit
  int64_t before_nano = 0;  // spent by the run before it was resumed with new code
  bool operator==(const BudgetTerms&) const = default;
};
/// Sets or replaces the budget of a run.
struct BudgetSet {
  RunId run;
  BudgetTerms terms;
};
/// The scheduler's decision to stop a run: it has no running attempt, and no ready unit fits into
/// the rest of its budget.
struct BudgetReached {
  RunId run;
};

using Event = std::variant<
    EngineStarted, RunSubmitted, InputsResolved, InputsFailed, MapExpanded, WhenResolved,
    ValueGathered, Assigned, AttemptRequeued, AttemptSucceeded, AttemptFailed, AttemptWaiting,
    AttemptStopped, ServiceReady, StepSaved, CheckpointSaved, SignalReceived, TimerFired,
    CancelRequested, StopRequested, ServeEnded, RetryRequested, RunDeleted, GpusFound, WorkerJoined,
    WorkerDisconnected, WorkerLost, WorkerDraining, ResizeRequested, GpuFailed, WorkersAnnounced,
    InputsMissing, ResourcesComputed, TrafficShifted, TrafficMeasured, ReplicasScaled, GateCalled,
    GateAnswered, BudgetSet, BudgetReached>;

/// An event with its sequence number and time, as the journal holds it.
struct Record {
  uint64_t sequence = 0;  // 1, 2, 3 …: no gaps
  Time at = 0;
  Event event;
};

// ---- commands

// Queries: pure reads of blobs that are committed or in the open batch. The engine loop answers
// each with an event in the same turn, before the commit.

/// Answered for each unit by InputsResolved, InputsFailed or InputsMissing. One command covers a
/// range of units: a command per item of a large map would take more memory than the units.
struct ResolveInputs {
  RunId run;
  UnitId unit = 0;     // the first
  uint32_t count = 1;  // of units
};
/// Answered by MapExpanded, InputsFailed or InputsMissing.
struct ExpandMap {
  RunId run;
  UnitId unit = 0;
};
/// Calls the resource functions of the unit for its next attempt. Answered by ResourcesComputed or
/// InputsFailed in this turn or a later one.
struct ComputeResources {
  RunId run;
  UnitId unit = 0;
};
/// Answered by WhenResolved or InputsFailed.
struct ResolveWhen {
  RunId run;
  UnitId unit = 0;
};
/// The list of a map, the value of a when or dynamic task, or with kNoNode the run's result.
/// Answered by ValueGathered or InputsFailed.
struct GatherValue {
  RunId run;
  UnitId unit = 0;
};

/// Answered by GateCalled.
struct CallGate {
  RunId run;
  uint32_t step = 0;
  uint64_t requests = 0, errors = 0;  // of the step, as in TrafficMeasured
  int64_t p50_us = 0, p99_us = 0;
};
/// Reads the result of the gate's unit. Answered by GateAnswered.
struct ReadGate {
  RunId run;
  UnitId unit = 0;
  uint32_t step = 0;
};

// Effects: executed only after the commit. An effect may be executed twice, so it names its
// attempt.

struct StartAttempt {
  AttemptId id;
};
/// SIGTERM, grace, SIGKILL; or SIGKILL at once. The worker's report ends the attempt.
struct StopAttempt {
  AttemptId id;
  bool kill = false;
  WorkerId worker = 0;  // its worker: the state may not know the attempt any more
};
/// A step, or with an empty name a checkpoint, is durable.
struct AckSaved {
  AttemptId id;
  std::string name;
};
struct SetTimer {
  RunId run;  // empty: the timer of a worker, as in TimerFired
  UnitId unit = 0;
  uint32_t serial = 0;
  Time at = 0;
};
/// The run's status changed: its row is rewritten and its listeners are notified.
struct RunChanged {
  RunId run;
};
/// The unit changed: its run's listeners are notified.
struct UnitChanged {
  RunId run;
  UnitId unit = 0;
};
/// The run ended: it is archived.
struct RunEnded {
  RunId run;
};

/// Sets the weights of both versions at the fronts of the run's services. Answered by
/// TrafficShifted.
struct ShiftTraffic {
  RunId run, previous;
  uint32_t step = 0;
  uint32_t percent = 0;  // of the run; the previous version gets the rest
};
/// The run has used 80% or 100% of its budget: its listeners are warned.
struct WarnOfBudget {
  RunId run;
};
/// Answered by TrafficMeasured.
struct MeasureTraffic {
  RunId run;
  uint32_t step = 0;
};

using Command =
    std::variant<ResolveInputs, ExpandMap, ResolveWhen, GatherValue, ComputeResources, StartAttempt,
                 StopAttempt, AckSaved, SetTimer, RunChanged, UnitChanged, RunEnded, ShiftTraffic,
                 MeasureTraffic, CallGate, ReadGate, WarnOfBudget>;

}  // namespace flow::core
