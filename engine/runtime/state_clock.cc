#include "engine/runtime/state_clock.hpp"

#include <algorithm>

#include "engine/base/clock.hpp"

namespace flow {

StateClock::Source StateClock::machine() { return {now_ms, since_boot_ms}; }

StateClock::StateClock(Source source)
    : source_(source), ahead_of_monotonic_(source.wall() - source.monotonic()) {}

void StateClock::resume(core::Time last, core::Time wall_then, bool at_rest) {
  core::Time wall = source_.wall();
  core::Time between = std::max<core::Time>(0, wall - wall_then);
  ahead_of_monotonic_ = (at_rest ? wall : last + between) - source_.monotonic();
}

void StateClock::catch_up() {
  core::Time ahead = ahead_of_wall();
  if (ahead < 0) ahead_of_monotonic_ -= ahead;
}

}  // namespace flow
