// Decides how many replicas of a service its load needs. Pure: the caller gives the time.
#pragma once
#include <cstdint>
#include <optional>

namespace flow {

struct ReplicaLimits {
  uint32_t min = 1, max = 1;
  int64_t target_queue_us = 0;  // requests wait longer: one more
  int64_t up_after_ms = 0, down_after_ms = 0;
  bool operator==(const ReplicaLimits&) const = default;
};

/// What a front says about a version of a service.
struct LoadSample {
  int64_t at_ms = 0;      // of a clock that does not go back
  int64_t queue_us = 0;   // mean time of its requests before their batch
  uint64_t rejected = 0;  // requests that recently got status 429
  uint32_t ready = 0;     // replicas that take requests
};

/// The load is high while requests wait longer than the target, or some are rejected. After
/// `up_after_ms` of it there is one replica more, after `down_after_ms` without it one less. Each
/// further step needs the same time again, and that for a step up begins when all replicas are
/// ready: before that, the load does not tell whether they suffice.
class ReplicaController {
 public:
  ReplicaController(const ReplicaLimits& limits, uint32_t wanted)
      : limits_(limits), wanted_(wanted) {}

  /// The number that there shall be instead of wanted(). Samples that are more than kGapMs apart
  /// say nothing about the time between them.
  std::optional<uint32_t> decide(const LoadSample& sample);
  /// How many there are, where something else than decide() may have changed it.
  void set_wanted(uint32_t wanted) { wanted_ = wanted; }
  /// While it may not, no step down is due; the wait for it continues.
  void set_may_shrink(bool may_shrink) { may_shrink_ = may_shrink; }

  uint32_t wanted() const { return wanted_; }
  const ReplicaLimits& limits() const { return limits_; }

  static constexpr int64_t kGapMs = 10'000;

 private:
  const ReplicaLimits limits_;
  uint32_t wanted_;
  bool may_shrink_ = true;
  std::optional<int64_t> last_ms_;
  std::optional<int64_t> high_since_ms_, low_since_ms_;  // one of them, after the first sample
};

}  // namespace flow
