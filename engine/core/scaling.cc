// Replicas of services, whose number follows the load.
#include "engine/core/scaling.hpp"

#include <algorithm>

#include "engine/core/rollover.hpp"
#include "engine/core/transition.hpp"

namespace flow::core {

namespace {

/// The service whose replicas scale and of which the unit is a replica; else null.
const ServiceSpec* scaled_service(const Run& run, UnitId unit) {
  const Unit& u = run.units[unit];
  const TaskNode& node = run.node(u.node);
  if (u.instance < 0 || node.kind != NodeKind::task) return nullptr;
  const TaskDef& def = run.plan->defs[node.def];
  bool scales = def.kind == TaskKind::service && def.service.scaling.max > 0;
  return scales ? &def.service : nullptr;
}

/// Whether it is a replica beyond the least number of its service.
bool is_beyond_least(const Run& run, UnitId unit) {
  const ServiceSpec* service = scaled_service(run, unit);
  return service != nullptr && static_cast<uint32_t>(run.units[unit].instance) >= service->replicas;
}

}  // namespace

bool is_scaled_set(const Run& run, UnitId unit) {
  return is_replica_set(run, unit) && def_of(run, unit)->service.scaling.max > 0;
}

uint32_t replicas_in_use(const Run& run, UnitId set) {
  const auto& detail = run.units[set].detail;
  bool has_scaled = detail && detail->replicas_wanted > 0;
  return has_scaled ? detail->replicas_wanted : def_of(run, set)->service.replicas;
}

bool is_spare(const Run& run, UnitId unit) {
  if (scaled_service(run, unit) == nullptr) return false;
  const Unit& u = run.units[unit];
  return static_cast<uint32_t>(u.instance) >= replicas_in_use(run, run.unit_of(u.node));
}

bool is_further_replica(const Run& run, UnitId unit) {
  return is_beyond_least(run, unit) && run.units[run.unit_of(run.units[unit].node)].satisfied;
}

bool are_services_up(const Run& run) {
  return std::ranges::all_of(run.services, [&](UnitId service) {
    const Unit& u = run.units[service];
    return is_final(u.status) || is_up(u) || is_beyond_least(run, service);
  });
}

bool is_serving(const Run& run) {
  bool is_ending = is_final(run.status) || run.stopping || run.cancelling || run.ending;
  bool has_traffic =
      run.status == RunStatus::serving ||
      (is_under_way(run.rollover.phase) && run.rollover.phase != RolloverPhase::reverting);
  return has_traffic && !is_ending;
}

bool is_being_replaced(const State& state, const Run& run) {
  return !run.name.empty() && std::ranges::any_of(state.runs, [&](const auto& each) {
    const Run& other = each.second;
    return other.name == run.name && other.rollover.previous == run.id && !is_final(other.status) &&
           is_under_way(other.rollover.phase);
  });
}

bool may_scale(const State& state, const Run& run, UnitId set, uint32_t replicas) {
  if (set >= run.units.size() || run.units[set].dropped || !is_scaled_set(run, set)) return false;
  const ServiceSpec& service = def_of(run, set)->service;
  uint32_t in_use = replicas_in_use(run, set);
  bool is_within = replicas >= service.replicas && replicas <= service.scaling.max;
  bool may_shrink = replicas > in_use || !is_being_replaced(state, run);
  return run.units[set].phase == Phase::instances && is_serving(run) && is_within &&
         replicas != in_use && may_shrink;
}

// The units that begin or cease to be spare are those between the two numbers.
void Transition::on(const ReplicasScaled& event) {
  Run& r = run(event.run);
  touch(r);
  uint32_t before = replicas_in_use(r, event.unit);
  std::vector<UnitId> changed = instances_of(r, event.unit);
  changed.erase(changed.begin() + std::max(before, event.replicas), changed.end());
  changed.erase(changed.begin(), changed.begin() + std::min(before, event.replicas));
  auto count_all = [&](int by) {
    for (UnitId unit : changed)
      if (is_counted(r, unit)) count_unit(r.counts, r.units[unit], by);
  };
  count_all(-1);
  UnitDetail detail = r.units[event.unit].detail ? *r.units[event.unit].detail : UnitDetail();
  detail.replicas_wanted = event.replicas;
  r.units[event.unit].detail = std::make_shared<const UnitDetail>(std::move(detail));
  count_all(1);
  for (UnitId unit : changed)
    event.replicas > before ? use_replica(r, unit) : spare_replica(r, unit);
}

// One whose last attempt is still being stopped starts again when that has ended.
void Transition::use_replica(Run& run, UnitId unit) {
  if (run.units[unit].phase == Phase::parked) emit_query(run, unit);
}

// An attempt that runs is drained by its front. Then it ends, and the unit is parked.
void Transition::spare_replica(Run& run, UnitId unit) {
  switch (run.units[unit].phase) {
    case Phase::running:
      return stop_attempt(run, unit);
    case Phase::sizing:
    case Phase::ready:
    case Phase::coalesced:
    case Phase::backoff:
      leave(run, unit);
      return park_spare(run, unit);
    default:
      return;
  }
}

// Called after leave(). When the unit is in use again, nothing of its past counts but its attempts.
void Transition::park_spare(Run& run, UnitId unit) {
  Unit& u = run.units[unit];
  if (u.detail) {
    UnitDetail detail = *u.detail;
    detail.failure = {};
    detail.was_ready = false;
    detail.ready_at = 0;
    detail.deaths_in_row = 0;
    u.detail = std::make_shared<const UnitDetail>(std::move(detail));
  }
  to_parked(run, unit);
  end_left_spares(run, run.unit_of(u.node));
}

// Nothing uses the spare replicas of a service of which all others have ended. The end of one leads
// here again.
void Transition::end_left_spares(Run& run, UnitId set) {
  if (!is_scaled_set(run, set) || run.units[set].phase != Phase::instances) return;
  UnitId left = kNoNode;
  for (UnitId replica : instances_of(run, set)) {
    const Unit& u = run.units[replica];
    if (is_final(u.status)) continue;
    if (!is_spare(run, replica) || u.phase != Phase::parked) return;
    left = replica;
  }
  if (left == kNoNode) return;
  leave(run, left);
  if (run.ending) return end_service(run, left);
  UnitDetail detail;
  detail.failure = {Cause::cancelled, "no other replica is left", "", 0};
  end(run, left, UnitStatus::cancelled, std::make_shared<const UnitDetail>(std::move(detail)));
}

UnitDetailPtr Transition::with_replicas(const Run& run, UnitId unit, UnitDetailPtr detail) const {
  uint32_t in_use = is_scaled_set(run, unit) ? replicas_in_use(run, unit) : 0;
  uint32_t own = detail ? detail->replicas_wanted : 0;
  if (in_use == 0 || own == in_use) return detail;
  UnitDetail kept = detail ? *detail : UnitDetail();
  kept.replicas_wanted = in_use;
  return std::make_shared<const UnitDetail>(std::move(kept));
}

}  // namespace flow::core
