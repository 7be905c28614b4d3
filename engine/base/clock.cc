// Wall time and monotonic time, and wall time as text.
#include "engine/base/clock.hpp"

#include <fmt/format.h>

#include <chrono>

namespace flow {

int64_t now_ms() {
  using namespace std::chrono;
  return duration_cast<milliseconds>(system_clock::now().time_since_epoch()).count();
}

int64_t monotonic_us() {
  using namespace std::chrono;
  return duration_cast<microseconds>(steady_clock::now().time_since_epoch()).count();
}

std::string format_time(int64_t time_ms) {
  using namespace std::chrono;
  sys_time<milliseconds> at{milliseconds(time_ms)};
  sys_days day = floor<days>(at);
  year_month_day date{day};
  hh_mm_ss time{at - day};
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z", int{date.year()},
                     unsigned{date.month()}, unsigned{date.day()}, time.hours().count(),
                     time.minutes().count(), time.seconds().count(), time.subseconds().count());
}

}  // namespace flow
