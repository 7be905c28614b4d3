// The takeover of a name's traffic by a new version. Until it is done, the version before keeps all
// its replicas, and whatever happens ends with one version that has all the traffic.
#include "engine/core/rollover.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "engine/core/mutants.hpp"
#include "engine/core/scaling.hpp"
#include "engine/core/transition.hpp"

namespace flow::core {

namespace {

/// How soon a step that had too few requests is measured again: warm-up requests take no longer.
constexpr int64_t kMeasureAgainMs = 250;

/// Whether nothing asks the run to end.
bool is_at_work(const Run& run) {
  return !is_final(run.status) && !run.stopping && !run.cancelling && !run.ending;
}

/// Whether it was resumed, and one of its services dies before any of them is ready.
bool is_failing(const Run& run) {
  bool has_died = std::ranges::any_of(
      run.services, [&](UnitId service) { return run.units[service].phase == Phase::backoff; });
  return run.status != RunStatus::serving && run.services_up == 0 && has_died;
}

/// Whether the run is of an earlier engine and was not resumed, while its attempts on workers run.
bool is_left_over(const Run& run) {
  return !is_final(run.status) && run.stopping && !run.cancelling && !run.ending &&
         run.phase_count(Phase::running) > 0;
}

/// An older timer of it may still fire.
void forget(Rollover& rollover) {
  uint32_t serial = rollover.serial;
  rollover = {};
  rollover.serial = serial;
}

/// As forget(), but for the step that it had reached and the version before, where it continues.
void forget_all_but_step(Rollover& rollover) {
  RunId previous = std::move(rollover.previous);
  uint32_t step = rollover.step;
  forget(rollover);
  if (step == 0) return;
  rollover.previous = std::move(previous);
  rollover.step = step;
}

bool holds_back(const Run& run) {
  return std::ranges::any_of(run.services,
                             [&](UnitId service) { return is_held_back(run, service); });
}

/// Which limit the new version exceeds in the step, as a clause; "" if none.
std::string limit_problem(const CanarySpec& canary, const TrafficMeasured& measured) {
  double errors = static_cast<double>(measured.errors);
  double requests = static_cast<double>(measured.requests);
  if (canary.max_error_rate >= 0 && errors > canary.max_error_rate * requests)
    return fmt::format("{} of {} requests had errors, max_error_rate is {:g}", measured.errors,
                       measured.requests, canary.max_error_rate);
  if (canary.max_p99_us > 0 && measured.p99_us > canary.max_p99_us)
    return fmt::format("the p99 of {} requests was {:g} ms, max_p99 is {:g} ms", measured.requests,
                       static_cast<double>(measured.p99_us) / 1000,
                       static_cast<double>(canary.max_p99_us) / 1000);
  return "";
}

}  // namespace

CanarySpec canary_of(const Run& run) {
  CanarySpec all;
  for (UnitId service : run.services) {
    const CanarySpec& own = def_of(run, service)->service.canary;
    if (own.percents.empty() || own.is_skipped) continue;
    if (all.percents.empty()) {
      all = own;
      continue;
    }
    if (own.percents.size() > all.percents.size()) all.percents = own.percents;
    all.every_ms = std::max(all.every_ms, own.every_ms);
    all.min_requests = std::max(all.min_requests, own.min_requests);
    bool is_stricter = own.max_error_rate >= 0 &&
                       (all.max_error_rate < 0 || own.max_error_rate < all.max_error_rate);
    if (is_stricter) all.max_error_rate = own.max_error_rate;
    bool is_faster = own.max_p99_us > 0 && (all.max_p99_us == 0 || own.max_p99_us < all.max_p99_us);
    if (is_faster) all.max_p99_us = own.max_p99_us;
    if (all.gate.empty()) all.gate = own.gate;
  }
  return all;
}

uint32_t step_count(const CanarySpec& canary) {
  return std::max<uint32_t>(1, static_cast<uint32_t>(canary.percents.size()));
}

uint32_t step_percent(const CanarySpec& canary, uint32_t step) {
  return step < canary.percents.size() ? canary.percents[step] : 100;
}

bool has_step_to_continue(const Run& run) {
  const Rollover& rollover = run.rollover;
  bool is_at_rest =
      rollover.phase == RolloverPhase::none || rollover.phase == RolloverPhase::waiting;
  return is_at_rest && rollover.step > 0 && !is_final(run.status);
}

bool is_held_back(const Run& run, UnitId unit) {
  return run.rollover.phase == RolloverPhase::waiting && !run.stopping &&
         run.units[unit].phase == Phase::parked && is_service(run, unit) && !is_spare(run, unit);
}

const char* phase_name(RolloverPhase phase) {
  switch (phase) {
    case RolloverPhase::none:
      return "";
    case RolloverPhase::waiting:
      return "waiting";
    case RolloverPhase::shifting:
      return "shifting";
    case RolloverPhase::observing:
      return "observing";
    case RolloverPhase::measuring:
      return "measuring";
    case RolloverPhase::reverting:
      return "reverting";
    case RolloverPhase::done:
      return "done";
    case RolloverPhase::gated:
      return "gated";
  }
  return "";
}

void Transition::on(const TrafficShifted& event) {
  Run& r = run(event.run);
  touch(r);
  r.rollover.step = event.step;  // in older journals a canary that was interrupted began again
  if (r.rollover.phase == RolloverPhase::reverting) return stop_services(r);
  if (!previous_is_at_work(r)) return finish_rollover(r);
  bool has_failed = !event.error.empty() && !has_mutant(Mutant::shift_error_is_ignored);
  if (has_failed) return revert(r, event.error);
  if (canary_of(r).percents.empty()) return finish_rollover(r);
  observe(r, canary_of(r).every_ms);
}

void Transition::on(const TrafficMeasured& event) {
  Run& r = run(event.run);
  touch(r);
  const CanarySpec canary = canary_of(r);
  if (!event.error.empty()) {
    leave_gate(r);
    return revert(r, event.error);
  }
  if (event.requests < canary.min_requests) {
    Time overdue = at_ - r.rollover.began - canary.every_ms;
    return observe(r, std::min(std::max(overdue, kMeasureAgainMs), canary.every_ms));
  }
  std::string problem = limit_problem(canary, event);
  if (!problem.empty()) return revert(r, problem);
  canary.gate.empty() ? pass_step(r) : call_gate(r, event);
}

void Transition::observed(Run& run) {
  touch(run);
  run.rollover.phase = RolloverPhase::measuring;
  emit(MeasureTraffic{run.id, run.rollover.step});
}

// ---- steps

void Transition::pass_step(Run& run) {
  if (run.rollover.step + 1 == step_count(canary_of(run))) return finish_rollover(run);
  shift(run, run.rollover.step + 1);
}

void Transition::shift(Run& run, uint32_t step) {
  Rollover& rollover = run.rollover;
  leave_gate(run);
  rollover.phase = RolloverPhase::shifting;
  rollover.step = step;
  rollover.began = at_;
  emit(ShiftTraffic{run.id, rollover.previous, step, step_percent(canary_of(run), step)});
  emit(RunChanged{run.id});
}

void Transition::observe(Run& run, int64_t for_ms) {
  run.rollover.phase = RolloverPhase::observing;
  emit(SetTimer{run.id, kNoNode, ++run.rollover.serial, at_ + for_ms});
}

// The run fails with the reason once the version before has all the traffic.
void Transition::revert(Run& run, const std::string& problem) {
  Rollover& rollover = run.rollover;
  const CanarySpec canary = canary_of(run);
  rollover.phase = RolloverPhase::reverting;
  rollover.reason =
      fmt::format("the {} at {}% failed: {}; the version before, {}, has all traffic again",
                  canary.percents.empty() ? "rollover" : "canary",
                  step_percent(canary, rollover.step), problem, rollover.previous);
  emit(ShiftTraffic{run.id, rollover.previous, rollover.step, 0});
  emit(RunChanged{run.id});
}

// The run ends or is interrupted, as if it had had no rollover. A run that ends still shows which
// version it would have replaced, and its last step.
void Transition::abandon_rollover(Run& run) {
  leave_gate(run);
  if (!has_mutant(Mutant::abandoned_rollover_keeps_traffic))
    emit(ShiftTraffic{run.id, run.rollover.previous, run.rollover.step, 0});
  Rollover before = run.rollover;
  forget(run.rollover);
  if (!run.ending && !run.cancelling) return;
  run.rollover.previous = std::move(before.previous);
  run.rollover.step = before.step;
}

// The run has all traffic of its name; the version before drains and ends.
void Transition::finish_rollover(Run& run) {
  Rollover& rollover = run.rollover;
  if (!are_services_up(run) && previous_is_at_work(run)) {  // again when they are up
    abandon_rollover(run);
    rollover.phase = RolloverPhase::waiting;
    return;
  }
  leave_gate(run);
  rollover.phase = RolloverPhase::done;
  rollover.reason.clear();
  rollover.serial++;
  for (auto& [id, other] : state_.runs) {
    bool is_before =
        &other != &run && other.name == run.name && !is_final(other.status) &&
        (other.rollover.phase == RolloverPhase::done || other.status == RunStatus::serving);
    if (!is_before) continue;
    forget(other.rollover);
    if (!is_at_work(other) && !is_left_over(other)) continue;
    touch(other);
    stop_services(other);
    propagate_skips();
    update_run_status(other);
  }
}

// ---- what begins, ends or changes a rollover

// The run that has the name's traffic, or had it before it was interrupted.
Run* Transition::owner_beside(const Run& run) {
  Run* owner = nullptr;
  for (auto& [id, other] : state_.runs) {
    if (&other == &run || other.name != run.name || is_final(other.status)) continue;
    bool is_owner =
        other.rollover.phase == RolloverPhase::done || other.status == RunStatus::serving;
    if (is_owner && (owner == nullptr || is_at_work(other) || !is_at_work(*owner))) owner = &other;
  }
  return owner;
}

bool Transition::previous_is_at_work(const Run& run) const {
  auto previous = state_.runs.find(run.rollover.previous);
  if (previous == state_.runs.end() || !is_at_work(previous->second)) return false;
  return previous->second.status == RunStatus::serving || previous->second.services_up > 0;
}

bool Transition::has_other_rollover(const Run& run) const {
  return std::ranges::any_of(state_.runs, [&](const auto& each) {
    const Run& other = each.second;
    return &other != &run && other.name == run.name && !is_final(other.status) &&
           is_under_way(other.rollover.phase);
  });
}

/// Whether the fronts may know another version.
bool Transition::has_rivals(const Run& run) const {
  return std::ranges::any_of(state_.runs, [&](const auto& each) {
    const Run& other = each.second;
    return &other != &run && other.name == run.name && !is_final(other.status) &&
           !other.services.empty();
  });
}

// Called when only services of the run are left and it has its result. Whether it serves: at once,
// or when it has the traffic of its name.
bool Transition::takes_over(Run& run) {
  bool is_older = !state_.restarts_services;  // an engine's records from before rollovers
  if (run.name.empty() || is_older || run.status == RunStatus::serving ||
      run.rollover.phase == RolloverPhase::done)
    return true;
  if (is_under_way(run.rollover.phase) || holds_back(run)) return false;
  Run* owner = owner_beside(run);
  if (!has_rivals(run)) {  // the fronts may remember versions that have ended, and may be resumed
    if (has_step_to_continue(run)) forget(run.rollover);
    run.rollover.phase = RolloverPhase::done;
    emit(ShiftTraffic{run.id, "", 0, 100});
    return true;
  }
  bool owner_works = owner != nullptr && is_at_work(*owner) && !is_failing(*owner);
  bool waits = !are_services_up(run) || has_other_rollover(run) ||
               (owner_works && owner->status != RunStatus::serving);
  if (waits) {
    run.rollover.phase = RolloverPhase::waiting;
    return false;
  }
  bool continues = owner_works && has_step_to_continue(run) && run.rollover.previous == owner->id;
  uint32_t first = continues ? run.rollover.step : 0;
  run.rollover.previous = owner != nullptr ? owner->id : RunId();
  shift(run, owner_works ? first : step_count(canary_of(run)) - 1);
  return false;
}

// Called whenever the run or one of its name changed.
void Transition::check_rollover(Run& run) {
  if (!is_under_way(run.rollover.phase)) return;
  bool is_reverted = run.rollover.phase == RolloverPhase::reverting && run.ending;
  if (is_reverted) return;
  if (!is_at_work(run)) return abandon_rollover(run);
  if (previous_is_at_work(run)) return;
  // No other version is left: this one, whatever its gate says.
  uint32_t last = step_count(canary_of(run)) - 1;
  bool has_all = run.rollover.step == last && run.rollover.phase != RolloverPhase::reverting;
  if (has_all && run.rollover.phase != RolloverPhase::shifting) return finish_rollover(run);
  if (has_all) return;
  run.rollover.reason.clear();
  shift(run, last);
}

// The services of a run that replaces the version before start when that one has ended, and that
// one is stopped when nothing else of the run is left to do.
bool Transition::must_hold_back(const Run& run, UnitId unit) {
  bool has_traffic = run.rollover.phase == RolloverPhase::done || is_under_way(run.rollover.phase);
  if (run.name.empty() || has_traffic || !is_service(run, unit) ||
      !def_of(run, unit)->service.rolls_by_replacing)
    return false;
  const Run* owner = owner_beside(run);
  return owner != nullptr && owner->status != RunStatus::interrupted;
}

void Transition::release_held_back(Run& run) {
  if (!holds_back(run) || !is_at_work(run) || has_other_rollover(run)) return;
  Run* owner = owner_beside(run);
  if (owner != nullptr && owner->status != RunStatus::interrupted) {
    uint32_t moves = run.phase_count(Phase::resolving) + run.phase_count(Phase::coalesced) +
                     run.phase_count(Phase::sizing) + run.phase_count(Phase::ready) +
                     run.phase_count(Phase::running) + run.phase_count(Phase::signal) +
                     run.phase_count(Phase::backoff) + run.phase_count(Phase::gathering);
    bool serves_or_fails = owner->status == RunStatus::serving || is_failing(*owner);
    bool may_be_stopped = (is_at_work(*owner) && serves_or_fails) || is_left_over(*owner);
    if (moves > run.services_up || !may_be_stopped) return;
    run.rollover.previous = owner->id;
    emit(RunChanged{run.id});
    touch(*owner);
    stop_services(*owner);
    propagate_skips();
    update_run_status(*owner);
    if (!is_final(owner->status)) return;
  }
  for (UnitId service : std::vector<UnitId>(run.services))
    if (is_held_back(run, service)) emit_query(run, service);
  run.rollover.phase = RolloverPhase::none;
}

// An engine starts: attempts of this machine are gone. What was under way continues at its step
// when both versions are resumed; until then the fronts give all traffic to the version before.
// The fronts may not know how an earlier rollover ended.
void Transition::interrupt_rollover(Run& run) {
  if (run.name.empty()) return;
  if (run.rollover.phase == RolloverPhase::done) {
    emit(ShiftTraffic{run.id, "", 0, 100});
  } else if (run.rollover.phase == RolloverPhase::reverting) {
    run.ending = true;
  } else {
    leave_gate(run);
    forget_all_but_step(run.rollover);
  }
}

// A run that ended, or lost its traffic while it was interrupted, is a new version of its name.
void Transition::resume_rollover(Run& run) {
  bool keeps = run.rollover.phase == RolloverPhase::done && !is_final(run.status) &&
               owner_beside(run) == nullptr;
  if (!keeps && !has_step_to_continue(run)) forget(run.rollover);
}

// A version that has no room beside the one that serves would wait forever.
void Transition::refuse_misfits(const Run& changed) {
  for (auto& [id, other] : state_.runs) {
    bool may_wait = other.name == changed.name && !is_final(other.status) &&
                    other.status != RunStatus::serving && other.phase_count(Phase::ready) > 0 &&
                    other.rollover.phase != RolloverPhase::done;
    const Run* owner = may_wait ? owner_beside(other) : nullptr;
    if (owner == nullptr || !(is_at_work(*owner) || is_left_over(*owner))) continue;
    for (UnitId service : std::vector<UnitId>(other.services)) {
      const Unit& u = other.units[service];
      bool has_served =
          u.satisfied || (u.detail && u.detail->restarts > 0) || is_further_replica(other, service);
      if (u.dropped || u.phase != Phase::ready || has_served) continue;
      std::string why = beside_problem(state_, other, *owner, service);
      if (why.empty()) continue;
      leave(other, service);
      fail(other, service,
           {Cause::user_error, "`" + shown_name(other, service) + "` " + why, "", 0});
      touch(other);
    }
    propagate_skips();
    update_run_status(other);
  }
}

// Runs of a name wait for each other.
void Transition::review_rollovers() {
  for (size_t i = 0; i < touched_.size(); i++) {
    const Run& changed = *touched_[i];
    if (changed.name.empty() || changed.services.empty()) continue;
    release_held_back(*touched_[i]);
    refuse_misfits(*touched_[i]);
    for (auto& [id, other] : state_.runs) {
      bool is_concerned =
          &other != &changed && other.name == changed.name &&
          (other.rollover.phase == RolloverPhase::waiting || is_under_way(other.rollover.phase));
      if (!is_concerned) continue;
      touch(other);
      update_run_status(other);
      release_held_back(other);
      propagate_skips();
    }
  }
}

}  // namespace flow::core
