// The pure state machine. No clock, disk, thread, log or random number; no order that is an
// address.
#pragma once
#include <array>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/core/key_table.hpp"
#include "engine/core/types.hpp"
#include "engine/core/unit_set.hpp"
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

/// Where a unit is on its way, in finer steps than its status. What it waits for decides.
enum class Phase : uint8_t {
  waiting_for_dependencies,  // the units it takes from, its `after`, its branch
  resolving,                 // the answer to ResolveInputs, ExpandMap or ResolveWhen
  parked,     // its run to be taken up again: nothing is asked or started while a run stops
  coalesced,  // another unit that computes the same key
  ready,      // a slot
  running,    // its attempt
  signal,     // ctx:wait
  backoff,    // the time of the next attempt
  instances,  // map: its instances
  branch,     // when: what the taken branch returned; dynamic: what its result names
  gathering,  // the answer to GatherValue
  done,
};
constexpr size_t kPhases = 12;

enum class Branch : uint8_t { unknown, then_branch, else_branch };

/// Which others with the same key wait for this unit: those of every run, of its own run, or none.
enum class KeyScope : uint8_t { none, shared, own };

/// One schedulable instance. A task node has one unit; a map has one for itself and one an
/// instance; a when has one. Kept small: a million of these are a run.
struct Unit {
  uint32_t node = 0;
  int32_t instance = -1;  // of a map, from 0; -1 for the node's own unit
  UnitStatus status = UnitStatus::pending;
  Phase phase = Phase::waiting_for_dependencies;
  Branch branch = Branch::unknown;      // when: the branch it chose
  KeyScope key_scope = KeyScope::none;  // of its key (derived)
  bool cached = false;                  // an earlier result served
  bool resolved = false;                // key is known
  bool forced = false;     // retry RUN TASK: ignore the cache once and replace its entry
  bool satisfied = false;  // its takers were told: it succeeded, or its service is ready
  bool expanded = false;   // map, dynamic: its instances, its calls are units
  bool dropped = false;    // of an expansion or a call list that a later one replaced
  uint16_t requeues = 0;   // how often its next attempt was given back unstarted
  WorkerId worker = 0;     // of its newest attempt
  uint32_t attempts = 0;   // started, over the unit's life
  uint32_t waits_on = 0;   // edges not yet satisfied (derived)
  uint32_t timer_serial = 0;
  uint32_t expected_us =
      0;               // running: how long it was expected to take; 0 where not known to be short
  uint64_t epoch = 0;  // fencing token of the current attempt
  Digest key;
  Digest result;
  Time started = 0, finished = 0;
  Time assigned = 0;  // its newest attempt
  std::shared_ptr<const struct UnitDetail>
      detail;  // what few units have: failure, budgets, waits, service url. May be shared by units
};
static_assert(sizeof(Unit) <= 160);

/// An attempt that failed, and where; of a gang, where the rank was that failed first.
struct FailedAttempt {
  uint32_t attempt = 0;
  WorkerId worker = 0;
  Cause cause = Cause::none;
  bool operator==(const FailedAttempt&) const = default;
};

/// A worker's process, or a GPU, that ended under an attempt.
struct Death {
  WorkerId worker = 0;
  uint64_t record = 0;  // the same for all units that shared the host then
  bool is_gpu = false;
  std::string co_located;  // the other units there: "`a`, `b` and 2 more"; empty: none
  bool operator==(const Death&) const = default;
};

/// The rare part of a unit.
struct UnitDetail {
  Failure failure;
  uint32_t failures = 0, ooms = 0, infra = 0;  // spent of each budget
  std::vector<Death> deaths;          // since it saved something; at most kLostMax and infra
  std::vector<FailedAttempt> failed;  // where there are workers: the newest kFailedKept
  bool runs_alone = false;            // its newest attempt has its hosts to itself
  std::map<std::string, std::pair<Time, bool>> waits;  // wait name -> deadline (0 none), expired
  std::string waiting_for;                             // signal
  std::string wait_name;                               // the wait that waits for it
  Time retry_at = 0;                                   // of a backoff
  std::string url;                                     // of a ready service
  UnitId computed_by = kNoNode;   // another unit of this run that has the same key
  std::vector<std::string> gpus;  // UUIDs of what its newest attempt was given
  // Of a gang's newest attempt. Rank 0 is where the unit says.
  std::vector<Placement> others;
  Share share;
  bool is_resizing = false;  // it was asked to stop, to begin again with more ranks
  uint32_t grew_from = 0;    // it did so: as many ranks as this had the attempt before; else 0
};

