// Workers that join, disconnect and leave. Attempts keep running while the worker or the engine is
// away; they are adopted when the worker rejoins and offers them.
#include "engine/core/workers.hpp"

#include <algorithm>

#include "engine/core/free_resources.hpp"
#include "engine/core/gangs.hpp"
#include "engine/core/gpu_faults.hpp"
#include "engine/core/mutants.hpp"
#include "engine/core/rollover.hpp"
#include "engine/core/scaling.hpp"
#include "engine/core/transition.hpp"

namespace flow::core {

namespace {

/// Takes the resources of the unit's ranks on the worker, or nothing if they are not all free.
/// Short units may share a slot, as they may when they are assigned.
bool allocate_held(const WorkerInfo& worker, WorkerId at, FreeResources& free,
                   const SchedulingClass& held, const Unit& unit) {
  FreeResources left = free;
  bool is_short = unit.expected_us > 0;
  bool is_all_there = true;
  for_each_rank(unit, [&](WorkerId rank_at, const std::vector<std::string>& gpus) {
    if (rank_at != at || !is_all_there) return;
    is_all_there = held.memory_bytes <= left.memory_free_bytes &&
                   (is_short || left.long_milli + held.cpus_milli <= worker.cpus_milli) &&
                   may_allocate_gpus(worker.gpus, left, held.gpu, gpus) &&
                   flow::fits(left.custom_resources, held.custom_resources);
    if (!is_all_there) return;
    allocate(left, held, unit.expected_us);
    allocate_gpus(worker.gpus, left, held.gpu, gpus);
  });
  if (is_all_there) free = std::move(left);
  return is_all_there;
}

/// A draining worker was preempted: its attempts did not kill it.
Cause cause_of_loss(const WorkerState& worker) {
  return worker.is_draining ? Cause::preempted : Cause::lost;
}

bool is_offered(const std::set<AttemptId>& offered, const AttemptId& id) {
  return offered.contains(id) || has_mutant(Mutant::keeps_unoffered_attempts);
}

}  // namespace

Failure loss_failure(const WorkerState& worker, const std::string& how) {
  return {cause_of_loss(worker), "the worker `" + worker.info.name + "`, which ran it, " + how, "",
          0};
}

std::optional<WorkerId> worker_id_for(const State& state, const std::string& name) {
  size_t workers = state.workers.size();
  for (size_t i = 1; i < workers; i++)
    if (state.workers[i].info.name == name) return static_cast<WorkerId>(i);
  if (workers < kWorkersMax) return static_cast<WorkerId>(workers);
  for (size_t i = 1; i < workers; i++) {
    auto worker = static_cast<WorkerId>(i);
    if (state.workers[i].is_lost() && !is_referenced_by_unit(state, worker)) return worker;
  }
  return std::nullopt;
}

bool is_referenced_by_unit(const State& state, WorkerId worker) {
  return std::any_of(state.runs.begin(), state.runs.end(), [worker](const auto& entry) {
    const std::vector<Unit>& units = entry.second.units;
    return std::any_of(units.begin(), units.end(), [worker](const Unit& unit) {
      auto is_it = [worker](WorkerId other) { return other == worker; };
      if (is_on(unit, worker)) return true;
      if (!unit.detail) return false;
      const UnitDetail& detail = *unit.detail;
      return std::any_of(detail.failed.begin(), detail.failed.end(),
                         [&](const FailedAttempt& failed) { return is_it(failed.worker); }) ||
             std::any_of(detail.deaths.begin(), detail.deaths.end(),
                         [&](const Death& death) { return is_it(death.worker); });
    });
  });
}

bool are_sound(const std::vector<std::pair<std::string, std::string>>& labels) {
  for (size_t i = 0; i < labels.size(); i++) {
    bool is_next = i == 0 || labels[i - 1].first < labels[i].first;
    if (labels[i].first.empty() || !is_next) return false;
  }
  return labels.size() <= kLabelsMax;
}

std::string selector_unsatisfiable_reason(const State& state, const Resources& requested) {
  const std::string& where = requested.where;
  if (where.empty() || state.leads_workers) return "";
  bool is_there =
      std::any_of(state.workers.begin(), state.workers.end(), [&](const WorkerState& worker) {
        return !worker.is_lost() && matches_selector(where, worker.info.labels);
      });
  if (is_there) return "";
  return "runs where `" + where +
         "`, and this machine has no such labels: they are given to workers, by `flow worker "
         "--label`";
}

std::string custom_resource_unsatisfiable_reason(const State& state, const Resources& resources,
                                                 bool is_head_only) {
  const ResourceQuantities& requested = resources.custom_resources;
  if (requested.empty() || (state.leads_workers && !is_head_only)) return "";
  ResourceQuantities most = requested;
  for (auto& [name, milli] : most) milli = 0;
  for (const WorkerState& worker : state.workers) {
    if (worker.is_lost() || (is_head_only && &worker != &state.workers[0])) continue;
    if (flow::fits(worker.info.custom_resources, requested)) return "";
    for (auto& [name, milli] : most)
      milli = std::max(milli, quantity_of(worker.info.custom_resources, name));
  }
  bool has_several_workers = state.workers.size() > 1 && !is_head_only;
  return "asks for " + words_of(requested) + ", and " +
         (has_several_workers ? "no machine has that (the most of each: " + words_of(most) + ")"
                              : "this machine has " + words_of(most)) +
         ": `--resource NAME=N` says what one has";
}

/// Visits the units that run on the worker.
template <typename Visit>
void Transition::for_each_on(WorkerId worker, Visit visit) {
  for (auto& [id, run] : state_.runs) {
    if (run.phase_count(Phase::running) == 0) continue;
    for (UnitId unit = 0; unit < run.units.size(); unit++) {
      const Unit& u = run.units[unit];
      if (u.phase == Phase::running && is_on(u, worker)) visit(run, unit);
    }
  }
}

void Transition::on(const WorkerJoined& event) {
  WorkerId at = *worker_id_for(state_, event.worker.name);
  if (at == state_.workers.size()) state_.workers.emplace_back();
  std::set<AttemptId> offered(event.attempts.begin(), event.attempts.end());
  adopt(at, event.worker, offered, event.is_restarted);
  note_presence(at);
  rebuild_capacity(state_);
  for (const AttemptId& id : offered) reconcile_offer(at, id);
}

// Updates the worker to its new description. Attempts that the state has there and the worker does
// not offer are lost, and so are those that no longer fit.
void Transition::adopt(WorkerId at, const WorkerInfo& info, const std::set<AttemptId>& offered,
                       bool is_restarted) {
  FreeResources free = all_free(info);
  WorkerInfo whole =
      without_faults(info);  // what holds a GPU that failed, and is not dead, keeps it
  std::string rejoin_text = "the worker `" + info.name + "`, which ran it, came back ";
  Cause cause = cause_of_loss(state_.workers[at]);
  std::vector<LostAttempt> losses;
  for_each_on(at, [&](Run& run, UnitId unit) {
    const Unit& u = run.units[unit];
    if (!is_offered(offered, current_attempt(run, unit))) {
      losses.push_back({&run,
                        unit,
                        rejoin_text + "without it",
                        cause,
                        {at, is_restarted, false, co_located(at, run, unit)}});
      return;
    }
    if (const Gpu* dead = dead_gpu_of(info, at, u)) {
      losses.push_back({&run,
                        unit,
                        fault_text(info, *dead),
                        Cause::gpu_fault,
                        {at, true, true, co_located(at, run, unit)}});
      return;
    }
    if (!allocate_held(whole, at, free, held_on(info, run, unit), u))
      losses.push_back({&run, unit, rejoin_text + "with less than it holds", cause, {at}});
  });
  for (const LostAttempt& loss : losses) fail_lost(loss);
  for_each_on(at, [&](Run& run, UnitId unit) {
    int32_t before = held_on(state_.workers[at].info, run, unit).cpus_milli;
    run.cpus_used_milli += held_on(info, run, unit).cpus_milli - before;
  });
  WorkerState worker;
  worker.info = info;
  worker.changed = at_;
  worker.free = std::move(free);
  worker.aside_serial = state_.workers[at].aside_serial;  // its timer may still be set
  state_.workers[at] = std::move(worker);
}

// The worker may have missed a stop command: stops offered attempts that are not current or that
// should stop.
void Transition::reconcile_offer(WorkerId at, const AttemptId& id) {
  auto found = state_.runs.find(id.run);
  bool is_unit = found != state_.runs.end() && id.unit < found->second.units.size();
  if (is_unit) {
    const Run& run = found->second;
    const Unit& u = run.units[id.unit];
    bool is_current =
        u.phase == Phase::running && is_on(u, at) && current_attempt(run, id.unit) == id;
    if (is_current) {
      bool is_resizing = u.detail && u.detail->is_resizing;
      bool is_stale = is_stale_gate(run, id.unit);
      if (run.cancelling || run.ending || run.stop_requested || is_resizing || is_stale ||
          is_spare(run, id.unit))
        emit(StopAttempt{id, false, at});
      return;
    }
  }
  emit(StopAttempt{id, true, at});
}

// Its free resources stay: no attempt is assigned to a worker that is not up.
void Transition::on(const WorkerDisconnected& event) {
  state_.workers[event.worker].is_up = false;
  state_.workers[event.worker].is_disconnected = true;
}

// The worker asks its own attempts to stop; this asks the ranks of its gangs on other workers.
void Transition::on(const WorkerDraining& event) {
  state_.workers[event.worker].is_draining = true;
  for_each_on(event.worker, [&](Run& run, UnitId unit) {
    for (WorkerId at : workers_of(run.units[unit])) {
      bool is_asked = at != event.worker && state_.workers[at].is_up;
      if (is_asked) emit(StopAttempt{current_attempt(run, unit), false, at});
    }
  });
}

// Later reports of its attempts are fenced off.
void Transition::on(const WorkerLost& event) {
  WorkerState& worker = state_.workers[event.worker];
  Failure failure = loss_failure(worker, "was lost: " + event.why);
  worker.is_up = false;  // first: it gets no more commands
  worker.is_disconnected = true;
  std::vector<LostAttempt> losses;
  for_each_on(event.worker, [&](Run& run, UnitId unit) {
    Ending ending{event.worker, event.has_died && failure.cause == Cause::lost, false,
                  co_located(event.worker, run, unit)};
    losses.push_back({&run, unit, failure.message, failure.cause, std::move(ending)});
  });
  for (const LostAttempt& loss : losses) fail_lost(loss);
  worker.is_disconnected = worker.is_draining = false;
  note_presence(event.worker);
  rebuild_capacity(state_);
}

void Transition::fail_lost(const LostAttempt& loss) {
  if (!end_attempt(*loss.run, loss.unit, outcome_of(loss.cause))) return;
  if (loss.run->ending && is_service(*loss.run, loss.unit))
    return end_service(*loss.run, loss.unit);  // it was asked to stop
  std::string why = loss.why;
  bool was_co_located = loss.ending.is_death && !loss.ending.co_located.empty();
  if (was_co_located) why += " (also running there: " + loss.ending.co_located + ")";
  retry_or_fail(*loss.run, loss.unit, {loss.cause, std::move(why), "", 0}, loss.ending);
}

std::string Transition::co_located(WorkerId at, const Run& run, UnitId unit) {
  constexpr size_t kNamed = 3;
  std::vector<std::string> names;
  size_t count = 0;
  for_each_on(at, [&](Run& other, UnitId each) {
    if ((&other == &run && each == unit) || ++count > kNamed) return;
    names.push_back("`" + shown_name(other, each) + "`" +
                    (&other == &run ? "" : " of run " + other.id));
  });
  std::string text;
  for (size_t i = 0; i < names.size(); i++) {
    bool is_last = i + 1 == count && i > 0;
    text += (i == 0 ? "" : is_last ? " and " : ", ") + names[i];
  }
  return count > kNamed ? text + " and " + std::to_string(count - kNamed) + " more" : text;
}

void Transition::on(const WorkersAnnounced& event) {
  state_.announced = event.count;
  rebuild_capacity(state_);
}

// A starting engine is connected to no worker yet.
void Transition::mark_workers_disconnected() {
  for (size_t i = 1; i < state_.workers.size(); i++) {
    WorkerState& worker = state_.workers[i];
    worker.is_disconnected = !worker.is_lost();
    worker.is_up = false;
  }
  while (state_.workers.size() > 1 && state_.workers.back().is_lost() &&
         !is_referenced_by_unit(state_, static_cast<WorkerId>(state_.workers.size() - 1)))
    state_.workers.pop_back();
}

// A worker that is not up gets the command when it rejoins.
void Transition::stop_attempt(const Run& run, UnitId unit) {
  for (WorkerId worker : workers_of(run.units[unit]))
    if (state_.workers[worker].is_up) emit(StopAttempt{current_attempt(run, unit), false, worker});
}

void Transition::note_change(const Run& run, UnitId unit) {
  for_each_rank(run.units[unit],
                [&](WorkerId at, const auto&) { state_.workers[at].changed = at_; });
}

// Ends the remaining ranks of a gang whose attempt ended; after a success they end by themselves.
void Transition::end_ranks(const Run& run, UnitId unit, bool kills) {
  if (has_mutant(Mutant::other_ranks_keep_running)) return;
  for (WorkerId worker : workers_of(run.units[unit]))
    if (state_.workers[worker].is_up) emit(StopAttempt{current_attempt(run, unit), kills, worker});
}

}  // namespace flow::core
