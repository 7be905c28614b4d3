// The clock whose times stamp the records of a state.
#pragma once
#include <algorithm>
#include <atomic>
#include <functional>
#include <utility>

#include "engine/base/clock.hpp"
#include "engine/core/types.hpp"

namespace flow {

/// Follows the machine's monotonic clock while a process writes the state, so that a duration (a
/// backoff, a timeout of ctx:wait) is not affected when the wall clock is set. Between two
/// processes it advances by the difference of the wall clock. Thread-safe.
class StateClock {
 public:
  struct Source {
    std::function<core::Time()> wall, monotonic;
  };
  /// The system's clocks; the monotonic one counts a suspend.
  static Source machine() { return {now_ms, since_boot_ms}; }

  explicit StateClock(Source source = machine())
      : source_(std::move(source)), ahead_of_monotonic_(source_.wall() - source_.monotonic()) {}

  /// Continues from `last`, the newest time in the state, when the wall clock showed `wall_then`.
  /// With no span under way (`at_rest`) it shows the wall clock's time instead.
  void resume(core::Time last, core::Time wall_then, bool at_rest) {
    core::Time wall = source_.wall();
    core::Time between = std::max<core::Time>(0, wall - wall_then);
    ahead_of_monotonic_ = (at_rest ? wall : last + between) - source_.monotonic();
  }
  core::Time now() const { return source_.monotonic() + ahead_of_monotonic_; }
  /// The value of now() when this machine's wall clock showed `wall`.
  core::Time at_wall(core::Time wall) const { return wall + ahead_of_wall(); }
  /// now() minus the wall clock: a later process needs it to continue.
  core::Time ahead_of_wall() const { return now() - source_.wall(); }
  /// Forward to the wall clock's time, if that is later. Only with no span under way.
  void catch_up() {
    core::Time ahead = ahead_of_wall();
    if (ahead < 0) ahead_of_monotonic_ -= ahead;
  }

 private:
  const Source source_;
  std::atomic<core::Time> ahead_of_monotonic_;
};

}  // namespace flow
