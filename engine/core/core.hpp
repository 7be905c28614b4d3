// The pure state machine. It uses no clock, disk, thread, log or random number, and no order
// depends on addresses.
#pragma once
#include <array>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/core/budget.hpp"
#include "engine/core/key_table.hpp"
#include "engine/core/types.hpp"
#include "engine/core/unit_set.hpp"
#include "engine/costs/consumption.hpp"
#include "engine/plan/gpu_pattern.hpp"
#include "engine/plan/worker_selector.hpp"

namespace flow::core {

enum class RunStatus : uint8_t {
  pending,
  running,
  serving,
  waiting,
  succeeded,
  failed,
  cancelled,
  interrupted
};
enum class UnitStatus : uint8_t {
  pending,
  ready,
  running,
  waiting,
  succeeded,
  failed,
  skipped,
  cancelled
};
const char* status_name(RunStatus status);
const char* status_name(UnitStatus status);
inline bool is_final(RunStatus s) {
  return s == RunStatus::succeeded || s == RunStatus::failed || s == RunStatus::cancelled;
}
inline bool is_final(UnitStatus s) { return s >= UnitStatus::succeeded; }

/// What a unit waits for; finer than its status.
enum class Phase : uint8_t {
  waiting_for_dependencies,  // its inputs, its `after`, its branch
  resolving,                 // the event that answers ResolveInputs, ExpandMap or ResolveWhen
  parked,                    // a resume: the run is stopping, and no query or attempt starts
  coalesced,                 // another unit that computes the same key
  ready,                     // a slot
  running,                   // the end of its attempt
  signal,                    // ctx:wait
  backoff,                   // the time of the next attempt
  instances,                 // map, replicated service: its instances
  branch,     // when: the value of the taken branch; dynamic: the units that its result names
  gathering,  // the event that answers GatherValue
  done,
  sizing,  // the event that answers ComputeResources. The numbers are stored: only append
};
constexpr size_t kPhases = 13;

enum class Branch : uint8_t { unknown, then_branch, else_branch };

/// Which units with the same key wait for this one: those of all runs, of its own run, or none.
enum class KeyScope : uint8_t { none, shared, own };

/// A task instance, the unit of scheduling. A task node has one unit, a when has one, a map has one
/// for itself and one per instance, and a service with replicas one for itself and one per replica.
/// Kept small, because a run may have a million units.
struct Unit {
  uint32_t node = 0;
  int32_t instance = -1;  // index in the map or of the replica, from 0; -1: the node's own unit
  UnitStatus status = UnitStatus::pending;
  Phase phase = Phase::waiting_for_dependencies;
  Branch branch = Branch::unknown;      // when: the branch it chose
  KeyScope key_scope = KeyScope::none;  // scope of its hold on the key (derived)
  bool cached = false;                  // the result is a cache hit
  bool resolved = false;                // the key is known
  bool forced = false;         // retry RUN TASK: ignore the cache once and replace its entry
  bool satisfied = false;      // consumers may start: it succeeded, or its service is ready
  bool expanded = false;       // its instances or calls are units of the run
  bool dropped = false;        // part of an expansion that a later one replaced
  bool gives_missing = false;  // failed or skipped, but satisfied: its result is flow.missing
  uint16_t requeues = 0;       // how often its next attempt was requeued before it began
  WorkerId worker = 0;         // worker of its newest attempt
  uint32_t attempts = 0;       // attempts so far
  uint32_t waits_on = 0;       // edges not yet satisfied (derived)
  uint32_t timer_serial = 0;
  uint32_t expected_us = 0;  // running: expected duration; 0: not known to be short
  uint64_t epoch = 0;        // fencing token of the current attempt
  Digest key;
  Digest result;
  Time started = 0, finished = 0;
  Time ready = 0;     // of a ready or running one: when it became ready
  Time assigned = 0;  // when its newest attempt was assigned
  std::shared_ptr<const struct UnitDetail>
      detail;  // data that few units have: failure, budgets, waits, URL. Units may share it
};
static_assert(sizeof(Unit) <= 160);

/// A failed attempt and its worker; of a gang, the worker of the rank that failed first.
struct FailedAttempt {
  uint32_t attempt = 0;
  WorkerId worker = 0;
  Cause cause = Cause::none;
  bool operator==(const FailedAttempt&) const = default;
};

/// The death of a worker process or a GPU while an attempt ran on it.
struct Death {
  WorkerId worker = 0;
  uint64_t record = 0;  // sequence number; equal for all units that ran on the worker
  bool is_gpu = false;
  std::string co_located;  // other units on the worker: "`a`, `b` and 2 more"; "": none
  bool operator==(const Death&) const = default;
};

/// The rarely used part of a unit.
struct UnitDetail {
  Failure failure;
  uint32_t failures = 0, ooms = 0, infra = 0;  // spent retries of each budget
  std::vector<Death> deaths;          // since its last progress; at most kLostMax and infra
  std::vector<FailedAttempt> failed;  // the newest kFailedKept, if the engine has workers
  bool runs_alone = false;            // its newest attempt shares its workers with no other
  std::map<std::string, std::pair<Time, bool>> waits;  // wait name -> deadline (0 none), expired
  std::string waiting_for;                             // name of the awaited signal
  std::string wait_name;                               // name of that wait
  Time retry_at = 0;                                   // end of the backoff
  std::string url;                                     // of a ready service
  bool was_ready = false;         // of a service: its newest attempt was ready,
  Time ready_at = 0;              // from this time on
  uint32_t restarts = 0;          // of a service: deaths since it was first ready
  uint32_t replicas_wanted = 0;   // of a service whose replicas scale; 0: the least
  uint32_t deaths_in_row = 0;     // those of attempts that were not ready for kForgivenAfterMs
  UnitId computed_by = kNoNode;   // unit of this run that computes the same key
  std::vector<std::string> gpus;  // UUIDs of the GPUs of its newest attempt
  // Placement of ranks 1 and up of a gang's newest attempt. The unit itself names rank 0's.
  std::vector<Placement> others;
  Share share;
  bool is_resizing = false;  // it was asked to stop, so that it continues with more ranks
  uint32_t grew_from = 0;    // after such a resize: ranks of the previous attempt; else 0
  std::shared_ptr<const AttemptResources> computed;  // by resource functions, of its newest attempt
};

/// How long the parts of a unit's newest attempt took, in seconds. Below 0: unknown. Kept small,
/// because most units of a large run have it.
struct AttemptTimes {
  float queue_s = -1;  // from ready to assigned
  float stage_s = -1;
  float commit_s = -1;
  float cpu_s = -1;  // as AttemptUsage::cpu_us
  bool operator==(const AttemptTimes&) const = default;
};
/// What a unit's newest attempt used, if that was measured or it held GPUs. Below 0: unknown.
struct AttemptTotals {
  int64_t peak_memory = -1, read_bytes = -1, written_bytes = -1;
  double gpu_s = -1;  // GPUs that it held, times seconds
  double gpu_used_s = -1, gpu_measured_s = -1, gpu_energy_j = -1;  // as in AttemptUsage
  bool operator==(const AttemptTotals&) const = default;
};

/// Numbers of counted units (see is_counted) by status, as in a run's JSON.
struct RunCounts {
  uint32_t succeeded = 0, cached = 0, failed = 0, skipped = 0, cancelled = 0, pending = 0,
           ready = 0, running = 0, waiting = 0, ignored = 0;
  bool operator==(const RunCounts&) const = default;
};

/// The calls that a dynamic unit returned (or its cache entry holds), as nodes and units of the
/// run.
struct DynamicCalls {
  UnitId unit = 0;  // unit of the dynamic task
  Digest fragment_digest;
  std::shared_ptr<const PlanFragment> fragment;
  uint32_t first_node = 0;  // index of the first node in the run
  UnitId first_unit = 0;    // fragment node i is unit first_unit + i
  Value value;              // result of the dynamic task, with refs that name units (derived)
};

/// Ready units with equal requests and constraints. The scheduler examines one of each class.
struct SchedulingClass {
  int32_t priority = 0;
  int32_t cpus_milli = 0;
  int64_t memory_bytes = 0;
  GpuRequest gpu;
  std::string where;  // label expression
  ResourceQuantities custom_resources;
  UnitId limited_map = kNoNode;
  bool is_head_only = false;          // runs on the engine's own machine only
  bool is_service = false;            // lasts as long as its run
  bool runs_alone = false;            // shares its worker with services at most
  uint32_t ranks = 1, ranks_max = 1;  // of a gang; each rank requests the above
  /// Workers on which an attempt failed, sorted. A worker is listed twice if two attempts failed
  /// there with the cause staging, or one with the cause environment.
  std::vector<WorkerId> failed_on;
  bool is_gang() const { return ranks_max > 1; }
  auto operator<=>(const SchedulingClass&) const = default;
};

/// The first ready unit of a class. Ordered by start order: priority, run, unit.
struct ReadyHead {
  RunId run;
  UnitId unit = 0;
  SchedulingClass request;
  bool operator<(const ReadyHead& other) const {
    if (request.priority != other.request.priority)
      return request.priority > other.request.priority;
    return std::tie(run, unit, request) < std::tie(other.run, other.unit, other.request);
  }
  bool operator==(const ReadyHead& other) const = default;
};

/// The dependents of each unit. kGuard marks the edge from a when to a node of its branch.
struct Dependents {
  static constexpr uint32_t kGuard = uint32_t{1} << 31;
  std::vector<uint32_t> offsets;  // dependents of unit u: flat[offsets[u]] to flat[offsets[u + 1]]
  std::vector<uint32_t> flat;
  std::map<UnitId, std::vector<uint32_t>> late;  // units and edges that were added later
};

/// The takeover of a name's traffic by a new version, as a part of the new version's run.
enum class RolloverPhase : uint8_t {
  none,
  waiting,    // for the rollover of an earlier version, or for its own services
  shifting,   // ShiftTraffic was issued
  observing,  // until the timer of the step
  measuring,  // MeasureTraffic was issued
  reverting,  // all traffic goes back to the previous version
  done,
  gated,  // the task that decides about the step runs. The numbers are stored: only append
};
struct Rollover {
  RunId previous;
  RolloverPhase phase = RolloverPhase::none;
  uint32_t step = 0;      // index in CanarySpec::percents; see has_step_to_continue()
  uint32_t serial = 0;    // of its newest timer
  Time began = 0;         // of the step
  std::string reason;     // why it reverts
  UnitId gate = kNoNode;  // of the newest call of the task that decides
  bool operator==(const Rollover&) const = default;
};

struct Run {
  // Essential fields; a snapshot holds them.
  RunId id;
  std::string name;
  RunStatus status = RunStatus::pending;
  Time submitted = 0, finished = 0;
  Digest plan_digest;
  std::shared_ptr<const Plan> plan;
  std::vector<Unit> units;                // first one per plan node, then those of expansions
  std::vector<DynamicCalls> dynamics;     // in the order in which their nodes were appended
  std::map<std::string, Digest> signals;  // the first signal of each name
  std::map<UnitId, std::string> tags;     // of instances that a function tagged at run time
  std::string user;                       // as RunSubmitted's
  std::vector<Action> actions;            // the newest kActionsMax, oldest first
  std::vector<AttemptTimes> times;        // by unit; shorter if further units had no attempt
  std::map<UnitId, AttemptTotals> totals;
  // Of ended attempts, without a plain success as the newest one: see is_plain_success.
  std::map<UnitId, std::vector<Consumption>> consumed;
  std::optional<RunBudget> budget;
  std::vector<uint32_t>
      durations_us;  // per definition: moving average of an attempt's duration; 0: unknown
  std::map<uint32_t, WorkerId>
      failed_defs;  // definition -> the only worker where it failed; kWorkersMax: several
  Digest result;
  bool has_result = false;
  int32_t jobs = 0;
  bool fail_fast = false, fresh = false, stopping = false, cancelling = false;
  bool stop_requested = false;  // by a user: a worker that rejoins stops its attempts too
  bool ending = false;          // only services are left, and they are being stopped
  bool gathering = false;       // GatherValue was issued for its result and not answered yet
  bool knows_traffic = false;   // an attempt recorded its moved_bytes
  Rollover rollover;

