// The backoff of retries.
#include <algorithm>

#include "engine/core/retry.hpp"

namespace flow::core {

namespace {

constexpr double kJitter = 0.2;  // of the delay, up or down

uint64_t mixed(uint64_t x) {  // splitmix64's finisher
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

/// In [0, 1), the same for the same attempt on every machine.
double fraction_of(const AttemptId& id) {
  uint64_t hash = 0xcbf29ce484222325;
  for (unsigned char c : id.run) hash = (hash ^ c) * 0x100000001b3;
  hash = mixed(hash ^ mixed(uint64_t{id.unit} << 32 | id.attempt));
  return static_cast<double>(hash >> 11) / static_cast<double>(uint64_t{1} << 53);
}

}  // namespace

RetryBudget budget_of(Cause cause) {
  switch (cause) {
    case Cause::out_of_memory:
      return RetryBudget::memory;
    case Cause::lost:
    case Cause::preempted:
    case Cause::staging:
    case Cause::gpu_fault:
    case Cause::environment:
      return RetryBudget::infrastructure;
    case Cause::cancelled:
    case Cause::stopped:
    case Cause::quarantined:
    case Cause::dependency:
      return RetryBudget::none;
    default:
      return RetryBudget::own;
  }
}

int64_t backoff_ms(const RetryPolicy& policy, uint32_t failures, const AttemptId& id) {
  FLOW_CHECK(failures >= 1);  // the first attempt never waits
  double cap = static_cast<double>(std::max<int64_t>(policy.cap_ms, 0));
  double delay = static_cast<double>(std::max<int64_t>(policy.backoff_ms, 0));
  for (uint32_t i = 1; i < failures && delay < cap; i++) delay *= std::max(policy.factor, 1.0);
  delay = std::min(delay, cap) * (1 - kJitter + 2 * kJitter * fraction_of(id));
  return static_cast<int64_t>(std::min(delay, cap));
}

int64_t restart_delay_ms(uint32_t deaths_in_row) {
  FLOW_CHECK(deaths_in_row >= 1);
  constexpr int64_t kFirstMs = 1000, kMaxMs = 60'000;
  constexpr uint32_t kDoublingsMax = 6;  // then it exceeds kMaxMs
  return std::min(kFirstMs << std::min(deaths_in_row - 1, kDoublingsMax), kMaxMs);
}

}  // namespace flow::core
