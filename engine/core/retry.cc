// Resume and retry: failed units get new attempts, or one task runs again with its dependents.
#include <algorithm>

#include "engine/core/mutants.hpp"
#include "engine/core/rollover.hpp"
#include "engine/core/scaling.hpp"
#include "engine/core/transition.hpp"

namespace flow::core {

namespace {

/// A resume starts a service at once.
void forget_deaths(Unit& u) {
  if (!u.detail || u.detail->deaths_in_row == 0) return;
  auto detail = std::make_shared<UnitDetail>(*u.detail);
  detail->deaths_in_row = 0;
  u.detail = std::move(detail);
}

/// Why what depends on the unit `from`, by an edge that is dead, is skipped. Null for a branch that
/// was not taken.
UnitDetailPtr why_skipped(const Run& r, UnitId from) {
  const Unit& u = r.units[from];
  if (u.status == UnitStatus::failed || u.status == UnitStatus::cancelled) {
    UnitDetail needed;
    needed.failure = dependency_failure(r, from);
    return std::make_shared<const UnitDetail>(std::move(needed));
  }
  return u.status == UnitStatus::skipped ? u.detail : nullptr;
}

bool ended_by_failure(const Unit& u) {
  if (u.status == UnitStatus::failed || u.status == UnitStatus::cancelled) return true;
  return u.status == UnitStatus::skipped && u.detail && u.detail->failure.cause != Cause::none;
}

}  // namespace

void Transition::on(const RetryRequested& event) {
  Run& r = run(event.run);
  touch(r);
  note_action(r, {event.has_unit || event.is_retry ? ActionKind::retry : ActionKind::resume, at_,
                  event.by, event.has_unit ? shown_name(r, event.unit) : ""});
  detach(state_, r);
  if (event.has_unit && has_step_to_continue(r)) r.rollover.step = 0;  // what it serves may change
  drop_gates(r);
  if (event.has_unit) {
    rerun(r, event.unit);
  } else {
    auto is_when = [&](UnitId unit) { return r.node(r.units[unit].node).kind == NodeKind::when; };
    for (UnitId unit : event.lost) {
      const Unit& u = r.units[unit];
      if (u.dropped) continue;
      if (u.expanded || u.branch != Branch::unknown) {
        regather(r, unit);
      } else if (!is_when(unit)) {  // a `when` that is decided again is also gathered again
        rerun(r, unit);
      }
    }
    for (UnitId unit : event.lost) {  // what reaches one as a taker makes it like any other
      const Unit& u = r.units[unit];
      if (!u.expanded && !u.dropped && !is_when(unit)) r.units[unit].forced = true;
    }
    // An interrupted run keeps its ignored failures: their consumers ran without them.
    if (is_final(r.status)) retry_ignored(r);
    for (UnitId unit = 0; unit < r.units.size(); unit++) {
      const Unit& u = r.units[unit];
      if (u.dropped || u.gives_missing || !ended_by_failure(u)) continue;
      Phase phase = Phase::waiting_for_dependencies;
      if (u.expanded) phase = may_have_instances(r, unit) ? Phase::instances : Phase::branch;
      reset_unit(r, unit, phase, true);
    }
  }
  continue_run(r);
}

// Called with the units in their new state and the derived fields out of date.
void Transition::continue_run(Run& r) {
  resume_rollover(r);
  r.stopping = r.stop_requested = r.cancelling = r.ending = r.gathering = r.has_result = false;
  r.result = Digest{};
  r.finished = 0;
  if (r.budget) {
    r.budget->is_spent = false;
    r.budget->timer_at = 0;
  }
  for (UnitId service : r.services) {
    Unit& u = r.units[service];
    if (is_final(u.status) || u.phase == Phase::running) continue;
    u.satisfied = false;
    forget_deaths(u);
  }
  for (const auto& [unit, instances] : r.instances) {
    bool is_open_set = is_replica_set(r, unit) && !is_final(r.units[unit].status);
    if (!is_open_set) continue;
    r.units[unit].satisfied =
        std::ranges::any_of(instances, [&](UnitId replica) { return r.units[replica].satisfied; });
  }
  rebuild_run(state_, r);
  attach(state_, r);
  // A retry of one task accepts that other units stay failed.
  if (r.failed_units > 0) r.fail_fast = false;
  r.status = RunStatus::running;
  emit(RunChanged{r.id});

  EdgeReader reader(r);
  std::vector<Edge> edges;
  UnitId end_of_units = static_cast<UnitId>(r.units.size());
  for (UnitId unit = 0; unit < end_of_units; unit++) {
    const Unit& u = r.units[unit];
    if (u.dropped) continue;
    switch (u.phase) {
      case Phase::waiting_for_dependencies:
      case Phase::branch: {
        if (u.waits_on == 0) {
          advance(r, unit);
          break;
        }
        if (u.phase == Phase::waiting_for_dependencies) {
          reader.before(unit, edges);
        } else {
          result_edges(r, unit, edges);
        }
        auto dead =
            std::ranges::find_if(edges, [&](const Edge& edge) { return is_dead(r, unit, edge); });
        if (dead != edges.end()) skips_.push_back({r.id, unit, why_skipped(r, dead->from)});
        break;
      }
      case Phase::instances:
        if (u.waits_on == 0) advance(r, unit);
        break;
      case Phase::parked:
        if (!is_spare(r, unit)) emit_query(r, unit);
        break;
      case Phase::resolving:
        emit_query(r, unit);
        break;
      case Phase::running:  // on another machine; the stop may have been lost in the restart
        if (is_spare(r, unit)) stop_attempt(r, unit);
        break;
      case Phase::gathering:
        to_gathering(r, unit);
        break;
      case Phase::signal: {
        Time deadline = u.detail->waits.at(u.detail->wait_name).first;
        if (deadline != 0 && !has_mutant(Mutant::timer_forgotten)) start_timer(r, unit, deadline);
        break;
      }
      default:
        break;
    }
  }
}

void Transition::reset_unit(Run& run, UnitId unit, Phase phase, bool keep_waits) {
  keep_consumption(run, unit);
  Unit& u = run.units[unit];
  Unit fresh;
  fresh.node = u.node;
  fresh.instance = u.instance;
  fresh.phase = phase;
  fresh.attempts = u.attempts;
  fresh.timer_serial = u.timer_serial + 1;
  fresh.requeues = u.requeues;
  fresh.epoch = u.epoch;
  if (phase != Phase::waiting_for_dependencies) {
    fresh.expanded = u.expanded;
    fresh.branch = u.branch;
    fresh.cached = u.cached && u.expanded;
    fresh.resolved = u.resolved;
    fresh.key = u.key;
    if (phase == Phase::branch && u.expanded) fresh.status = UnitStatus::waiting;
  }
  if (keep_waits && u.detail && !u.detail->waits.empty()) {
    UnitDetail detail;
    detail.waits = u.detail->waits;
    fresh.detail = std::make_shared<const UnitDetail>(std::move(detail));
  }
  u = std::move(fresh);
}

// If a rollover was under way, it begins again, or continues after the steps that its gate passed.
void Transition::drop_gates(Run& run) {
  if (run.rollover.phase == RolloverPhase::done || has_step_to_continue(run)) return;
  for (const DynamicCalls& calls : run.dynamics) {
    UnitId unit = calls.first_unit;
    if (is_gate(run, unit) && is_final(run.units[unit].status)) drop(run, unit);
  }
}

void Transition::drop(Run& run, UnitId unit) {
  Unit& u = run.units[unit];
  if (u.dropped) return;
  if (u.expanded) drop_expansion(run, unit);
  run.units[unit].dropped = true;
  run.units[unit].key_scope = KeyScope::none;
  if (!is_final(run.units[unit].status)) {
    run.units[unit].status = UnitStatus::cancelled;
    run.units[unit].phase = Phase::done;
  }
}

// Drops the instances of a map or the calls of a dynamic task; a later expansion replaces them.
void Transition::drop_expansion(Run& run, UnitId unit) {
  if (may_have_instances(run, unit)) {
    for (UnitId instance : std::vector<UnitId>(instances_of(run, unit))) drop(run, instance);
  } else {
    const DynamicCalls& calls = run.dynamics[run.dynamic_of.at(unit)];
    UnitId first = calls.first_unit;
    size_t count = calls.fragment->nodes.size();
    for (size_t i = 0; i < count; i++) drop(run, first + static_cast<UnitId>(i));
  }
  run.units[unit].expanded = false;
}

// `target` runs even if the cache has its result; its direct and indirect dependents are resolved
// again. A unit that is reached only through its own expansion or its chosen branch keeps its part
// and gathers its value again.
void Transition::rerun(Run& run, UnitId target) {
  std::vector<UnitId> targets{target};
  bool is_map = is_map_unit(run, target) && run.units[target].expanded;
  if (is_map) targets = instances_of(run, target);
  invalidate_downstream(run, targets, is_map ? target : kNoNode);
  for (UnitId unit : targets) run.units[unit].forced = true;
}

// Ignored failures get new attempts. What their consumers compute depends on the new results, so
// these are resolved again; where nothing changed, the cache has their results.
void Transition::retry_ignored(Run& run) {
  std::vector<UnitId> ignored;
  for (UnitId unit = 0; unit < run.units.size(); unit++) {
    if (!run.units[unit].dropped && is_ignored(run.units[unit])) ignored.push_back(unit);
  }
  if (!ignored.empty()) invalidate_downstream(run, ignored, kNoNode);
}

// Gathers the list of a map or the value of a dynamic task again; its parts are available.
void Transition::regather(Run& run, UnitId target) { invalidate_downstream(run, {}, target); }

/// Resets `targets` completely and `together` to its expansion, and resets their dependents.
void Transition::invalidate_downstream(Run& run, const std::vector<UnitId>& targets,
                                       UnitId regathered) {
  std::map<UnitId, bool> whole;  // reached units; whether from their start
  std::vector<UnitId> order;
  auto reach = [&](UnitId unit, bool from_start) {
    auto [place, added] = whole.try_emplace(unit, from_start);
    if (!added && (place->second || !from_start)) return;
    place->second = from_start;
    order.push_back(unit);
  };
  auto reached_by_result = [&](UnitId unit, UnitId from) {
    std::vector<Edge> edges;
    result_edges(run, unit, edges);
    for (const Edge& edge : edges) {
      if (edge.from == from) return true;
    }
    return false;
  };
  if (regathered != kNoNode) reach(regathered, false);
  for (UnitId unit : targets) reach(unit, true);
  for (size_t i = 0; i < order.size(); i++) {
    UnitId unit = order[i];
    const Unit& u = run.units[unit];
    bool from_start = whole.at(unit);
    if (u.instance >= 0) reach(run.unit_of(u.node), false);
    for_each_dependent(run, unit, [&](UnitId dependent, bool guard) {
      if (run.units[dependent].dropped || (guard && !from_start)) return;
      reach(dependent, guard || !reached_by_result(dependent, unit));
    });
  }
  for (const auto& [unit, from_start] : whole) {
    const Unit& u = run.units[unit];
    if (u.dropped) continue;
    bool has_instances = may_have_instances(run, unit);
    if (from_start && u.expanded) drop_expansion(run, unit);
    Phase phase = Phase::waiting_for_dependencies;
    if (!from_start) phase = has_instances ? Phase::instances : Phase::branch;
    reset_unit(run, unit, phase, false);
  }
}

}  // namespace flow::core