/// Of counted units (see is_counted): what a run's JSON counts.
struct RunCounts {
  uint32_t succeeded = 0, cached = 0, failed = 0, skipped = 0, cancelled = 0, pending = 0,
           ready = 0, running = 0, waiting = 0;
  bool operator==(const RunCounts&) const = default;
};

/// The calls that a dynamic unit's attempt (or the cache) came to, as nodes and units of the run.
struct DynamicCalls {
  UnitId unit = 0;  // the dynamic task's own
  Digest fragment_digest;
  std::shared_ptr<const PlanFragment> fragment;
  uint32_t first_node = 0;  // of the run
  UnitId first_unit = 0;    // fragment node i is unit first_unit + i
  Value value;              // the dynamic task's result, with refs that name units (derived)
};

/// Ready units that ask for the same and are bounded by the same: the scheduler looks at one of
/// each.
struct SchedulingClass {
  int32_t priority = 0;
  int32_t cpus_milli = 0;
  int64_t memory_bytes = 0;
  GpuRequest gpu;
  std::string where;  // label expression
  ResourceQuantities custom_resources;
  UnitId limited_map = kNoNode;
  bool is_head_only = false;          // runs on the engine's own machine only
  bool runs_alone = false;            // takes a host on which nothing runs, and lets nothing on it
  uint32_t ranks = 1, ranks_max = 1;  // of a gang; each asks for the above
  /// Hosts where an attempt failed, sorted. One is named twice where two attempts failed there with
  /// the cause staging.
  std::vector<WorkerId> failed_on;
  bool is_gang() const { return ranks_max > 1; }
  auto operator<=>(const SchedulingClass&) const = default;
};

/// The first ready unit of each class, in the order in which they are to start.
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

/// Who takes from whom, by unit. A guard edge (a node of a branch waits for its when) is marked.
struct Dependents {
  static constexpr uint32_t kGuard = uint32_t{1} << 31;
  std::vector<uint32_t> offsets;  // of unit u: flat[offsets[u]] to flat[offsets[u + 1]]
  std::vector<uint32_t> flat;
  std::map<UnitId, std::vector<uint32_t>> late;  // of units and edges that came later
};

struct Run {
  // Essential: what a snapshot holds.
  RunId id;
  std::string name;
  RunStatus status = RunStatus::pending;
  Time submitted = 0, finished = 0;
  Digest plan_digest;
  std::shared_ptr<const Plan> plan;
  std::vector<Unit> units;  // the first plan->nodes.size() are the nodes' own, then expansions
  std::vector<DynamicCalls> dynamics;     // in the order in which their nodes were appended
  std::map<std::string, Digest> signals;  // first of each name
  std::vector<uint32_t>
      durations_us;  // of each definition: moving average of an attempt, 0 unknown
  std::map<uint32_t, WorkerId>
      failed_defs;  // definition -> the one host where it failed, or kWorkersMax
  Digest result;
  bool has_result = false;
  int32_t jobs = 0;
  bool fail_fast = false, fresh = false, stopping = false, cancelling = false;
  bool stop_requested = false;  // by somebody: a worker that comes back is to stop its attempts too
  bool ending = false;          // its services are being stopped: only they were left
  bool gathering = false;       // the answer to GatherValue for its result is owed

  // Derived: rebuild_derived makes these from the above.
  std::vector<TaskNode> dynamic_nodes;  // of dynamic tasks: node index continues after plan->nodes.
                                        // Their refs, `after` and guards name units of this run
  std::vector<UnitId> dynamic_units;    // the unit of each extra node
  Dependents dependents;
  std::vector<bool> is_consumed;  // by unit: its result is an input or part of the run's
  std::map<UnitId, std::vector<UnitId>> instances;  // of an expanded map, in order
  std::map<UnitId, size_t> dynamic_of;              // dynamic unit -> its newest in `dynamics`
  std::map<SchedulingClass, UnitSet> ready;
  KeyTable computing;                      // keys that serve this run only
  std::map<UnitId, uint32_t> map_running;  // running instances of limited maps
  std::map<std::string, std::set<UnitId>> signal_waiters;
  std::vector<UnitId> services;
  RunCounts counts;
  std::array<uint32_t, kPhases> phases{};  // units in each phase, dropped ones left out
  uint32_t open_services = 0, services_up = 0;
  uint32_t failed_units = 0;  // with those of maps and whens
  int32_t cpus_used_milli = 0;
  uint32_t number = 0;  // of this run in State::computing; never decides an order