  // Derived fields; rebuild_derived computes them from the fields above.
  std::vector<TaskNode> dynamic_nodes;  // of dynamic tasks; their indices follow plan->nodes. Their
                                        // refs, `after` and guards name units of this run
  std::vector<UnitId> dynamic_units;    // the unit of each of these nodes
  Dependents dependents;
  std::vector<bool> is_consumed;  // per unit: the result is an input, or part of the run's result
  std::map<UnitId, std::vector<UnitId>> instances;  // per expanded unit, in order
  std::map<UnitId, size_t> dynamic_of;  // dynamic unit -> its newest entry in `dynamics`
  std::map<SchedulingClass, UnitSet> ready;
  KeyTable computing;                      // keys whose holder serves this run only
  std::map<UnitId, uint32_t> map_running;  // running instances of limited maps
  std::map<std::string, std::set<UnitId>> signal_waiters;
  std::vector<UnitId> services;
  RunCounts counts;
  std::array<uint32_t, kPhases> phases{};  // number of units in each phase, without dropped ones
  uint32_t open_services = 0, services_up = 0;
  uint32_t open_replica_sets = 0;  // number of replicated services that have not ended
  uint32_t failed_units = 0;       // including maps and whens, without ignored failures
  int32_t cpus_used_milli = 0;
  uint32_t number = 0;                   // of this run in State::computing; no order depends on it
  std::map<std::string, UnitId> tagged;  // by tagged_name: the units with a tag

