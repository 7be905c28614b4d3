// Bounds how many lines a log gets: what is beyond that is counted.
#pragma once
#include <chrono>
#include <cstddef>
#include <optional>
#include <string>

namespace flow {

/// Not thread-safe.
class LineLimiter {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr size_t kLinesMax = 100;  // in a second that begins with the first of them
  static constexpr auto kPeriod = std::chrono::seconds(1);

  /// Whether the next line is to be written. If not, it is counted.
  bool admit(Clock::time_point now);
  /// How many lines were not written; 0 until the second is over.
  size_t take_dropped(Clock::time_point now);
  /// When take_dropped() has a number; time_point::max() if nothing was dropped.
  Clock::time_point next_report() const;

 private:
  Clock::time_point began_ = Clock::time_point::min();
  size_t written_ = 0, dropped_ = 0;  // since then
};

}  // namespace flow
