// The life of a unit, from its dependencies to its end.
#include <algorithm>

#include "engine/core/gangs.hpp"
#include "engine/core/gpu_faults.hpp"
#include "engine/core/scaling.hpp"
#include "engine/core/transition.hpp"

namespace flow::core {

namespace {

std::shared_ptr<UnitDetail> copy_of(const Unit& u) {
  return u.detail ? std::make_shared<UnitDetail>(*u.detail) : std::make_shared<UnitDetail>();
}

/// Of a map the instances' failures are ignored, and of a dynamic task those of its body: a list
/// that cannot be expanded and a failed call are not.
bool ignores_failure(const Run& run, UnitId unit) {
  const TaskDef* def = def_of(run, unit);
  return def != nullptr && def->ignores_failure && !is_map_unit(run, unit) &&
         !run.units[unit].expanded;
}

}  // namespace

Failure dependency_failure(const Run& run, UnitId unit) {
  const Unit& u = run.units[unit];
  const char* how = u.status == UnitStatus::cancelled ? "was cancelled" : "failed";
  Failure failure;
  failure.cause = Cause::dependency;
  failure.message = "it depends on `" + shown_name(run, unit) + "`, which " + how;
  return failure;
}

Run& Transition::run(const RunId& id) {
  auto found = state_.runs.find(id);
  FLOW_CHECK(found != state_.runs.end());
  return found->second;
}

// The only place where a unit's phase and status change.
void Transition::move(Run& run, UnitId unit, Phase phase, UnitStatus status) {
  Unit& u = run.units[unit];
  run.phases[static_cast<size_t>(u.phase)]--;
  run.phases[static_cast<size_t>(phase)]++;
  u.phase = phase;
  if (u.status == status) return;
  bool counted = is_counted(run, unit);
  if (counted) count_unit(run.counts, u, -1);
  if (u.status == UnitStatus::failed && !u.gives_missing) run.failed_units--;
  u.status = status;
  if (u.status == UnitStatus::failed && !u.gives_missing) run.failed_units++;
  if (counted) count_unit(run.counts, u, 1);
  if (status != UnitStatus::pending && status != UnitStatus::ready) emit(UnitChanged{run.id, unit});
}

void Transition::leave(Run& run, UnitId unit) {
  Unit& u = run.units[unit];
  switch (u.phase) {
    case Phase::ready:
      return dequeue_ready(state_, run, unit);
    case Phase::running: {
      run.cpus_used_milli -= release_ranks(state_, run, unit);
      if (run.budget) run.budget->running.erase(unit);
      note_change(run, unit);
      u.expected_us = 0;
      UnitId map = limited_map_of(run, unit);
      if (map != kNoNode && --run.map_running[map] == 0) run.map_running.erase(map);
      if (is_service(run, unit) && is_up(u)) {
        run.services_up--;
        auto detail = copy_of(u);
        detail->url.clear();
        u.detail = std::move(detail);
      }
      return;
    }
    case Phase::coalesced: {
      auto waiters = state_.key_waiters.find(u.key);
      FLOW_CHECK(waiters != state_.key_waiters.end());
      waiters->second.erase({run.id, unit});
      if (waiters->second.empty()) state_.key_waiters.erase(waiters);
      return;
    }
    case Phase::signal: {
      auto waiters = run.signal_waiters.find(u.detail->waiting_for);
      FLOW_CHECK(waiters != run.signal_waiters.end());
      waiters->second.erase(unit);
      if (waiters->second.empty()) run.signal_waiters.erase(waiters);
      auto detail = copy_of(u);
      detail->waiting_for.clear();
      detail->wait_name.clear();
      u.detail = std::move(detail);
      u.timer_serial++;
      return;
    }
    case Phase::backoff: {
      auto detail = copy_of(u);
      detail->retry_at = 0;
      u.detail = std::move(detail);
      u.timer_serial++;
      return;
    }
    default:
      return;
  }
}

void Transition::advance(Run& run, UnitId unit) {
  FLOW_CHECK(run.units[unit].waits_on == 0);
  Phase phase = run.units[unit].phase;
  if (phase == Phase::branch) return to_gathering(run, unit);
  if (phase == Phase::instances) return complete_map(run, unit);
  FLOW_CHECK(phase == Phase::waiting_for_dependencies);
  if (run.stopping || is_spare(run, unit)) return to_parked(run, unit);
  emit_query(run, unit);
}

void Transition::emit_query(Run& run, UnitId unit) {
  move(run, unit, Phase::resolving, UnitStatus::pending);
  if (is_map_unit(run, unit)) return emit(ExpandMap{run.id, unit});
  if (run.node(run.units[unit].node).kind == NodeKind::when) return emit(ResolveWhen{run.id, unit});
  auto* last = out_.empty() ? nullptr : std::get_if<ResolveInputs>(&out_.back());
  bool follows = last != nullptr && last->unit + last->count == unit && last->run == run.id;
  if (follows) {
    last->count++;
  } else {
    emit(ResolveInputs{run.id, unit});
  }
}

// Called after leave(); the unit holds its key.
void Transition::to_ready(Run& run, UnitId unit) {
  if (is_winding_down(run)) {
    UnitDetail detail;
    detail.failure = {Cause::cancelled, "nothing of its run starts any more", "", 0};
    return end(run, unit, UnitStatus::cancelled,
               std::make_shared<const UnitDetail>(std::move(detail)));
  }
  if (is_spare(run, unit)) {
    park_spare(run, unit);
    return emit(UnitChanged{run.id, unit});
  }
  if (run.stopping) return to_parked(run, unit);
  if (must_hold_back(run, unit)) {
    run.rollover.phase = RolloverPhase::waiting;
    return to_parked(run, unit);
  }
  if (needs_sizing(run, unit)) {
    move(run, unit, Phase::sizing, UnitStatus::pending);
    return emit(ComputeResources{run.id, unit});
  }
  move(run, unit, Phase::ready, UnitStatus::ready);
  run.units[unit].ready = at_;
  enqueue_ready(state_, run, unit);
  if (is_unschedulable(run, unit)) unschedulable_.emplace_back(run.id, unit);
}

// An attempt that was requeued, or held back while its run stopped, keeps its values.
bool Transition::needs_sizing(const Run& run, UnitId unit) const {
  const Unit& u = run.units[unit];
  if (def_of(run, unit)->resource_functions == 0) return false;
  bool has_values = u.detail && u.detail->computed;
  return !has_values || u.detail->computed->attempt != next_attempt(state_, run, unit).attempt;
}

void Transition::to_parked(Run& run, UnitId unit) {
  move(run, unit, Phase::parked, UnitStatus::pending);
  release_key(run, unit);
}

void Transition::start_timer(Run& run, UnitId unit, Time at) {
  emit(SetTimer{run.id, unit, ++run.units[unit].timer_serial, at});
}

void Transition::to_backoff(Run& run, UnitId unit, int64_t delay_ms) {
  if (delay_ms == 0 || run.stopping || is_winding_down(run)) return to_ready(run, unit);
  Unit& u = run.units[unit];
  auto detail = copy_of(u);
  detail->retry_at = at_ + delay_ms;
  u.detail = std::move(detail);
  move(run, unit, Phase::backoff, UnitStatus::waiting);
  start_timer(run, unit, at_ + delay_ms);
}

void Transition::to_gathering(Run& run, UnitId unit) {
  move(run, unit, Phase::gathering, run.units[unit].status);
  emit(GatherValue{run.id, unit});
}

void Transition::wait_for_result(Run& run, UnitId unit) {
  std::vector<Edge> edges;
  result_edges(run, unit, edges);
  UnitStatus status = is_dynamic(run, unit) ? UnitStatus::waiting : UnitStatus::pending;
  move(run, unit, Phase::branch, status);
  uint32_t waits_on = 0;
  UnitId dead = kNoNode;
  for (const Edge& edge : edges) {
    if (is_dead(run, unit, edge) && dead == kNoNode) dead = edge.from;
    if (!is_satisfied(run, unit, edge)) waits_on++;
    add_late_edge(run, unit, edge);
  }
  run.units[unit].waits_on = waits_on;
  if (dead != kNoNode) {
    skips_.push_back({run.id, unit, run.units[dead].detail});
  } else if (waits_on == 0) {
    to_gathering(run, unit);
  }
}

void Transition::satisfy(Run& run, UnitId unit) {
  Unit& u = run.units[unit];
  if (u.phase != Phase::waiting_for_dependencies && u.phase != Phase::branch) return;
  FLOW_CHECK(u.waits_on > 0);
  if (--u.waits_on == 0) advance(run, unit);
}

void Transition::satisfy_dependents(Run& run, UnitId unit) {
  if (run.units[unit].satisfied) return;
  run.units[unit].satisfied = true;
  for_each_dependent(run, unit, [&](UnitId dependent, bool guard) {
    if (!guard) satisfy(run, dependent);
  });
}

// Called after leave().
void Transition::succeed(Run& run, UnitId unit, const Digest& result) {
  Unit& u = run.units[unit];
  u.result = result;
  u.forced = false;
  close(run, unit, UnitStatus::succeeded);
  publish_result(run, unit);
  satisfy_dependents(run, unit);
  instance_ended(run, unit);
}

void Transition::close(Run& run, UnitId unit, UnitStatus status) {
  Unit& u = run.units[unit];
  u.finished = at_;
  if (u.started == 0) u.started = at_;
  u.waits_on = 0;
  if (is_service(run, unit)) run.open_services--;
  if (is_replica_set(run, unit)) run.open_replica_sets--;
  move(run, unit, Phase::done, status);
  gate_ended(run, unit);
}

// Called after leave().
void Transition::end(Run& run, UnitId unit, UnitStatus status, UnitDetailPtr detail) {
  run.units[unit].detail = with_replicas(run, unit, std::move(detail));
  close(run, unit, status);
  release_key(run, unit);
  UnitDetailPtr why = run.units[unit].detail;  // of a skipped unit: what it was skipped for
  if (status != UnitStatus::skipped) {
    UnitDetail needed;
    needed.failure = dependency_failure(run, unit);
    why = std::make_shared<const UnitDetail>(std::move(needed));
  }
  // A service that was ready has released its dependents already.
  bool satisfied = run.units[unit].satisfied;
  bool resolved_when = run.units[unit].branch != Branch::unknown;
  for_each_dependent(run, unit, [&](UnitId dependent, bool guard) {
    const Unit& d = run.units[dependent];
    if (d.phase != Phase::waiting_for_dependencies && d.phase != Phase::branch) return;
    if (guard ? resolved_when : satisfied) return;
    skips_.push_back({run.id, dependent, why});
  });
  instance_ended(run, unit);
}

// Called after leave(). As of a unit that succeeded, the dependents may start.
void Transition::end_missing(Run& run, UnitId unit, UnitStatus status, UnitDetailPtr detail) {
  Unit& u = run.units[unit];
  u.detail = std::move(detail);
  u.gives_missing = true;
  u.result = Digest{};
  close(run, unit, status);
  release_key(run, unit);
  satisfy_dependents(run, unit);
  instance_ended(run, unit);
}

void Transition::instance_ended(Run& run, UnitId unit) {
  if (run.units[unit].instance < 0) return;
  UnitId map_unit = run.unit_of(run.units[unit].node);
  Unit& map = run.units[map_unit];
  if (map.phase != Phase::instances) return;
  FLOW_CHECK(map.waits_on > 0);
  if (--map.waits_on == 0) return complete_map(run, map_unit);
  end_left_spares(run, map_unit);
}

void Transition::complete_map(Run& run, UnitId map_unit) {
  UnitId worst = kNoNode;
  auto rank = [&](UnitId unit) {
    UnitStatus status = run.units[unit].status;
    if (run.units[unit].gives_missing) return 0;  // the list leaves it out
    if (status == UnitStatus::failed) return 3;
    if (status == UnitStatus::cancelled) return 2;
    return status == UnitStatus::skipped ? 1 : 0;
  };
  for (UnitId instance : instances_of(run, map_unit)) {
    int mine = rank(instance);
    if (mine > 0 && (worst == kNoNode || mine > rank(worst))) worst = instance;
  }
  if (worst == kNoNode && is_replica_set(run, map_unit)) return succeed(run, map_unit, Digest{});
  if (worst == kNoNode) return to_gathering(run, map_unit);
  UnitStatus status = run.units[worst].status;
  UnitDetailPtr detail = run.units[worst].detail;
  if (status != UnitStatus::skipped) {
    UnitDetail needed;
    needed.failure = dependency_failure(run, worst);
    detail = std::make_shared<const UnitDetail>(std::move(needed));
  }
  end(run, map_unit, status, std::move(detail));
}

// Called after leave().
void Transition::fail(Run& run, UnitId unit, Failure failure) {
  auto detail = copy_of(run.units[unit]);
  detail->failure = std::move(failure);
  if (ignores_failure(run, unit))
    return end_missing(run, unit, UnitStatus::failed, std::move(detail));
  bool first = run.failed_units == 0;
  end(run, unit, UnitStatus::failed, std::move(detail));
  if (!run.fail_fast || !first || run.cancelling) return;
  std::string name = shown_name(run, unit);
  propagate_skips();
  cancel_open(run, "`" + name + "` failed, and the run stops at the first failure", false);
}

// Fails the unit if it would exceed the maximum number of units of a run.
bool Transition::check_unit_limit(Run& run, UnitId unit, size_t more) {
  if (run.units.size() + more <= kNodesMax) return true;
  Failure failure;
  failure.cause = Cause::user_error;
  failure.message = "`" + shown_name(run, unit) + "` would add " + std::to_string(more) +
                    " tasks to a run that has " + std::to_string(run.units.size()) +
                    ": a run has at most " + std::to_string(kNodesMax) +
                    ". Let one task do more of the work";
  fail(run, unit, std::move(failure));
  return false;
}

void Transition::append_instances(Run& run, UnitId map_unit, uint32_t count) {
  if (is_counted(run, map_unit)) count_unit(run.counts, run.units[map_unit], -1);
  run.units[map_unit].expanded = true;
  run.units[map_unit].started = at_;
  std::vector<UnitId>& instances = run.instances[map_unit];
  instances.clear();
  instances.reserve(count);
  Unit unit;
  unit.node = run.units[map_unit].node;
  UnitId first = static_cast<UnitId>(run.units.size());
  for (uint32_t i = 0; i < count; i++) {
    unit.instance = static_cast<int32_t>(i);
    run.units.push_back(unit);
    instances.push_back(first + i);
  }
  run.phases[static_cast<size_t>(Phase::waiting_for_dependencies)] += count;
  run.counts.pending += is_scaled_set(run, map_unit) ? replicas_in_use(run, map_unit) : count;
  run.units[map_unit].waits_on = count;
  if (count > 0 && is_service(run, first)) {
    run.services.insert(run.services.end(), instances.begin(), instances.end());
    run.open_services += count;
  }
  if (is_replica_set(run, map_unit)) run.open_replica_sets++;
  move(run, map_unit, Phase::instances, run.units[map_unit].status);
}

// Called after leave() of the dynamic unit. Adds its calls as nodes and units of the run.
void Transition::append_calls(Run& run, UnitId unit,
                              const std::shared_ptr<const PlanFragment>& fragment,
                              const Digest& digest) {
  size_t more = fragment->nodes.size();
  for (const TaskNode& node : fragment->nodes) {
    more += instances_from_start(*run.plan, node);
  }
  if (!check_unit_limit(run, unit, more)) return;
  std::string conflict = tag_conflict(run, unit, *fragment);
  if (!conflict.empty()) return fail(run, unit, {Cause::user_error, std::move(conflict), "", 0});
  append_units(run, unit, fragment, digest);
  wait_for_result(run, unit);
}

// Adds the calls of a dynamic unit, or that of a service's gate.
void Transition::append_units(Run& run, UnitId owner,
                              const std::shared_ptr<const PlanFragment>& fragment,
                              const Digest& digest) {
  DynamicCalls calls;
  calls.unit = owner;
  calls.fragment = fragment;
  calls.fragment_digest = digest;
  calls.first_node = static_cast<uint32_t>(run.plan->nodes.size() + run.dynamic_nodes.size());
  calls.first_unit = static_cast<UnitId>(run.units.size());
  append_nodes(run, calls);
  if (is_dynamic(run, owner)) {
    run.dynamic_of[owner] = run.dynamics.size();
    run.units[owner].expanded = true;
  }
  run.dynamics.push_back(std::move(calls));
  UnitId first = static_cast<UnitId>(run.units.size());
  for (uint32_t i = 0; i < fragment->nodes.size(); i++) {
    Unit call;
    call.node = run.dynamics.back().first_node + i;
    run.units.push_back(call);
    run.phases[static_cast<size_t>(Phase::waiting_for_dependencies)]++;
    if (is_counted(run, first + i)) run.counts.pending++;
    if (is_service(run, first + i)) {
      run.services.push_back(first + i);
      run.open_services++;
    }
  }
  UnitId end_of_calls = static_cast<UnitId>(run.units.size());
  for (UnitId call = first; call < end_of_calls; call++) {
    size_t instances = instances_from_start(*run.plan, run.node(run.units[call].node));
    if (instances > 0) append_instances(run, call, static_cast<uint32_t>(instances));
  }
  add_tagged(run, first);
  EdgeReader reader(run);
  std::vector<Edge> edges;
  for (UnitId call = first; call < run.units.size(); call++) {
    if (run.units[call].phase != Phase::waiting_for_dependencies) continue;
    reader.before(call, edges);
    run.units[call].waits_on = static_cast<uint32_t>(edges.size());
    for (const Edge& edge : edges) add_late_edge(run, call, edge);
  }
  UnitId end_of_units = static_cast<UnitId>(run.units.size());
  for (UnitId call = first; call < end_of_units; call++) {
    if (run.units[call].phase == Phase::waiting_for_dependencies && run.units[call].waits_on == 0)
      advance(run, call);
  }
}

}  // namespace flow::core
