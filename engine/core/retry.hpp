// When a failed attempt is tried again, and on whose account. Pure: the same inputs always give the
// same time.
#pragma once
#include <cstdint>

#include "engine/core/core.hpp"

namespace flow::core {

/// Which count of UnitDetail an attempt that ended so spends, and what TaskDef grants.
enum class Budget : uint8_t { own, memory, infrastructure, none };
Budget budget_of(Cause cause);

/// Failure::code with the cause staging: the state does not hold an input any more.
constexpr int32_t kInputIsGone = 1;
/// Whether another attempt would fail in the same way, until a resume computes the input again.
inline bool is_lasting(const Failure& failure) {
  return failure.cause == Cause::staging && failure.code == kInputIsGone;
}

/// Workers that may die in a row under a unit, with nothing saved in between, before it is
/// quarantined. The last of these attempts has its host to itself, and two workers are not the
/// same. TaskDef's `infra` counts all that a unit loses, whether it gets on or not.
constexpr uint32_t kLostMax = 3;

/// Delay before the attempt after `failures` failures; jitter is a hash of run, unit and attempt.
int64_t backoff_ms(const RetryPolicy& policy, uint32_t failures, const AttemptId& id);

}  // namespace flow::core
