#include "engine/sched/wait_explainer.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include "engine/base/files.hpp"
#include "engine/base/size_units.hpp"
#include "engine/core/gangs.hpp"
#include "engine/core/rollover.hpp"
#include "engine/core/scaling.hpp"
#include "engine/sched/gang_placement.hpp"

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

std::string name_of(const State& state, WorkerId at) {
  return at == 0 ? "this machine" : "`" + state.workers[at].info.name + "`";
}

/// Whether units with this request may run on the worker at all.
bool is_for(const State& state, WorkerId at, const SchedulingClass& request) {
  if (request.is_head_only) return at == 0;
  return state.workers[at].info.cpus_milli > 0 || request.cpus_milli == 0;
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

const Run* active_run(const State& state, const RunId& id) {
  auto found = state.runs.find(id);
  return found == state.runs.end() ? nullptr : &found->second;
}

}  // namespace

WaitExplainer::WaitExplainer(const State& state, const RunId& run)
    : state_(state), id_(run), run_(active_run(state, run)) {
  if (run_ != nullptr) edge_reader_.emplace(*run_);
}

std::string WaitExplainer::explain(UnitId unit) {
  if (run_ == nullptr) return "the run " + id_ + " is not active";
  const Run& run = *run_;
  if (unit >= run.units.size()) return "the run " + id_ + " has no such task";
  const Unit& u = run.units[unit];
  switch (u.phase) {
    case Phase::waiting_for_dependencies:
      edge_reader_->before(unit, edges_);
      examined_ += edges_.size();
      return open_edges(unit);
    case Phase::branch:
      result_edges(run, unit, edges_);
      examined_ += edges_.size();
      return open_edges(unit) + ", which its result names";
    case Phase::instances:
      return open_instances(unit);
    case Phase::resolving:
      return "its inputs are being read";
    case Phase::gathering:
      return "its result is being assembled";
    case Phase::parked:
      return why_parked(unit);
    case Phase::sizing:
      return "the functions of its resource options are being called";
    case Phase::coalesced:
      return why_coalesced(state_, run, u);
    case Phase::ready:
      FLOW_CHECK(class_of(unit) != nullptr);
      return explain_class(*class_of(unit));
    case Phase::signal: {
      std::string text = "it waits for the signal `" + u.detail->waiting_for + "`";
      Time deadline = u.detail->waits.at(u.detail->wait_name).first;
      if (deadline != 0) text += " until " + utc(deadline);
      return text + ": `flow signal " + id_ + " " + quote_shell(u.detail->waiting_for) +
             "` sends it";
    }
    case Phase::backoff:
      return "its attempt " + std::to_string(u.attempts) + " failed" +
             (u.detail->failed.empty()
                  ? ""
                  : " on " + worker_text(state_, u.detail->failed.back().worker)) +
             " (" + first_line(u.detail->failure.message) + "); the next starts at " +
             utc(u.detail->retry_at);
    case Phase::running:
      if (is_spare(run, unit)) return why_spare(run, unit) + "; it answers its last requests";
      return why_running(state_, u);
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

const SchedulingClass* WaitExplainer::class_of(UnitId unit) {
  if (run_ == nullptr) return nullptr;
  if (!class_of_) {
    class_of_.emplace(run_->units.size());
    for (const auto& [request, units] : run_->ready) {
      examined_ += units.size();
      UnitId each = units.empty() ? kNoNode : units.first();
      for (; each != kNoNode; each = units.after(each)) (*class_of_)[each] = &request;
    }
  }
  return unit < class_of_->size() ? (*class_of_)[unit] : nullptr;
}

const std::string& WaitExplainer::explain_class(const SchedulingClass& request) {
  auto [place, is_new] = why_ready_.try_emplace(request);
  if (is_new) place->second = why_ready(request);
  return place->second;
}

size_t WaitExplainer::examined() const {
  return examined_ + (blocking_units_ ? blocking_units_->examined() : 0);
}

/// `edges_` are those of the unit.
std::string WaitExplainer::open_edges(UnitId unit) const {
  NameList inputs, branches;
  for (const Edge& edge : edges_)
    if (!is_satisfied(*run_, unit, edge)) (edge.guard ? branches : inputs).add(*run_, edge.from);
  if (inputs.empty()) return "it waits for " + branches.text() + " to choose a branch";
  if (branches.empty()) return "it waits for " + inputs.text();
  return "it waits for " + inputs.text() + ", and for " + branches.text() + " to choose a branch";
}

std::string WaitExplainer::open_instances(UnitId unit) {
  NameList open;
  const std::vector<UnitId>& instances = instances_of(*run_, unit);
  examined_ += instances.size();
  for (UnitId instance : instances) {
    bool is_open = !is_final(run_->units[instance].status) && !is_spare(*run_, instance);
    if (is_open) open.add(*run_, instance);
  }
  const char* what = is_replica_set(*run_, unit) ? "its replicas " : "its instances ";
  return "it waits for " + (what + open.text());
}

std::string WaitExplainer::why_parked(UnitId unit) {
  const Run& run = *run_;
  if (is_spare(run, unit)) return why_spare(run, unit);
  if (is_held_back(run, unit)) {
    if (!served_run_) served_run_ = served_run(state_, run);
    return "it has `rollover = \"replace\"`: it starts when the version before, run " +
           *served_run_ + ", has ended";
  }
  if (run.budget && run.budget->is_spent)
    return "its run has used up its budget: `flow resume " + id_ +
           "` with a larger --budget continues it";
  return run.status == RunStatus::interrupted
             ? "its run was interrupted: `flow resume " + id_ + "` continues it"
             : "its run is being stopped";
}

std::string WaitExplainer::why_ready(const SchedulingClass& request) {
  const Run& run = *run_;
  if (request.limited_map != kNoNode) {
    uint32_t limit = run.node(run.units[request.limited_map].node).detail().limit;
    auto running = run.map_running.find(request.limited_map);
    if (running != run.map_running.end() && running->second >= limit) {
      return quoted(run, request.limited_map) + " runs at most " + std::to_string(limit) +
             " instances at once, and that many run";
    }
  }
  if (!may_start(state_, run, request, run.cpus_used_milli, 0)) {
    return "its run has " + std::to_string(run.jobs) + " CPU slots, held by " + slot_holders();
  }
  std::string text = request.is_gang() ? why_no_gang(request) : why_on_no_worker(request);
  return text + preceding_tasks(request.priority);
}

/// The binding constraint of each worker, or "it starts next".
std::string WaitExplainer::why_on_no_worker(const SchedulingClass& request) {
  std::vector<WorkerConstraint> waits = constraints_by_worker(request);
  for (const WorkerConstraint& wait : waits)
    if (wait.constraint.empty()) return why_not_yet(request);
  bool is_alone = state_.workers.size() == 1 && waits.size() == 1;
  if (is_alone) return waits[0].why;
  if (!waits.empty()) return each_worker(waits, false);
  return no_worker(state_) +
         ": start `flow worker --join ADDRESS` on a machine with these resources";
}

/// "it needs 4 ranks at once, each with 2 CPUs; there is room on `a` for 2: one more asks for …"
std::string WaitExplainer::why_no_gang(const SchedulingClass& request) {
  std::vector<WorkerConstraint> waits = constraints_by_worker(request);
  uint64_t ranks = 0;
  for (const WorkerConstraint& wait : waits) ranks += wait.ranks;
  if (ranks >= request.ranks) return why_not_yet(request);
  std::string request_text = "it needs " + std::to_string(request.ranks) +
                             " ranks at once, each with " + words_of(request);
  if (waits.empty()) return request_text + "; " + no_worker(state_) + awaited_workers_text(state_);
  return request_text + ", and there is room for " + std::to_string(ranks) + "; " +
         each_worker(waits, true) + awaited_workers_text(state_);
}

/// The constraints of all workers that are not lost and on which the unit may run.
std::vector<WaitExplainer::WorkerConstraint> WaitExplainer::constraints_by_worker(
    const SchedulingClass& request) {
  if (!blocking_units_) blocking_units_.emplace(state_);
  std::vector<WorkerConstraint> waits;
  for (size_t i = 0; i < state_.workers.size(); i++) {
    auto at = static_cast<WorkerId>(i);
    const WorkerState& worker = state_.workers[i];
    if (worker.is_lost() || !is_for(state_, at, request)) continue;
    WorkerConstraint wait;
    wait.worker = at;
    if (request.is_gang()) wait.ranks = placeable_ranks(state_, at, worker.free, request);
    BindingConstraint binding =
        binding_constraint(state_, *blocking_units_, at, request, wait.ranks);
    wait.constraint = std::move(binding.constraint);
    wait.why = std::move(binding.why);
    waits.push_back(std::move(wait));
  }
  return waits;
}

/// "on this machine: it asks for 1 CPU; …; on `w1`: …; and on 9 more: …; it also waits for `w2`"
std::string WaitExplainer::each_worker(const std::vector<WorkerConstraint>& waits,
                                       bool is_gang) const {
  std::string text;
  NameList disconnected;
  std::vector<WorkerConstraint> rest;
  size_t shown = 0;
  for (const WorkerConstraint& wait : waits) {
    if (wait.constraint == "away") {
      disconnected.add("`" + state_.workers[wait.worker].info.name + "`");
    } else if (++shown > kWorkersShownMax) {
      rest.push_back(wait);
    } else {
      text += (text.empty() ? "on " : "; on ") + name_of(state_, wait.worker) +
              (is_gang ? " for " + std::to_string(wait.ranks) : "") + ": " + wait.why;
    }
  }
  text += summary_of(rest, is_gang);
  if (disconnected.empty()) return text;
  return text + (text.empty() ? "it waits for " : "; it also waits for ") + disconnected.text() +
         " to reconnect";
}

/// "; and on 9 more: 5 have too few CPUs, …", the most frequent first.
std::string WaitExplainer::summary_of(const std::vector<WorkerConstraint>& rest,
                                      bool is_gang) const {
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

/// "it starts next", or the unit for which the resources are reserved.
std::string WaitExplainer::why_not_yet(const SchedulingClass& request) {
  if (!reservations_) {
    reservations_ = reservations(state_);
    for (const auto& [id, run] : state_.runs) examined_ += run.units.size();
  }
  auto found = reservations_->find({run_->id, request});
  if (found == reservations_->end()) return "it starts next";
  const ReadyHead& owner = found->second;
  const Run& other = state_.runs.at(owner.run);
  std::string name = quoted(other, owner.unit) + of_run(state_, other);
  if (owner.request.is_gang()) {
    return name + " needs " + std::to_string(owner.request.ranks) +
           " ranks at once, and the free resources are reserved for them";
  }
  return name + ", which comes before it, asks for " + words_of(owner.request) +
         ", and the free resources are reserved for it";
}

/// The units that hold the run's CPU slots.
const std::string& WaitExplainer::slot_holders() {
  if (slot_holders_) return *slot_holders_;
  NameList names;
  examined_ += run_->units.size();
  for (UnitId unit = 0; unit < run_->units.size(); unit++) {
    bool holds = run_->units[unit].phase == Phase::running && !is_service(*run_, unit);
    if (holds) names.add(*run_, unit);
  }
  slot_holders_ = names.empty() ? "no task" : names.text();
  return *slot_holders_;
}

/// "; 29 ready tasks of run r, which was submitted before, come first"
const std::string& WaitExplainer::preceding_tasks(int32_t priority) {
  constexpr size_t kRunsNamed = 3;
  auto [place, is_new] = preceding_.try_emplace(priority);
  std::string& text = place->second;
  if (!is_new) return text;
  size_t runs = 0, others = 0;
  for (const auto& [id, other] : state_.runs) {
    if (&other == run_) continue;
    size_t count = 0, prior = 0;
    examined_ += other.ready.size();
    for (const auto& [other_request, units] : other.ready) {
      bool is_prior = other_request.priority > priority;
      bool is_first = is_prior || (other_request.priority == priority && id < id_);
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

std::string explain_wait(const State& state, const RunId& run, UnitId unit) {
  return WaitExplainer(state, run).explain(unit);
}

std::string restarts_text(const Unit& unit) {
  if (!unit.detail || unit.detail->restarts == 0) return "";
  uint32_t count = unit.detail->restarts;
  std::string times = count == 1 ? "once" : std::to_string(count) + " times";
  return "restarted " + times + ", last: " + first_line(unit.detail->failure.message);
}

}  // namespace flow::core
