// The task that decides about each step of a canary. Its call is a node of the run, which is made
// when the numbers of the step are known.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "engine/core/graph.hpp"
#include "engine/core/mutants.hpp"
#include "engine/core/rollover.hpp"
#include "engine/core/transition.hpp"

namespace flow::core {

namespace {

bool is_awaited(const Run& run, UnitId unit) {
  return run.rollover.phase == RolloverPhase::gated && run.rollover.gate == unit;
}

/// "digits/check" is the first call of a gate, "digits/check#2" the second.
uint32_t gate_number(const std::string& name) {
  size_t mark = name.rfind('#');
  uint32_t number = 1;
  if (mark != std::string::npos)
    std::from_chars(name.data() + mark + 1, name.data() + name.size(), number);
  return number;
}

}  // namespace

bool is_gate(const Run& run, UnitId unit) {
  auto after = std::ranges::upper_bound(run.dynamics, unit, {}, &DynamicCalls::first_unit);
  if (after == run.dynamics.begin()) return false;
  const DynamicCalls& calls = *std::prev(after);
  return unit - calls.first_unit < calls.fragment->nodes.size() && !is_dynamic(run, calls.unit);
}

bool is_stale_gate(const Run& run, UnitId unit) {
  return is_gate(run, unit) && !is_awaited(run, unit);
}

std::optional<GateCall> next_gate_call(const Run& run) {
  auto service = std::ranges::find_if(
      run.services, [&](UnitId unit) { return !def_of(run, unit)->service.canary.gate.empty(); });
  if (service == run.services.end()) return std::nullopt;
  const std::string& name = def_of(run, *service)->service.canary.gate;
  const std::vector<TaskDef>& defs = run.plan->defs;
  auto def = std::ranges::find(defs, name, &TaskDef::name);
  if (def == defs.end()) return std::nullopt;
  GateCall call;
  call.service = run.unit_of(run.units[*service].node);
  call.def = static_cast<uint32_t>(def - defs.begin());
  call.name = unit_name(run, call.service) + "/" + name;
  uint32_t newest = 0;
  for (const DynamicCalls& calls : run.dynamics)
    if (!is_dynamic(run, calls.unit) && !run.units[calls.first_unit].dropped)
      newest = std::max(newest, gate_number(run.node(calls.first_node).name));
  if (newest > 0) call.name += "#" + std::to_string(newest + 1);
  return call;
}

void Transition::call_gate(Run& run, const TrafficMeasured& measured) {
  run.rollover.phase = RolloverPhase::gated;
  run.rollover.gate = kNoNode;
  emit(CallGate{run.id, measured.step, measured.requests, measured.errors, measured.p50_us,
                measured.p99_us});
}

// It runs at each step, whatever the cache has.
void Transition::on(const GateCalled& event) {
  Run& r = run(event.run);
  touch(r);
  if (r.units.size() + event.fragment->nodes.size() > kNodesMax)
    return revert(r,
                  fmt::format("its gate cannot be called: a run has at most {} tasks", kNodesMax));
  UnitId service = next_gate_call(r)->service;
  auto gate = static_cast<UnitId>(r.units.size());
  append_units(r, service, event.fragment, event.fragment_digest);
  r.rollover.gate = gate;
  r.units[gate].forced = true;
  emit(RunChanged{r.id});
}

void Transition::on(const GateAnswered& event) {
  Run& r = run(event.run);
  touch(r);
  if (!event.passes && !has_mutant(Mutant::gate_is_ignored)) return revert(r, event.why);
  pass_step(r);
}

// Called when the unit has its final status.
void Transition::gate_ended(Run& run, UnitId unit) {
  if (!is_awaited(run, unit)) return;
  const Unit& u = run.units[unit];
  if (u.status == UnitStatus::succeeded) return emit(ReadGate{run.id, unit, run.rollover.step});
  if (run.cancelling) return;
  std::string why = u.detail ? u.detail->failure.message : "";
  why.resize(std::min(why.find('\n'), why.size()));
  revert(run, fmt::format("its gate `{}` {}{}{}", shown_name(run, unit),
                          u.status == UnitStatus::failed ? "failed" : "was cancelled",
                          why.empty() ? "" : ": ", why));
}

// Nobody waits for the newest call of the gate any more. One that passed its step remains; another
// one is no part of the run from now on, or from the end of its attempt on.
void Transition::leave_gate(Run& run) {
  UnitId gate = std::exchange(run.rollover.gate, kNoNode);
  if (gate == kNoNode || run.units[gate].dropped) return;
  if (run.units[gate].status == UnitStatus::succeeded) return;
  if (run.units[gate].phase == Phase::running) {
    if (!run.cancelling) stop_attempt(run, gate);
    return;
  }
  leave(run, gate);
  drop_gate(run, gate);
}

// Of an engine that has ended: nothing waits for their answers any more.
void Transition::drop_left_gates(Run& run) {
  for (size_t i = 0; i < run.dynamics.size(); i++) {
    UnitId gate = run.dynamics[i].first_unit;
    const Unit& u = run.units[gate];
    bool is_over = !is_stale_gate(run, gate) || u.dropped || is_final(u.status);
    if (is_over || u.phase == Phase::running) continue;  // it runs on a worker
    leave(run, gate);
    drop_gate(run, gate);
  }
}

// Called after leave(). Its failure, or that it was cancelled, says nothing about the run.
void Transition::drop_gate(Run& run, UnitId gate) {
  release_key(run, gate);
  move(run, gate, Phase::done, UnitStatus::cancelled);
  Unit& u = run.units[gate];
  count_unit(run.counts, u, -1);
  run.phases[static_cast<size_t>(Phase::done)]--;
  u.finished = at_;
  u.waits_on = 0;
  u.dropped = true;
}

}  // namespace flow::core
