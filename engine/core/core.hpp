// The pure state machine. No clock, disk, thread, log or random number; no order that is an
// address.
#pragma once
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/core/types.hpp"

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

/// One schedulable instance. A task node has one unit; a map has one for itself and one an
/// instance; a when has one. Kept small: a million of these are a run.
struct Unit {
  uint32_t node = 0;
  int32_t instance = -1;  // of a map, from 0; -1 for the node's own unit
  UnitStatus status = UnitStatus::pending;
  bool cached = false;    // an earlier result served
  bool resolved = false;  // key is known
  bool forced = false;    // retry RUN TASK: ignore the cache once and replace its entry
  uint32_t attempts = 0;  // started, over the unit's life
  uint32_t waits_on = 0;  // edges not yet satisfied
  uint32_t timer_serial = 0;
  uint64_t epoch = 0;  // of the current attempt
  Digest key;
  Digest result;
  Time started = 0, finished = 0;
  std::shared_ptr<struct UnitExtra>
      extra;  // what few units have: failure, budgets, waits, service url
};

/// The rare part of a unit.
struct UnitExtra {
  Failure failure;
  uint32_t failures = 0, ooms = 0, infra = 0;          // spent of each budget
  std::map<std::string, std::pair<Time, bool>> waits;  // wait name -> deadline (0 none), expired
  std::string waiting_for;                             // signal
  Time retry_at = 0;
  std::string url;               // of a ready service
  UnitId computed_by = kNoNode;  // another unit of this run that has the same key
};

struct RunCounts {
  uint32_t succeeded = 0, cached = 0, failed = 0, skipped = 0, cancelled = 0, pending = 0,
           ready = 0, running = 0, waiting = 0;
};

struct Run {
  RunId id;
  std::string name;
  RunStatus status = RunStatus::pending;
  Time submitted = 0, finished = 0;
  Digest plan_digest;
  std::shared_ptr<const Plan> plan;
  std::vector<Node> extra_nodes;  // of dynamic tasks: node index continues after plan->nodes
  std::vector<Unit> units;  // the first plan->nodes.size() are the nodes' own, then expansions
  std::vector<std::vector<UnitId>> takers;  // unit -> units that wait on it
  RunCounts counts;                         // of task units, as the contract's JSON counts them
  std::map<std::string, Digest> signals;    // first of each name
  int32_t jobs = 0;
  bool fail_fast = false, fresh = false, stopping = false, cancelling = false;
  const Node& node(uint32_t index) const {
    return index < plan->nodes.size() ? plan->nodes[index]
                                      : extra_nodes[index - plan->nodes.size()];
  }
};

struct State {
  uint64_t epoch = 0;
  uint64_t sequence = 0;  // of the last applied record
  int32_t cpus_milli = 0, cpus_free_milli = 0;
  int64_t memory_bytes = 0, memory_free_bytes = 0;
  std::map<RunId, Run> runs;  // those not yet folded
  // The scheduler's view: ready units by (priority desc, run, unit), and what computes each key.
  std::set<std::tuple<int32_t, RunId, UnitId>> ready;
  std::map<Digest, std::pair<RunId, UnitId>> computing;
};

/// May this enter the journal? Stops stragglers, repeats, nonsense, and any attempt but the current
/// one.
bool admit(const State& state, const Event& event);
/// Total: cannot fail, cannot wait. The one apply for live, recovery and simulation.
void apply(State& state, const Record& record, std::vector<Command>& out);
/// Every promise about State that must hold after every event; "" or what is broken.
std::string check_invariants(const State& state);

}  // namespace flow::core
