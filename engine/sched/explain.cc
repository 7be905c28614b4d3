// Explains in words why a unit is not running.
#include <algorithm>
#include <map>

#include "engine/base/files.hpp"
#include "engine/base/size_units.hpp"
#include "engine/core/gangs.hpp"
#include "engine/core/graph.hpp"
#include "engine/core/rollover.hpp"
#include "engine/core/scaling.hpp"
#include "engine/sched/binding.hpp"
#include "engine/sched/gang_placement.hpp"
#include "engine/sched/sched.hpp"

namespace flow::core {

namespace {

constexpr size_t kWorkersShownMax = 8;

/// "2026-11-21 05:17:00 UTC"
std::string utc(Time at_ms) {
  std::string text = format_time(at_ms);
  text.resize(text.rfind('.'));
  text[text.find('T')] = ' ';
  return text + " UTC";
}

/// The rest is the trace of an error of the script.
std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

/// The run that serves the name of `run` beside it.
std::string served_run(const State& state, const Run& run) {
  if (!run.rollover.previous.empty()) return run.rollover.previous;
  for (const auto& [id, other] : state.runs)
    if (other.name == run.name && other.rollover.phase == RolloverPhase::done) return id;
  return "of its name";
}

std::string open_edges(const Run& run, UnitId unit, const std::vector<Edge>& edges) {
  NameList inputs, branches;
  for (const Edge& edge : edges) {
    if (is_satisfied(run, unit, edge)) continue;
    (edge.guard ? branches : inputs).add(quoted(run, edge.from));
  }
  if (inputs.empty()) return "it waits for " + branches.text() + " to choose a branch";
  if (branches.empty()) return "it waits for " + inputs.text();
  return "it waits for " + inputs.text() + ", and for " + branches.text() + " to choose a branch";
}

/// The units that hold a run's CPU slots.
std::string slot_holders(const Run& run) {
  NameList names;
  for (UnitId unit = 0; unit < run.units.size(); unit++) {
    bool holds = run.units[unit].phase == Phase::running && !is_service(run, unit);
    if (holds) names.add(quoted(run, unit));
  }
  return names.empty() ? "no task" : names.text();
}

std::string name_of(const State& state, WorkerId at) {
  return at == 0 ? "this machine" : "`" + state.workers[at].info.name + "`";
}

/// Whether units with this request may run on the worker at all.
bool is_for(const State& state, WorkerId at, const SchedulingClass& request) {
  if (request.is_head_only) return at == 0;
  return state.workers[at].info.cpus_milli > 0 || request.cpus_milli == 0;
}

/// The constraint that keeps a unit, or one more rank of a gang, from a worker.
struct WorkerConstraint {
  WorkerId worker = 0;
  uint32_t ranks = 0;  // of a gang: how many ranks fit there now
  std::string constraint, why;
};

/// The constraints of all workers that are not lost and on which the unit may run.
std::vector<WorkerConstraint> constraints_by_worker(const State& state,
                                                    const SchedulingClass& request) {
  BlockingUnits blocking_units(state);
  std::vector<WorkerConstraint> waits;
  for (size_t i = 0; i < state.workers.size(); i++) {
    auto at = static_cast<WorkerId>(i);
    const WorkerState& worker = state.workers[i];
    if (worker.is_lost() || !is_for(state, at, request)) continue;
    WorkerConstraint wait;
    wait.worker = at;
    if (request.is_gang()) wait.ranks = placeable_ranks(state, at, worker.free, request);
    BindingConstraint binding = binding_constraint(state, blocking_units, at, request, wait.ranks);
    wait.constraint = std::move(binding.constraint);
    wait.why = std::move(binding.why);
    waits.push_back(std::move(wait));
  }
  return waits;
}

/// "it starts next", or the unit for which the resources are reserved.
std::string why_not_yet(const State& state, const Run& run, const SchedulingClass& request) {
  auto owner = reserved_for(state, run.id, request);
  if (!owner) return "it starts next";
  const Run& other = state.runs.at(owner->run);
  std::string name = quoted(other, owner->unit) + of_run(state, other);
  if (owner->request.is_gang()) {
    return name + " needs " + std::to_string(owner->request.ranks) +
           " ranks at once, and the free resources are reserved for them";
  }
  return name + ", which comes before it, asks for " + words_of(owner->request) +
         ", and the free resources are reserved for it";
}

std::string constraint_summary(const std::string& constraint) {
  if (constraint == "cpus") return "too few CPUs";
  if (constraint == "memory") return "too little memory";
  if (constraint == "gpus") return "too few suitable GPUs";
  if (constraint == "where") return "other labels";
  if (constraint == "draining") return "about to leave";
  if (constraint == "staging") return "attempts that failed there";
  if (constraint == "aside") return "many tasks that failed there";
  if (constraint == "alone") return "other tasks with which it may not share a worker";
  return "too little `" + constraint + "`";
}

/// "; and on 9 more: 5 have too few CPUs, …", the most frequent first.
std::string summary_of(const std::vector<WorkerConstraint>& rest, bool is_gang) {
  if (rest.empty()) return "";
  std::map<std::string, size_t> counts;
  uint64_t ranks = 0;
  for (const WorkerConstraint& wait : rest) {
    counts[constraint_summary(wait.constraint)]++;
    ranks += wait.ranks;
  }
  std::vector<std::pair<std::string, size_t>> summaries(counts.begin(), counts.end());
  std::stable_sort(summaries.begin(), summaries.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  std::string text = "; and on " + std::to_string(rest.size()) + " more" +
                     (is_gang ? " for " + std::to_string(ranks) : "");
  const char* before = ": ";
  for (const auto& [summary, count] : summaries) {
    text += before + summary + " on " + std::to_string(count);
    before = ", ";
  }
  return text;
}

/// "on this machine: it asks for 1 CPU; …; on `w1`: …; and on 9 more: …; it also waits for `w2`"
std::string each_worker(const State& state, const std::vector<WorkerConstraint>& waits,
                        bool is_gang) {
  std::string text;
  NameList disconnected;
  std::vector<WorkerConstraint> rest;
  size_t shown = 0;
  for (const WorkerConstraint& wait : waits) {
    if (wait.constraint == "away") {
      disconnected.add("`" + state.workers[wait.worker].info.name + "`");
    } else if (++shown > kWorkersShownMax) {
      rest.push_back(wait);
    } else {
      text += (text.empty() ? "on " : "; on ") + name_of(state, wait.worker) +
              (is_gang ? " for " + std::to_string(wait.ranks) : "") + ": " + wait.why;
    }
  }
  text += summary_of(rest, is_gang);
  if (disconnected.empty()) return text;
  return text + (text.empty() ? "it waits for " : "; it also waits for ") + disconnected.text() +
         " to reconnect";
}

/// "no worker has joined", "the workers `a` and `b` were lost, and no other has joined"
std::string no_worker(const State& state) {
  NameList lost;
  size_t count = 0;
  for (size_t i = 1; i < state.workers.size(); i++) {
    if (!state.workers[i].is_lost()) continue;
    lost.add(name_of(state, static_cast<WorkerId>(i)));
    count++;
  }
  if (count == 0) return "no worker has joined";
  return (count == 1 ? "the worker " : "the workers ") + lost.text() +
         (count == 1 ? " was" : " were") + " lost, and no other has joined";
}

/// "; 2 of the 4 expected workers have not joined"
std::string awaited_workers_text(const State& state) {
  uint32_t missing = missing_workers(state);
  if (missing == 0) return "";
  return "; " + std::to_string(missing) + " of the " + std::to_string(state.announced) +
         " expected workers " + (missing == 1 ? "has" : "have") + " not joined";
}

/// "it needs 4 ranks at once, each with 2 CPUs; there is room on `a` for 2: one more asks for …"
std::string why_no_gang(const State& state, const Run& run, const SchedulingClass& request) {
  std::vector<WorkerConstraint> waits = constraints_by_worker(state, request);
  uint64_t ranks = 0;
  for (const WorkerConstraint& wait : waits) ranks += wait.ranks;
  if (ranks >= request.ranks) return why_not_yet(state, run, request);
  std::string request_text = "it needs " + std::to_string(request.ranks) +
                             " ranks at once, each with " + words_of(request);
  if (waits.empty()) return request_text + "; " + no_worker(state) + awaited_workers_text(state);
  return request_text + ", and there is room for " + std::to_string(ranks) + "; " +
         each_worker(state, waits, true) + awaited_workers_text(state);
}

/// The binding constraint of each worker, or "it starts next".
std::string why_on_no_worker(const State& state, const Run& run, const SchedulingClass& request) {
  std::vector<WorkerConstraint> waits = constraints_by_worker(state, request);
  for (const WorkerConstraint& wait : waits)
    if (wait.constraint.empty()) return why_not_yet(state, run, request);
  bool is_alone = state.workers.size() == 1 && waits.size() == 1;
  if (is_alone) return waits[0].why;
  if (!waits.empty()) return each_worker(state, waits, false);
  return no_worker(state) +
         ": start `flow worker --join ADDRESS` on a machine with these resources";
}

/// "; 29 ready tasks of run r, which was submitted before, come first"
std::string preceding_tasks(const State& state, const Run& run, const SchedulingClass& request) {
  constexpr size_t kRunsNamed = 3;
  std::string text;
  size_t runs = 0, others = 0;
  for (const auto& [id, other] : state.runs) {
    if (&other == &run) continue;
    size_t count = 0, prior = 0;
    for (const auto& [other_request, units] : other.ready) {
      bool is_prior = other_request.priority > request.priority;
      bool is_first = is_prior || (other_request.priority == request.priority && id < run.id);
      if (other_request.is_head_only || !is_first) continue;
      count += units.size();
      prior += is_prior ? units.size() : 0;
    }
    if (count == 0) continue;
    if (++runs > kRunsNamed) {
      others += count;
      continue;
    }
    text += "; " + std::to_string(count) +
            (count == 1 ? " ready task of run " : " ready tasks of run ") + id +
            (prior == count ? ", of a higher priority, " : ", which was submitted before, ") +
            (count == 1 ? "comes first" : "come first");
  }
  if (others > 0) text += "; and " + std::to_string(others) + " of other runs";
  return text;
}

std::string why_ready(const State& state, const Run& run, UnitId unit) {
  SchedulingClass request = resource_request(state, run, unit);
  if (request.limited_map != kNoNode) {
    uint32_t limit = run.node(run.units[request.limited_map].node).detail().limit;
    auto running = run.map_running.find(request.limited_map);
    if (running != run.map_running.end() && running->second >= limit) {
      return quoted(run, request.limited_map) + " runs at most " + std::to_string(limit) +
             " instances at once, and that many run";
    }
  }
  if (!may_start(state, run, request, run.cpus_used_milli, 0)) {
    return "its run has " + std::to_string(run.jobs) + " CPU slots, held by " + slot_holders(run);
  }
  std::string text =
      request.is_gang() ? why_no_gang(state, run, request) : why_on_no_worker(state, run, request);
  return text + preceding_tasks(state, run, request);
}

std::string why_coalesced(const State& state, const Run& run, const Unit& u) {
  UnitId own = own_holder(run, u.key);
  if (own != kNoNode) {
    return quoted(run, own) + " computes the same (equal code and inputs); its result will be used";
  }
  const KeyTable::Holder* shared = shared_holder(state, u.key);
  if (shared == nullptr) return "another task computes the same";
  auto [number, unit] = *shared;
  const RunId& id = state.run_numbers.at(number);
  const Run& other = state.runs.at(id);
  std::string of_run = &other == &run ? "" : " of run " + id;
  return quoted(other, unit) + of_run +
         " computes the same (equal code and inputs); its result will be used";
}

/// Of a replica that is not in use.
std::string why_spare(const Run& run, UnitId unit) {
  UnitId set = run.unit_of(run.units[unit].node);
  const ServiceSpec& service = def_of(run, set)->service;
  return "it is not needed: at its present load " + quoted(run, set) + " has " +
         std::to_string(replicas_in_use(run, set)) + " of " + std::to_string(service.replicas) +
         " to " + std::to_string(service.scaling.max) + " replicas";
}

std::string why_running(const State& state, const Unit& u) {
  for (WorkerId worker : workers_of(u)) {
    if (state.workers[worker].is_disconnected)
      return "it runs on " + name_of(state, worker) +
             ", which is disconnected: it continues if that worker reconnects in time";
  }
  if (!u.detail || u.detail->others.empty()) return "it runs";
  std::string text = "it runs as " + std::to_string(u.detail->others.size() + 1) + " ranks";
  if (u.detail->is_resizing) return text + ", and was asked to stop, to restart with more";
  if (u.detail->grew_from == 0) return text;
  return text + ": it restarted when there was room for more than " +
         std::to_string(u.detail->grew_from);
}

}  // namespace

std::string restarts_text(const Unit& unit) {
  if (!unit.detail || unit.detail->restarts == 0) return "";
  uint32_t count = unit.detail->restarts;
  std::string times = count == 1 ? "once" : std::to_string(count) + " times";
  return "restarted " + times + ", last: " + first_line(unit.detail->failure.message);
}

std::string explain_wait(const State& state, const RunId& run_id, UnitId unit) {
  auto found = state.runs.find(run_id);
  if (found == state.runs.end()) return "the run " + run_id + " is not active";
  const Run& run = found->second;
  if (unit >= run.units.size()) return "the run " + run_id + " has no such task";
  const Unit& u = run.units[unit];
  std::vector<Edge> edges;
  switch (u.phase) {
    case Phase::waiting_for_dependencies:
      EdgeReader(run).before(unit, edges);
      return open_edges(run, unit, edges);
    case Phase::branch:
      result_edges(run, unit, edges);
      return open_edges(run, unit, edges) + ", which its result names";
    case Phase::instances: {
      NameList open;
      for (UnitId instance : instances_of(run, unit)) {
        bool is_open = !is_final(run.units[instance].status) && !is_spare(run, instance);
        if (is_open) open.add(quoted(run, instance));
      }
      const char* what = is_replica_set(run, unit) ? "its replicas " : "its instances ";
      return "it waits for " + (what + open.text());
    }
    case Phase::resolving:
      return "its inputs are being read";
    case Phase::gathering:
      return "its result is being assembled";
    case Phase::parked:
      if (is_spare(run, unit)) return why_spare(run, unit);
      if (is_held_back(run, unit))
        return "it has `rollover = \"replace\"`: it starts when the version before, run " +
               served_run(state, run) + ", has ended";
      if (run.budget && run.budget->is_spent)
        return "its run has used up its budget: `flow resume " + run_id +
               "` with a larger --budget continues it";
      return run.status == RunStatus::interrupted
                 ? "its run was interrupted: `flow resume " + run_id + "` continues it"
                 : "its run is being stopped";
    case Phase::sizing:
      return "the functions of its resource options are being called";
    case Phase::coalesced:
      return why_coalesced(state, run, u);
    case Phase::ready:
      return why_ready(state, run, unit);
    case Phase::signal: {
      std::string text = "it waits for the signal `" + u.detail->waiting_for + "`";
      Time deadline = u.detail->waits.at(u.detail->wait_name).first;
      if (deadline != 0) text += " until " + utc(deadline);
      return text + ": `flow signal " + run_id + " " + quote_shell(u.detail->waiting_for) +
             "` sends it";
    }
    case Phase::backoff:
      return "its attempt " + std::to_string(u.attempts) + " failed" +
             (u.detail->failed.empty()
                  ? ""
                  : " on " + worker_text(state, u.detail->failed.back().worker)) +
             " (" + first_line(u.detail->failure.message) + "); the next starts at " +
             utc(u.detail->retry_at);
    case Phase::running:
      if (is_spare(run, unit)) return why_spare(run, unit) + "; it answers its last requests";
      return why_running(state, u);
    case Phase::done:
      if (u.status == UnitStatus::skipped && !u.detail)
        return "it was skipped: its branch was not taken";
      if (u.status != UnitStatus::succeeded && u.detail && !u.detail->failure.message.empty()) {
        return std::string("it ") +
               (u.status == UnitStatus::failed ? "failed: " : "did not run: ") +
               u.detail->failure.message;
      }
      return std::string("it is ") + status_name(u.status);
  }
  return "";
}

}  // namespace flow::core