  uint32_t phase_count(Phase phase) const { return phases[static_cast<size_t>(phase)]; }
  uint32_t open_units() const;  // number of units whose status is not final
  const TaskNode& node(uint32_t index) const {
    return index < plan->nodes.size() ? plan->nodes[index]
                                      : dynamic_nodes[index - plan->nodes.size()];
  }
  UnitId unit_of(uint32_t node_index) const {
    return node_index < plan->nodes.size() ? node_index
                                           : dynamic_units[node_index - plan->nodes.size()];
  }
};

/// The unused part of a GPU.
struct FreeGpu {
  int32_t milli_free = 0;
  int64_t memory_free_bytes = 0;  // without the gpu_memory of running attempts
  bool operator==(const FreeGpu&) const = default;
};

/// The unused resources of a worker. Short units may be assigned beyond the slots: cpus_free_milli
/// is then negative.
struct FreeResources {
  int32_t cpus_free_milli = 0;
  int64_t memory_free_bytes = 0;
  uint32_t units = 0;                     // running units but services; each rank counts
  uint32_t alone = 0;                     // running units with runs_alone
  int32_t long_milli = 0;                 // CPUs of units that are not known to be short
  uint32_t short_units = 0;               // running units that are known to be short
  uint64_t short_us = 0;                  // sum of their expected durations
  std::vector<FreeGpu> gpus;              // in the worker's order
  ResourceQuantities custom_resources{};  // all of the worker's names, also those with 0 free
  bool operator==(const FreeResources&) const = default;
};

/// A unit whose last attempt on a worker failed there.
struct FailedUnit {
  RunId run;
  UnitId unit = 0;
  uint32_t def = 0;
  bool operator==(const FailedUnit&) const = default;
};
/// A worker on which this many different tasks fail in a row is set aside for kAsideMs; then it
/// runs one task at a time until one succeeds.
constexpr size_t kFailuresInRow = 3;
constexpr Time kAsideMs = 60'000;
/// Maximum number of failed attempts that a unit remembers.
constexpr size_t kFailedKept = 16;

/// A worker. A disconnected one takes no new attempts, and its attempts keep running until it
/// rejoins or is lost. A lost one keeps its id while a unit refers to it.
struct WorkerState {
  WorkerInfo info;
  bool is_up = true;
  bool is_disconnected = false;      // not up, and its lease still runs
  bool is_draining = false;          // takes no new attempts and will leave
  Time changed = 0;                  // last time that an attempt began or ended, or that it joined
  std::vector<FailedUnit> failures;  // newest different failed units since the last success
  Time aside_until = 0;              // 0: not set aside
  uint32_t aside_serial = 0;         // serial number of its newest timer
  FreeResources free;                // derived
  bool is_lost() const { return !is_up && !is_disconnected; }
  bool takes_attempts() const { return is_up && !is_draining; }
};
constexpr size_t kWorkersMax = 4096;
constexpr size_t kOffersMax = 65'536;  // attempts that a joining worker may offer
constexpr size_t kLabelsMax = 64;      // labels of one worker

/// Sum and minimum of the capacities of all workers that have CPUs and are not lost.
struct ClusterCapacity {
  int64_t cpus_milli = 0;
  int32_t cpus_milli_min = 0;
  int64_t memory_bytes_min = 0;
  bool operator==(const ClusterCapacity&) const = default;
};

/// A time in which a worker had GPUs that attempts could get.
struct GpuPresence {
  Time from = 0, until = 0;                            // until 0: it still has them
  std::string worker;                                  // "": the engine's own machine
  std::vector<std::pair<std::string, uint32_t>> gpus;  // number by model, sorted; never empty
  bool operator==(const GpuPresence&) const = default;
};
/// Maximum number of those that have ended: the newest ones are kept.
constexpr size_t kPresencesMax = 4096;

struct State {
  // Essential fields; a snapshot holds them.
  uint64_t epoch = 0;
  uint64_t sequence = 0;                // of the last applied record
  Time at = 0;                          // time of that record; the scheduler's current time
  std::vector<WorkerState> workers{1};  // the first is the engine's own machine
  bool leads_workers = false;           // workers may join: requests may exceed today's capacity
  // The death of a service that was ready costs no retry. Not so in the records of older engines.
  bool restarts_services = false;
  uint32_t announced = 0;              // number of workers that will join in all
  std::map<RunId, Run> runs;           // runs that are not archived
  std::vector<GpuPresence> presences;  // by `from`; see presence.cc
  Time presences_since = 0;            // what was before is not known

