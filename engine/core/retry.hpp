// When a failed attempt is retried, and which budget pays for it. Pure: the same inputs always give
// the same time.
#pragma once
#include <cstdint>

#include "engine/core/core.hpp"

namespace flow::core {

/// The retry budget that a failed attempt spends: a counter in UnitDetail with a limit in TaskDef.
enum class RetryBudget : uint8_t { own, memory, infrastructure, none };
RetryBudget budget_of(Cause cause);

/// Failure::code of a `staging` failure: the state no longer has an input.
constexpr int32_t kInputIsGone = 1;
/// Whether every further attempt would fail the same way until a resume recomputes the input.
inline bool is_lasting(const Failure& failure) {
  return failure.cause == Cause::staging && failure.code == kInputIsGone;
}

/// Number of consecutive workers that may die while they run a unit, without progress in between,
/// before the unit is quarantined. The last of these attempts runs alone on its worker, and at
/// least two of the workers differ. TaskDef's `infra` limits all losses, also those with progress.
constexpr uint32_t kLostMax = 3;

/// Delay before the attempt after `failures` failures; jitter is a hash of run, unit and attempt.
int64_t backoff_ms(const RetryPolicy& policy, uint32_t failures, const AttemptId& id);

/// A service that was ready for this long before it died has no earlier deaths.
constexpr Time kForgivenAfterMs = 5 * 60'000;
/// Delay before a service that was ready starts again: 1 s, doubled by each death in a row, at most
/// 60 s.
int64_t restart_delay_ms(uint32_t deaths_in_row);

}  // namespace flow::core