  uint32_t phase_count(Phase phase) const { return phases[static_cast<size_t>(phase)]; }
  uint32_t open_units() const;  // not final
  const TaskNode& node(uint32_t index) const {
    return index < plan->nodes.size() ? plan->nodes[index]
                                      : dynamic_nodes[index - plan->nodes.size()];
  }
  UnitId unit_of(uint32_t node_index) const {
    return node_index < plan->nodes.size() ? node_index
                                           : dynamic_units[node_index - plan->nodes.size()];
  }
};

/// What is free of a device.
struct FreeGpu {
  int32_t milli_free = 0;
  int64_t memory_free_bytes = 0;  // of what attempts asked for with gpu_memory
  bool operator==(const FreeGpu&) const = default;
};

/// What is free. Short units may be assigned beyond the slots: cpus_free_milli is then negative.
struct FreeResources {
  int32_t cpus_free_milli = 0;
  int64_t memory_free_bytes = 0;
  uint32_t units = 0;                     // running, a gang's ranks each
  uint32_t alone = 0;                     // of these, those that have the host to themselves
  int32_t long_milli = 0;                 // held by units not known to be short
  uint32_t short_units = 0;               // running and known to be short
  uint64_t short_us = 0;                  // what these are expected to take
  std::vector<FreeGpu> gpus;              // in the order of the host's
  ResourceQuantities custom_resources{};  // as the host's, those of which nothing is free too
  bool operator==(const FreeResources&) const = default;
};

/// A machine that runs attempts. One that is awaited was up when the engine died, or was cut off:
/// it takes no new attempts, and what it runs goes on there. One that was lost keeps its place
/// while a unit names it, for when it comes back.
/// The last of a unit's attempts on a host failed there.
struct FailedUnit {
  RunId run;
  UnitId unit = 0;
  uint32_t def = 0;
  bool operator==(const FailedUnit&) const = default;
};
/// So many different tasks that fail in a row on one host set it aside, for so long; then it runs
/// one task at a time until one succeeds.
constexpr size_t kFailuresInRow = 3;
constexpr Time kAsideMs = 60'000;
/// Of a unit's attempts that failed, the newest that are remembered.
constexpr size_t kFailedKept = 16;

struct WorkerState {
  WorkerInfo info;
  bool is_up = true;
  bool is_disconnected = false;      // and not up
  bool is_draining = false;          // it is about to leave, and not lost
  Time changed = 0;                  // when something last began or ended there, or it came
  std::vector<FailedUnit> failures;  // since something succeeded there, different units, the newest
  Time aside_until = 0;              // 0: it is not set aside
  uint32_t aside_serial = 0;         // of its newest timer
  FreeResources free;                // derived
  bool is_lost() const { return !is_up && !is_disconnected; }
  bool takes_attempts() const { return is_up && !is_draining; }
};
constexpr size_t kWorkersMax = 4096;
constexpr size_t kOffersMax = 65'536;  // attempts of a worker that joins
constexpr size_t kLabelsMax = 64;      // of a worker

/// What the hosts that have CPUs and are not lost have: all together, and what each has at least.
struct ClusterCapacity {
  int64_t cpus_milli = 0;
  int32_t cpus_milli_min = 0;
  int64_t memory_bytes_min = 0;
  bool operator==(const ClusterCapacity&) const = default;
};

struct State {
  // Essential: what a snapshot holds.
  uint64_t epoch = 0;
  uint64_t sequence = 0;                // of the last applied record
  Time at = 0;                          // of it: what the scheduler takes for now
  std::vector<WorkerState> workers{1};  // the first is the engine's own machine
  bool leads_workers = false;           // others may join: what no host has is waited for
  uint32_t announced = 0;               // workers that are to join in all
  std::map<RunId, Run> runs;            // those not yet folded

  // Derived.
  ClusterCapacity capacity;
  std::set<ReadyHead> ready;
  KeyTable computing;
  std::map<Digest, std::set<std::pair<RunId, UnitId>>> key_waiters;  // those in phase elsewhere
  std::unordered_map<uint32_t, RunId> run_numbers;
  uint32_t next_run_number = 1;
};

