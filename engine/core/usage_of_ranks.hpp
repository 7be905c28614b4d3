// The usage of a gang's attempt, computed from the usage of its ranks.
#pragma once
#include <algorithm>

#include "engine/core/attempt_usage.hpp"

namespace flow::core {

/// Adds what another rank used. The peak is that of the largest rank, because `memory` is what each
/// rank asks for; the function has begun once it has on every rank; and the commit is rank 0's,
/// which has the result.
inline void add_rank(AttemptUsage& to, const AttemptUsage& rank) {
  auto add = [](int64_t& sum, int64_t figure) {
    if (figure >= 0) sum = std::max<int64_t>(sum, 0) + figure;
  };
  add(to.cpu_us, rank.cpu_us);
  add(to.read_bytes, rank.read_bytes);
  add(to.written_bytes, rank.written_bytes);
  add(to.leave_wait_us, rank.leave_wait_us);
  add(to.moved_bytes, rank.moved_bytes);
  to.peak_memory = std::max(to.peak_memory, rank.peak_memory);
  to.stage_us = std::max(to.stage_us, rank.stage_us);
  add_gpu_use(to, rank);
}

}  // namespace flow::core
