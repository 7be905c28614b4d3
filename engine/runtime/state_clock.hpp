// The time that a state's records are stamped with.
#pragma once
#include <atomic>

#include "engine/core/types.hpp"

namespace flow {

/// Runs on the machine's monotonic clock while a process writes the state, so that a span (a
/// backoff, a timeout of ctx:wait) lasts as long as it says when the wall clock is set. Between two
/// processes it goes on by what the wall clock went on. Thread-safe.
class StateClock {
 public:
  struct Source {
    core::Time (*wall)();
    core::Time (*monotonic)();
  };
  static Source machine();  // the system's clocks; the monotonic one counts a suspend

  explicit StateClock(Source source = machine());

  /// Goes on from `last`, the newest time in the state, when the wall clock showed `wall_then`.
  /// With no span under way (`at_rest`) it shows the wall clock's time instead.
  void resume(core::Time last, core::Time wall_then, bool at_rest);
  core::Time now() const { return source_.monotonic() + ahead_of_monotonic_; }
  /// What now() was when this machine's wall clock showed `wall`.
  core::Time at_wall(core::Time wall) const { return wall + ahead_of_wall(); }
  /// now() less the wall clock: what a later process needs to know to resume.
  core::Time ahead_of_wall() const { return now() - source_.wall(); }
  /// Forward to the wall clock's time, where that is later. Only with no span under way.
  void catch_up();

 private:
  Source source_;
  std::atomic<core::Time> ahead_of_monotonic_;
};

}  // namespace flow
