// The clock of a state against a machine whose wall clock is set.
#include "engine/runtime/state_clock.hpp"

#include <catch2/catch.hpp>

using namespace flow;

namespace {

constexpr core::Time kHour = 3'600'000;

core::Time wall = 0, elapsed = 0;  // of the simulated machine

StateClock clock_at(core::Time now) {
  wall = now;
  elapsed = 5;
  return StateClock({[] { return wall; }, [] { return elapsed; }});
}

void pass(core::Time ms) {
  wall += ms;
  elapsed += ms;
}

}  // namespace

TEST_CASE("a clock that is set does not move the state's time") {
  StateClock clock = clock_at(1000);
  CHECK(clock.now() == 1000);
  wall += kHour;
  CHECK(clock.now() == 1000);
  CHECK(clock.ahead_of_wall() == -kHour);
  wall -= 3 * kHour;
  pass(7);
  CHECK(clock.now() == 1007);
  CHECK(clock.ahead_of_wall() == 2 * kHour);
  CHECK(clock.at_wall(wall - 2) == 1005);  // a late report
}

TEST_CASE("between two processes the wall clock counts, forward only") {
  struct Case {
    core::Time last, wall_then, wall_now, expected;
  };
  for (const Case& each :
       {Case{100, 100, 100 + kHour, 100 + kHour},     // the clock was right
        Case{100, 100, 100 - kHour, 100},             // it was set back between the processes
        Case{kHour, 0, 500, kHour + 500},             // set back while a process wrote
        Case{100, kHour, kHour + 500, 100 + 500}}) {  // set forward while a process wrote
    StateClock clock = clock_at(each.wall_now);
    clock.resume(each.last, each.wall_then, false);
    CHECK(clock.now() == each.expected);
  }
}

TEST_CASE("an idle state takes the wall clock's time") {
  StateClock clock = clock_at(1000);
  clock.resume(kHour, kHour, true);
  CHECK(clock.now() == 1000);
  wall += 50;
  clock.catch_up();
  CHECK(clock.now() == 1050);
  wall -= 40;
  clock.catch_up();
  CHECK(clock.now() == 1050);
}
