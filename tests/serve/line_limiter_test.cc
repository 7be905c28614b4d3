// How many lines a log gets.
#include "engine/serve/line_limiter.hpp"

#include <catch2/catch.hpp>

using namespace flow;
using namespace std::chrono_literals;

TEST_CASE("a log gets a number of lines in a second, and a count of the others") {
  LineLimiter limiter;
  const LineLimiter::Clock::time_point start(1000s);
  int written = 0;
  for (int i = 0; i < 150; i++) written += limiter.admit(start + i * 1ms) ? 1 : 0;
  CHECK(written == LineLimiter::kLinesMax);
  CHECK(limiter.next_report() == start + 1s);
  CHECK(limiter.take_dropped(start + 999ms) == 0);
  CHECK_FALSE(limiter.admit(start + 999ms));
  CHECK(limiter.take_dropped(start + 1s) == 51);
  CHECK(limiter.take_dropped(start + 1s) == 0);
  CHECK(limiter.next_report() == LineLimiter::Clock::time_point::max());
  CHECK(limiter.admit(start + 1s));
  for (int i = 0; i < 300; i++) CHECK(limiter.admit(start + 2s + i * 20ms));
  CHECK(limiter.take_dropped(start + 1h) == 0);
}
