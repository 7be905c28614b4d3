#include "engine/serve/line_limiter.hpp"

#include <utility>

namespace flow {

bool LineLimiter::admit(Clock::time_point now) {
  if (written_ == 0 || (dropped_ == 0 && now - began_ >= kPeriod)) {
    began_ = now;
    written_ = 0;
  }
  bool is_admitted = written_ < kLinesMax;
  (is_admitted ? written_ : dropped_)++;
  return is_admitted;
}

size_t LineLimiter::take_dropped(Clock::time_point now) {
  if (now < next_report()) return 0;
  written_ = 0;
  return std::exchange(dropped_, 0);
}

LineLimiter::Clock::time_point LineLimiter::next_report() const {
  return dropped_ == 0 ? Clock::time_point::max() : began_ + kPeriod;
}

}  // namespace flow
