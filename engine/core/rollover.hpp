// The takeover of a name's traffic by a new version: what others may know about it.
#pragma once
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
/// Whether a run whose name is served beside it waits with the start of its services until the
/// version before has ended (`rollover = "replace"`).
bool is_held_back(const Run& run, UnitId unit);
const char* phase_name(RolloverPhase phase);  // "waiting", "shifting", …; "" for none

}  // namespace flow::core