  // Derived fields.
  ClusterCapacity capacity;
  std::set<ReadyHead> ready;
  KeyTable computing;
  std::map<Digest, std::set<std::pair<RunId, UnitId>>> key_waiters;  // units in phase coalesced
  std::unordered_map<uint32_t, RunId> run_numbers;
  uint32_t next_run_number = 1;
};

/// Whether the event may enter the journal. Rejects late and duplicate reports, invalid events, and
/// reports of any attempt but the current one.
bool admit(const State& state, const Event& event);
/// Applies a record and appends commands to `out`. Total: it cannot fail or block. The same
/// function serves live operation, recovery and simulation.
void apply(State& state, const Record& record, std::vector<Command>& out);
/// Checks every invariant of State. Returns "" or a description of the violated one.
std::string check_invariants(const State& state);
/// The unit that holds a key for this run only (kNoNode if none), or for all runs (null if none).
UnitId own_holder(const Run& run, const Digest& key);
const KeyTable::Holder* shared_holder(const State& state, const Digest& key);
/// For a snapshot of a flow that kept no presences: those of the workers of the state begin now.
void begin_presences(State& state);
/// Recomputes all derived fields: after a snapshot was decoded or a run was added.
void rebuild_derived(State& state);

// ---- functions on a run
// ---------------------------------------------------------------------------------------------

/// "`w1`", or "this machine" for the engine's own.
std::string worker_text(const State& state, WorkerId worker);
/// "train", "train#2[1]", "search/best", and "digits[0]" for the first replica of a service. It
/// never has a tag: it names steps, checkpoints and seeds.
std::string unit_name(const Run& run, UnitId unit);
/// The unit's tag; "" if it has none.
const std::string& tag_of(const Run& run, UnitId unit);
/// The name for people: "align[s3]" with a tag, else unit_name.
std::string shown_name(const Run& run, UnitId unit);
/// The task's definition, or null for a when.
const TaskDef* def_of(const Run& run, UnitId unit);
/// Whether counts and task lists include the unit: tasks, instances, and maps without instances
/// yet.
bool is_counted(const Run& run, UnitId unit);
/// Whether the unit runs attempts of a service. The own unit of a replicated service does not.
bool is_service(const Run& run, UnitId unit);
/// Whether the unit is the own one of a service with more than one replica. Its replicas are its
/// instances, and it is satisfied when the first of them is ready.
bool is_replica_set(const Run& run, UnitId unit);
/// Whether the unit failed and the run continues with flow.missing as its result.
inline bool is_ignored(const Unit& unit) {
  return unit.gives_missing && unit.status == UnitStatus::failed;
}
/// Whether the unit is a service that is ready.
inline bool is_up(const Unit& unit) {
  return unit.phase == Phase::running && unit.detail && !unit.detail->url.empty();
}
/// What the unit's newest attempt used, as far as it is known.
AttemptTimes times_of(const Run& run, UnitId unit);
AttemptTotals totals_of(const Run& run, UnitId unit);
/// What the running attempt of the unit has held until then, if it ends with this outcome: an entry
/// per set of labels of its workers.
std::vector<Consumption> consumption_of_attempt(const State& state, const Run& run, UnitId unit,
                                                AttemptEnding outcome, Time until);
/// What all ended attempts of the unit held. Empty for a cached unit that had none.
std::vector<Consumption> consumption_of(const Run& run, UnitId unit);
/// The instances of an expanded map, or the replicas of a service, in order.
const std::vector<UnitId>& instances_of(const Run& run, UnitId map_unit);
/// Whether the unit's result is an input of another node or part of the run's result.
bool has_consumers(const Run& run, UnitId unit);
/// The value that a dynamic unit returned, with refs that name units; null before it is known.
const Value* dynamic_value(const Run& run, UnitId unit);
/// The map of this instance if the map limits its running instances; else kNoNode.
UnitId limited_map_of(const Run& run, UnitId unit);
/// Whether the task runs on the engine's own machine only: native tasks.
bool is_head_only(const TaskDef& def);
/// The requested resources and the timeout of the unit's newest attempt, or of its next one if that
/// is ready: those of the definition, or what its resource functions returned.
const Resources& resources_of(const Run& run, UnitId unit);
int64_t timeout_ms_of(const Run& run, UnitId unit);
/// The memory or CPUs that a function asked for and the engine's own machine lacks, as a clause; ""
/// if it has them, or if workers may join, for one of which the unit then waits.
std::string too_large_reason(const State& state, const TaskDef& def, const Resources& requested);
/// The resources that an attempt of the unit requests. Memory grows after each out-of-memory
/// failure. CPUs are clamped to the run's jobs and to the largest worker that has the memory and
/// the GPUs (disconnected ones count); if no worker has a CPU, the unit waits for one. A service
/// takes no CPU slot, because it would hold the slot as long as its run. A native task takes the
/// CPUs that its machine has, at most those requested.
SchedulingClass resource_request(const State& state, const Run& run, UnitId unit);
/// The resources that a running attempt of the unit (one rank of a gang) holds: on `worker`, or on
/// the worker of the unit or its rank 0.
SchedulingClass held_on(const WorkerInfo& worker, const Run& run, UnitId unit);
SchedulingClass held_by(const State& state, const Run& run, UnitId unit);
/// Whether the limits of the run and its map allow one more unit; `fits` checks the worker. The
/// scheduler and admit use the same rules.
bool may_start(const State& state, const Run& run, const SchedulingClass& request,
               int32_t run_cpus_used_milli, uint32_t map_running);
/// Whether the worker is avoided for this request: two attempts failed there with the cause
/// staging or one with the cause environment, or the worker is set aside, and another worker has
/// the capacity (it may be full or disconnected now). `units` is the number of units that run on
/// the worker.
bool is_avoided(const State& state, WorkerId at, const SchedulingClass& request, uint32_t units);
bool is_set_aside(const WorkerState& worker, uint32_t units);
/// Whether runs_alone of the request and of the running units allows sharing the worker.
bool may_share(const FreeResources& free, const SchedulingClass& request);
/// Whether so many workers died while they ran the unit that its next attempt runs alone.
bool is_suspect(const Unit& unit);
bool fits(const State& state, WorkerId at, const FreeResources& free,
          const SchedulingClass& request, uint32_t expected_us);
/// Expected duration of an attempt in us if the unit is known to be short and requests only CPUs;
/// else 0.
uint32_t expected_short_us(const Run& run, UnitId unit);
/// The id of the unit's next attempt.
AttemptId next_attempt(const State& state, const Run& run, UnitId unit);
/// The id of the unit's current attempt.
AttemptId current_attempt(const Run& run, UnitId unit);

constexpr int kRequeuesBits = 16;
/// Unique over the state's lifetime, so that a duplicate report of a requeued attempt is not taken
/// for a report of the next attempt with the same number.
inline uint64_t fencing_token(uint64_t epoch, uint16_t requeues) {
  return epoch << kRequeuesBits | requeues;
}

}  // namespace flow::core