/// May this enter the journal? Stops stragglers, repeats, nonsense, and any attempt but the current
/// one.
bool admit(const State& state, const Event& event);
/// Total: cannot fail, cannot wait. The one apply for live, recovery and simulation.
void apply(State& state, const Record& record, std::vector<Command>& out);
/// Every promise about State that must hold after every event; "" or what is broken.
std::string check_invariants(const State& state);
/// Who holds a key that serves this run only, or every run: kNoNode, or null.
UnitId own_holder(const Run& run, const Digest& key);
const KeyTable::Holder* shared_holder(const State& state, const Digest& key);
/// Makes every derived field anew from the essential ones: after a snapshot was decoded, or a run
/// put in.
void rebuild_derived(State& state);

// ---- questions about a run
// ---------------------------------------------------------------------------------------------

/// "`w1`", or of the engine's own machine "this machine".
std::string worker_text(const State& state, WorkerId worker);
/// "train", "train#2[1]", "search/best".
std::string unit_name(const Run& run, UnitId unit);
/// The task's definition, or null for a when.
const TaskDef* def_of(const Run& run, UnitId unit);
/// Counts and lists of tasks have it: every task, every instance, and a map until it has instances.
bool is_counted(const Run& run, UnitId unit);
bool is_service(const Run& run, UnitId unit);
/// The instances of an expanded map, in order.
const std::vector<UnitId>& instances_of(const Run& run, UnitId map_unit);
/// Whether anything takes the unit's result: another node, or the run's result.
bool has_consumers(const Run& run, UnitId unit);
/// What a dynamic unit returned, with refs that name units of the run; null before it is known.
const Value* dynamic_value(const Run& run, UnitId unit);
/// The map of which this is an instance, if it bounds how many run at once, or kNoNode.
UnitId limited_map_of(const Run& run, UnitId unit);
/// Native tasks run in the engine's own process, and a service's url is one of its machine.
bool is_head_only(const TaskDef& def);
/// What an attempt of the unit asks for: memory grown after each out of memory, cpus clamped to the
/// run's jobs and to the largest of the hosts that have the memory and the GPUs; those that are
/// awaited count. Where no host has a CPU it waits for one. A service takes no CPU slot: it would
/// hold it for ever. A native task takes of its machine's what there is, and where that has none
/// none.
SchedulingClass resource_request(const State& state, const Run& run, UnitId unit);
/// What a running attempt of the unit takes of a host, a rank of it of a gang's; or of the one that
/// it, or its rank 0, is on.
SchedulingClass held_on(const WorkerInfo& worker, const Run& run, UnitId unit);
SchedulingClass held_by(const State& state, const Run& run, UnitId unit);
/// Whether the run and its map let one more unit start, and whether the host has room for it, or
/// for a rank. The scheduler proposes and admit accepts by the same rules.
bool may_start(const State& state, const Run& run, const SchedulingClass& request,
               int32_t run_cpus_used_milli, uint32_t map_running);
/// Two attempts failed there with the cause staging, or the host is set aside; and there is another
/// host that it fits, though that may have no room now, or be away for a while. `units` run there.
bool is_avoided(const State& state, WorkerId at, const SchedulingClass& request, uint32_t units);
bool is_set_aside(const WorkerState& worker, uint32_t units);
/// Whether it may be on a host beside what runs there.
bool may_share(const FreeResources& free, const SchedulingClass& request);
/// Whether so many workers died under a unit that its next attempt runs alone.
bool is_suspect(const Unit& unit);
bool fits(const State& state, WorkerId at, const FreeResources& free,
          const SchedulingClass& request, uint32_t expected_us);
/// How long an attempt of the unit is expected to take where it is known to be short and asks for
/// nothing special, else 0.
uint32_t expected_short_us(const Run& run, UnitId unit);
/// The id of the unit's next attempt.
AttemptId next_attempt(const State& state, const Run& run, UnitId unit);
/// The id of the unit's current attempt.
AttemptId current_attempt(const Run& run, UnitId unit);

constexpr int kRequeuesBits = 16;
/// Unique for ever, so that a repeat of what was said of an attempt given back is not taken for the
/// next one of its number.
inline uint64_t fencing_token(uint64_t epoch, uint16_t requeues) {
  return epoch << kRequeuesBits | requeues;
}

}  // namespace flow::core
