// The takeover of a name's traffic by a new version: what others may know about it.
#pragma once
#include <optional>
#include <string>

#include "engine/core/core.hpp"

namespace flow::core {

/// The canary of the run's services: of several the most steps, and the strictest of each limit.
CanarySpec canary_of(const Run& run);
/// Percent of the traffic that the new version has in this step, and the number of steps.
uint32_t step_percent(const CanarySpec& canary, uint32_t step);
uint32_t step_count(const CanarySpec& canary);
/// Whether the traffic is divided between two versions, or about to be.
inline bool is_under_way(RolloverPhase phase) {
  return (phase >= RolloverPhase::shifting && phase <= RolloverPhase::reverting) ||
         phase == RolloverPhase::gated;
}
/// Whether nothing but services is left of the run: StopRequested then ends it for good.
bool only_serves(const State& state, const Run& run);
/// Whether an engine ended in a later step than the first of the run's rollover: when both versions
/// are at work again, it continues at that step.
bool has_step_to_continue(const Run& run);
/// Whether a run whose name is served beside it waits with the start of its services until the
/// version before has ended (`rollover = "replace"`).
bool is_held_back(const Run& run, UnitId unit);
/// Whether the unit is a call of the task that decides about a canary, and whether nothing waits
/// for it any more.
bool is_gate(const Run& run, UnitId unit);
bool is_stale_gate(const Run& run, UnitId unit);
/// The next call of that task.
struct GateCall {
  UnitId service = 0;  // the own unit of the service whose canary names the task
  uint32_t def = 0;
  std::string name;  // of its node: "digits/check", "digits/check#2"
};
/// Nothing if no service of the run has such a task.
std::optional<GateCall> next_gate_call(const Run& run);
/// Why the service cannot start while the version before serves, as a clause; "" if it can, or if
/// that version is not the reason.
std::string beside_problem(const State& state, const Run& run, const Run& owner, UnitId service);
const char* phase_name(RolloverPhase phase);  // "waiting", "shifting", …; "" for none

}  // namespace flow::core
