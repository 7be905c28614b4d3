#include "engine/worker/replica_controller.hpp"

#include <utility>

namespace flow {

std::optional<uint32_t> ReplicaController::decide(const LoadSample& sample) {
  std::optional<int64_t> last = std::exchange(last_ms_, sample.at_ms);
  bool has_gap = last && sample.at_ms - *last > kGapMs;
  if (has_gap) high_since_ms_ = low_since_ms_ = std::nullopt;
  bool is_high = sample.queue_us > limits_.target_queue_us || sample.rejected > 0;
  std::optional<int64_t>& since = is_high ? high_since_ms_ : low_since_ms_;
  (is_high ? low_since_ms_ : high_since_ms_) = std::nullopt;
  bool is_growing = is_high && sample.ready < wanted_;
  if (!since || is_growing) since = sample.at_ms;
  if (sample.at_ms - *since < (is_high ? limits_.up_after_ms : limits_.down_after_ms))
    return std::nullopt;
  bool may_step = is_high ? wanted_ < limits_.max : wanted_ > limits_.min && may_shrink_;
  if (!may_step) return std::nullopt;
  since = sample.at_ms;
  wanted_ = is_high ? wanted_ + 1 : wanted_ - 1;
  return wanted_;
}

}  // namespace flow
