// Times of requests in buckets that are fine enough for percentiles, and counts of recent requests.
#pragma once
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace flow {

/// Percentiles are at most 5% off, up to about 19 hours.
class LatencyHistogram {
 public:
  void add(std::chrono::microseconds duration) { counts_[bucket_of(duration.count())]++; }
  void add(const LatencyHistogram& other);
  uint64_t count() const;
  /// The time that the share of all requests (0.99) does not exceed; 0 if there are none.
  std::chrono::microseconds percentile(double share) const;

 private:
  // Below 32 µs each has a bucket; each power of two above has 16.
  static constexpr int kFinePowers = 5, kSubPowers = 4, kPowersMax = 36;
  static constexpr size_t kFine = 1u << kFinePowers, kSub = 1u << kSubPowers;
  static constexpr size_t kBuckets = kFine + (kPowersMax - kFinePowers) * kSub;

  static size_t bucket_of(int64_t us);
  static int64_t middle_of(size_t bucket);

  std::array<uint32_t, kBuckets> counts_{};
};

/// How many requests waited for their batch, and how long in all.
struct RequestWaits {
  uint64_t requests = 0;
  std::chrono::microseconds total{};

  void add(std::chrono::steady_clock::duration wait) {
    requests++;
    total += std::chrono::duration_cast<std::chrono::microseconds>(wait);
  }
  void add(const RequestWaits& other) {
    requests += other.requests;
    total += other.total;
  }
  /// 0 without requests.
  std::chrono::microseconds mean() const {
    return requests == 0 ? std::chrono::microseconds{} : total / static_cast<int64_t>(requests);
  }
};

/// Counts of requests: all, those since the begin of a step, and those of the last 10 s. Durations
/// are those of accepted requests alone: a refusal takes no time, so that a version that refuses
/// most requests would look fast. Not thread-safe.
class RequestCounters {
 public:
  using Clock = std::chrono::steady_clock;
  struct Figures {
    uint64_t requests = 0, errors = 0;  // accepted ones; errors have a status from 500 on
    uint64_t refused = 0;               // with status 429 or 503, besides `requests`
    uint64_t step_requests = 0, step_errors = 0, step_refused = 0;
    std::chrono::microseconds step_p50{}, step_p99{};
    double requests_per_second = 0;  // of the last 10 s, as p50 and p99
    std::chrono::microseconds p50{}, p99{};
    // Of the last 10 s, or since restart_load(), if that is later:
    RequestWaits waits = {};
    uint64_t rejected = 0;  // with status 429
  };

  explicit RequestCounters(Clock::time_point now) : began_(now) {}

  /// An accepted request was answered.
  void count(int status, Clock::duration duration, Clock::time_point now);
  /// A request was not accepted. A status besides 429 and 503 says that it was not valid: it is in
  /// no figure.
  void count_refused(int status, Clock::time_point now);
  /// A request begins, so long after its arrival.
  void count_wait(Clock::duration wait, Clock::time_point now);
  void restart_step();
  /// What was counted of the load so far does not tell about the replicas that there are now.
  void restart_load();
  Figures figures(Clock::time_point now) const;

 private:
  static constexpr int64_t kSeconds = 10;
  struct Second {
    int64_t number = -1;  // of the clock
    LatencyHistogram durations = {};
    RequestWaits waits = {};
    uint64_t rejected = 0;
  };
  Second& second_at(Clock::time_point now);

  Clock::time_point began_;
  uint64_t requests_ = 0, errors_ = 0, refused_ = 0;
  uint64_t step_requests_ = 0, step_errors_ = 0, step_refused_ = 0;
  LatencyHistogram step_;
  std::array<Second, kSeconds> seconds_;  // by their number modulo kSeconds
};

}  // namespace flow
