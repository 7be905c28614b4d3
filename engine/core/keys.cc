// Single-flight: equal keys are computed once. One unit holds a key; the others wait for it and
// take its result. A hold serves all runs, or only its own run if others must not share the result:
// a fresh or forced computation, a task that waited for its run's signal, a shell task that runs
// for its effect.
#include "engine/core/transition.hpp"

namespace flow::core {

namespace {

bool is_for_own_run(const Run& run, UnitId unit) {
  const Unit& u = run.units[unit];
  if (run.fresh || u.forced || (u.detail && !u.detail->waits.empty())) return true;
  const TaskDef& def = *def_of(run, unit);
  bool for_effect = def.kind == TaskKind::shell && def.shell.outputs.empty();
  return for_effect && !def.cache_written && !has_consumers(run, unit);
}

bool is_shared_work(const Run& run, UnitId unit) {
  const TaskDef& def = *def_of(run, unit);
  return def.cache && def.kind != TaskKind::service;
}

}  // namespace

KeyScope key_scope_of(const Run& run, UnitId unit) {
  const Unit& u = run.units[unit];
  bool computes = u.phase == Phase::sizing || u.phase == Phase::ready ||
                  u.phase == Phase::running || u.phase == Phase::signal ||
                  u.phase == Phase::backoff;
  if (!computes || u.dropped || !is_shared_work(run, unit)) return KeyScope::none;
  return is_for_own_run(run, unit) ? KeyScope::own : KeyScope::shared;
}

UnitId own_holder(const Run& run, const Digest& key) {
  const KeyTable::Holder* found = run.computing.find(
      key, [&](const KeyTable::Holder& holder) { return run.units[holder.second].key; });
  return found == nullptr ? kNoNode : found->second;
}

const KeyTable::Holder* shared_holder(const State& state, const Digest& key) {
  return state.computing.find(key, [&](const KeyTable::Holder& holder) {
    return state.runs.at(state.run_numbers.at(holder.first)).units[holder.second].key;
  });
}

// At most one unit per run holds a key, so that the holds can be derived from the units.
bool Transition::acquire_key(Run& run, UnitId unit) {
  Unit& u = run.units[unit];
  FLOW_CHECK(u.key_scope == KeyScope::none);
  if (!is_shared_work(run, unit)) return true;
  if (own_holder(run, u.key) != kNoNode) return false;
  bool own = is_for_own_run(run, unit);
  const KeyTable::Holder* shared = shared_holder(state_, u.key);
  if (shared != nullptr) {
    bool in_this_run = shared->first == run.number;
    if (!own || in_this_run) return false;
  }
  u.key_scope = own ? KeyScope::own : KeyScope::shared;
  (own ? run.computing : state_.computing).insert(u.key, {run.number, unit});
  return true;
}

void Transition::wait_for_duplicate(Run& run, UnitId unit) {
  state_.key_waiters[run.units[unit].key].insert({run.id, unit});
  move(run, unit, Phase::coalesced, UnitStatus::pending);
}

// The units that wait for `unit`, the holder of its key. Another run's waiters may have a holder of
// their own.
std::vector<std::pair<RunId, UnitId>> Transition::duplicates_of(const Run& run, UnitId unit) const {
  const Unit& u = run.units[unit];
  std::vector<std::pair<RunId, UnitId>> duplicates;
  auto waiters = state_.key_waiters.find(u.key);
  if (u.key_scope == KeyScope::none || waiters == state_.key_waiters.end()) return duplicates;
  for (const auto& waiter : waiters->second) {
    if (u.key_scope == KeyScope::own) {
      if (waiter.first == run.id) duplicates.push_back(waiter);
    } else if (own_holder(state_.runs.at(waiter.first), u.key) == kNoNode) {
      duplicates.push_back(waiter);
    }
  }
  return duplicates;
}

void Transition::release_key(Run& run, UnitId unit) {
  Unit& u = run.units[unit];
  if (u.key_scope == KeyScope::none) return;
  KeyScope key_scope = u.key_scope;
  Digest key = u.key;
  u.key_scope = KeyScope::none;
  (key_scope == KeyScope::own ? run.computing : state_.computing).erase(key, {run.number, unit});
  auto waiters = state_.key_waiters.find(key);
  if (waiters == state_.key_waiters.end()) return;
  // One successor is enough: the other units wait for it.
  for (auto place = waiters->second.begin(); place != waiters->second.end(); ++place) {
    if (key_scope == KeyScope::own && place->first != run.id) continue;
    Run& next_run = this->run(place->first);
    UnitId next = place->second;
    if (is_winding_down(next_run) || next_run.stopping) continue;  // about to be cancelled or held
    if (!acquire_key(next_run, next)) continue;
    waiters->second.erase(place);
    if (waiters->second.empty()) state_.key_waiters.erase(waiters);
    touch(next_run);
    return to_ready(next_run, next);
  }
}

void Transition::publish_result(Run& run, UnitId unit) {
  std::vector<std::pair<RunId, UnitId>> duplicates = duplicates_of(run, unit);
  Unit& u = run.units[unit];
  Digest key = u.key;
  Digest result = u.result;
  if (u.key_scope == KeyScope::own) run.computing.erase(key, {run.number, unit});
  if (u.key_scope == KeyScope::shared) state_.computing.erase(key, {run.number, unit});
  u.key_scope = KeyScope::none;
  bool has_calls = u.expanded && is_dynamic(run, unit);
  const DynamicCalls* calls = has_calls ? &run.dynamics[run.dynamic_of.at(unit)] : nullptr;
  std::shared_ptr<const PlanFragment> fragment = calls ? calls->fragment : nullptr;
  Digest fragment_digest = calls ? calls->fragment_digest : Digest{};
  for (const auto& [duplicate_run_id, duplicate] : duplicates) {
    Run& duplicate_run = this->run(duplicate_run_id);
    touch(duplicate_run);
    leave(duplicate_run, duplicate);
    Unit& d = duplicate_run.units[duplicate];
    d.cached = true;
    if (&duplicate_run == &run) {
      UnitDetail detail = d.detail ? *d.detail : UnitDetail{};
      detail.computed_by = unit;
      d.detail = std::make_shared<const UnitDetail>(std::move(detail));
    }
    if (fragment) {
      append_calls(duplicate_run, duplicate, fragment, fragment_digest);
    } else {
      succeed(duplicate_run, duplicate, result);
    }
  }
}

// From now on the unit serves its own run only.
void Transition::restrict_key_to_run(Run& run, UnitId unit) {
  Unit& u = run.units[unit];
  if (u.key_scope != KeyScope::shared) return;
  FLOW_CHECK(own_holder(run, u.key) == kNoNode);
  run.computing.insert(u.key, {run.number, unit});
  // Release the shared hold, so that the next unit of another run computes the key.
  release_key(run, unit);
  run.units[unit].key_scope = KeyScope::own;
}

}  // namespace flow::core
