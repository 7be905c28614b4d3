// How long calls of predict take at present, to tell which requests would be answered too late.
#pragma once
#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>

namespace flow {

/// Not thread-safe.
class CallTimes {
 public:
  using Duration = std::chrono::steady_clock::duration;

  void add(Duration call) { last_[count_++ % kCalls] = call; }

  /// The mean of the last calls without the longest one, which may be an exception. Nothing before
  /// the first call.
  std::optional<Duration> typical() const {
    if (count_ == 0) return std::nullopt;
    const size_t known = std::min(count_, kCalls);
    auto end = last_.begin() + static_cast<ptrdiff_t>(known);
    Duration sum = std::accumulate(last_.begin(), end, Duration{});
    if (known == 1) return sum;
    return (sum - *std::max_element(last_.begin(), end)) / static_cast<int64_t>(known - 1);
  }

 private:
  static constexpr size_t kCalls = 16;

  std::array<Duration, kCalls> last_{};
  size_t count_ = 0;
};

}  // namespace flow
