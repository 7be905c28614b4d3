// Events of runs, and the status of a run, which follows from its units.
#include <algorithm>

#include "engine/core/gangs.hpp"
#include "engine/core/mutants.hpp"
#include "engine/core/rollover.hpp"
#include "engine/core/scaling.hpp"
#include "engine/core/transition.hpp"

namespace flow::core {

namespace {

bool runs_on_other_worker(const Unit& running) {
  return !is_on(running, 0) && !has_mutant(Mutant::start_parks_remote_attempts);
}

}  // namespace

// Services that wait for the traffic of their name, or have a part of it, are stopped too.
bool only_serves(const State& state, const Run& run) {
  bool is_left_alone =
      run.has_result && run.open_units() == run.open_services + run.open_replica_sets;
  bool is_served = state.restarts_services && (is_left_alone || is_under_way(run.rollover.phase));
  return run.status == RunStatus::serving || is_served;
}

void Transition::on(const RunSubmitted& event) {
  Run& r = state_.runs[event.run];
  r.id = event.run;
  r.name = event.name;
  r.status = RunStatus::running;
  r.submitted = at_;
  r.plan_digest = event.plan_digest;
  r.plan = event.plan;
  r.jobs = event.jobs;
  r.fail_fast = event.fail_fast;
  r.fresh = event.fresh;
  r.user = event.user;
  r.actions = event.actions;
  r.number = state_.next_run_number++;
  state_.run_numbers[r.number] = r.id;
  uint32_t nodes = static_cast<uint32_t>(r.plan->nodes.size());
  r.durations_us.resize(r.plan->defs.size());
  r.units.resize(nodes);
  for (uint32_t i = 0; i < nodes; i++) r.units[i].node = i;
  for (uint32_t i = 0; i < nodes; i++) {
    size_t instances = instances_from_start(*r.plan, r.plan->nodes[i]);
    if (instances == 0) continue;
    r.units[i].expanded = true;
    r.units[i].phase = Phase::instances;
    Unit instance;
    instance.node = i;
    for (size_t index = 0; index < instances; index++) {
      instance.instance = static_cast<int32_t>(index);
      r.units.push_back(instance);
    }
  }
  rebuild_run(state_, r);
  touch(r);
  emit(RunChanged{r.id});
  for (UnitId unit = 0; unit < r.units.size(); unit++) {
    const Unit& u = r.units[unit];
    if (u.phase == Phase::waiting_for_dependencies && u.waits_on == 0) advance(r, unit);
  }
}

// Nothing is known of when their processes ended: they count up to the last record before. The
// machine is still the former one, with its GPUs.
void Transition::count_ended_with_engine() {
  for (auto& [id, r] : state_.runs) {
    if (is_final(r.status)) continue;
    if (r.budget) r.budget->timer_at = 0;
    for (UnitId unit = 0; unit < r.units.size(); unit++) {
      const Unit& u = r.units[unit];
      if (u.phase != Phase::running || runs_on_other_worker(u)) continue;
      note_gpus_held(r, unit, former_at_);
      note_consumption(r, unit, AttemptEnding::lost, false, former_at_);
    }
  }
}

// Attempts on this machine ended with the former process; those of other workers continue. Nothing
// starts before the run is resumed.
void Transition::on(const EngineStarted& event) {
  count_ended_with_engine();
  end_presences(former_at_);
  state_.epoch = event.epoch;
  mark_workers_disconnected();
  state_.workers[0].info = {"", event.cpus_milli,      event.memory_bytes, {},
                            {}, event.custom_resources};
  // Old records lack leads_workers; an engine without CPUs always had workers.
  state_.leads_workers = event.leads_workers || event.cpus_milli == 0;
  state_.restarts_services = event.restarts_services;
  state_.announced = 0;
  state_.workers[0].failures.clear();
  state_.workers[0].aside_until = 0;
  for (auto& [id, r] : state_.runs) {
    if (is_final(r.status)) {
      emit(RunEnded{id});
      continue;
    }
    r.stopping = true;
    for (UnitId unit = 0; unit < r.units.size(); unit++) {
      Unit& u = r.units[unit];
      bool must_park = u.phase == Phase::resolving || u.phase == Phase::coalesced ||
                       u.phase == Phase::sizing || u.phase == Phase::ready ||
                       u.phase == Phase::backoff ||
                       (u.phase == Phase::running && !runs_on_other_worker(u));
      if (!must_park) continue;
      u.phase = Phase::parked;
      u.status = UnitStatus::pending;
      u.expected_us = 0;
      u.timer_serial++;
      if (!u.detail) continue;
      UnitDetail detail = *u.detail;
      detail.url.clear();
      detail.was_ready = false;
      detail.retry_at = detail.ready_at = 0;
      u.detail = std::make_shared<const UnitDetail>(std::move(detail));
    }
  }
  rebuild_derived(state_);
  for (auto& [id, r] : state_.runs) {
    if (is_final(r.status)) continue;
    touch(r);
    interrupt_rollover(r);
    drop_left_gates(r);
    if (is_winding_down(r)) cancel_open(r, "its run ended", false);
    if (r.ending) stop_services(r);
    if (r.phase_count(Phase::running) > 0) {
      set_run_status(r, RunStatus::running);
    } else if (r.open_units() > 0) {
      set_run_status(r, RunStatus::interrupted);
    }
    if (r.open_units() == 0 && !r.has_result) r.gathering = false;  // asked again by the review
  }
}

void Transition::on(const CancelRequested& event) {
  Run& r = run(event.run);
  touch(r);
  note_action(r, {ActionKind::cancel, at_, event.by});
  r.cancelling = true;
  r.gathering = false;
  cancel_open(r, "the run was cancelled", true);
}

void Transition::on(const StopRequested& event) {
  Run& r = run(event.run);
  touch(r);
  note_action(r, {ActionKind::stop, at_, event.by});
  if (only_serves(state_, r)) return stop_services(r);
  r.stopping = r.stop_requested = true;
  for (UnitId unit = 0; unit < r.units.size(); unit++) {
    switch (r.units[unit].phase) {
      case Phase::running:
        stop_attempt(r, unit);
        break;
      case Phase::sizing:
      case Phase::ready:
      case Phase::coalesced:
      case Phase::backoff:
        leave(r, unit);
        to_parked(r, unit);
        break;
      default:
        break;
    }
  }
}

void Transition::on(const ServeEnded& event) {
  Run& r = run(event.run);
  touch(r);
  note_action(r, {ActionKind::stop, at_, event.by});
  stop_services(r);
}

void Transition::on(const RunDeleted& event) {
  Run& r = run(event.run);
  detach(state_, r);
  state_.run_numbers.erase(r.number);
  state_.runs.erase(event.run);
}

// No attempt holds one of them yet.
void Transition::on(const GpusFound& event) {
  WorkerState& worker = state_.workers[event.worker];
  std::vector<FreeGpu> free = free_gpus(event.gpus);
  worker.info.gpus.insert(worker.info.gpus.end(), event.gpus.begin(), event.gpus.end());
  worker.free.gpus.insert(worker.free.gpus.end(), free.begin(), free.end());
  note_presence(event.worker);
  rebuild_capacity(state_);
}

// ---- consequences for the run

void Transition::note_action(Run& run, Action action) {
  if (action.by.empty()) return;
  if (run.actions.size() >= kActionsMax) run.actions.erase(run.actions.begin());
  run.actions.push_back(std::move(action));
}

bool Transition::is_winding_down(const Run& run) const {
  return run.cancelling || (run.fail_fast && run.failed_units > 0);
}

void Transition::touch(Run& run) {
  if (std::find(touched_.rbegin(), touched_.rend(), &run) == touched_.rend()) {
    touched_.push_back(&run);
  }
}

void Transition::propagate_skips() {
  fail_unschedulable();
  for (size_t i = 0; i < skips_.size(); i++) {
    Skip skip = std::move(skips_[i]);
    Run& r = run(skip.run);
    touch(r);
    const Unit& u = r.units[skip.unit];
    if (u.phase != Phase::waiting_for_dependencies && u.phase != Phase::branch)
      continue;  // skipped already
    // The dynamic task itself ran; one of its calls failed.
    bool failed = u.phase == Phase::branch && u.expanded && skip.detail != nullptr;
    end(r, skip.unit, failed ? UnitStatus::failed : UnitStatus::skipped, std::move(skip.detail));
  }
  skips_.clear();
  if (!unschedulable_.empty()) propagate_skips();
}

void Transition::propagate() {
  propagate_skips();
  for (size_t i = 0; i < touched_.size(); i++) {
    Run& r = *touched_[i];
    update_run_status(r);
    propagate_skips();
    if (!r.budget || !review_budget(r)) continue;
    update_run_status(r);
    propagate_skips();
  }
  review_rollovers();
}

// Loops, because stopping the services may end the run immediately.
void Transition::update_run_status(Run& r) {
  while (!is_final(r.status)) {
    check_rollover(r);
    bool nothing_runs = r.phase_count(Phase::running) == 0;
    if (r.cancelling) {
      if (nothing_runs) end_run(r, RunStatus::cancelled);
      return;
    }
    uint32_t open = r.open_units();
    if (open == 0) {
      if (r.has_result) {
        bool failed = r.failed_units > 0 || r.counts.cancelled > 0;
        return end_run(r, failed ? RunStatus::failed : RunStatus::succeeded);
      }
      if (r.gathering) return;
      r.gathering = true;
      return emit(GatherValue{r.id, kNoNode});
    }
    bool only_services = open == r.open_services + r.open_replica_sets;
    bool failed = r.failed_units > 0;
    bool is_reverting = r.rollover.phase == RolloverPhase::reverting;  // a failed gate's, too
    if (only_services && failed && !r.ending && !is_reverting) {
      stop_services(r);
      propagate_skips();
      continue;
    }
    if (r.ending) return;
    if (r.stopping) {
      bool asking =
          r.gathering || r.phase_count(Phase::resolving) + r.phase_count(Phase::gathering) > 0;
      if (nothing_runs && !asking) set_run_status(r, RunStatus::interrupted);
      return;
    }
    if (only_services && (r.has_result || are_services_up(r))) {
      if (!r.has_result && !r.gathering) {
        r.gathering = true;
        emit(GatherValue{r.id, kNoNode});
      }
      if (r.has_result) set_run_status(r, takes_over(r) ? RunStatus::serving : RunStatus::running);
      return;
    }
    uint32_t active = r.phase_count(Phase::resolving) + r.phase_count(Phase::sizing) +
                      r.phase_count(Phase::ready) + r.phase_count(Phase::running) +
                      r.phase_count(Phase::gathering) - r.services_up;
    uint32_t suspended = r.phase_count(Phase::signal) + r.phase_count(Phase::backoff);
    return set_run_status(r,
                          active == 0 && suspended > 0 ? RunStatus::waiting : RunStatus::running);
  }
}

void Transition::set_run_status(Run& run, RunStatus status) {
  if (run.status == status) return;
  run.status = status;
  emit(RunChanged{run.id});
}

void Transition::end_run(Run& run, RunStatus status) {
  run.finished = at_;
  run.stopping = run.stop_requested = false;
  set_run_status(run, status);
  emit(RunEnded{run.id});
}

void Transition::cancel_open(Run& run, const std::string& why, bool stop_running) {
  UnitDetail cancelled;
  cancelled.failure = {Cause::cancelled, why, "", 0};
  UnitDetailPtr detail = std::make_shared<const UnitDetail>(std::move(cancelled));
  for (UnitId unit = 0; unit < run.units.size(); unit++) {
    const Unit& u = run.units[unit];
    if (u.dropped || is_final(u.status)) continue;
    if (u.phase == Phase::running) {
      if (stop_running) stop_attempt(run, unit);
      continue;
    }
    leave(run, unit);
    run.units[unit].detail = with_replicas(run, unit, detail);
    close(run, unit, UnitStatus::cancelled);
    release_key(run, unit);
  }
}

void Transition::stop_services(Run& run) {
  run.ending = true;
  if (run.rollover.phase == RolloverPhase::gated) leave_gate(run);
  for (UnitId service : run.services) {
    const Unit& u = run.units[service];
    if (is_final(u.status)) continue;
    if (u.phase == Phase::running) {
      stop_attempt(run, service);
      continue;
    }
    leave(run, service);
    end_service(run, service);
  }
}

}  // namespace flow::core
