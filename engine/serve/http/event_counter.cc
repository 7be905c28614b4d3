#include "engine/serve/http/event_counter.hpp"

#include <utility>

namespace flow {

uint64_t EventCounter::count(std::string_view bytes) {
  uint64_t events = 0;
  for (char c : bytes) {
    bool is_after_cr = std::exchange(is_after_cr_, c == '\r');
    if (c == '\n' && is_after_cr) continue;  // the CR has ended the line
    bool is_start = std::exchange(is_at_line_start_, c == '\n' || c == '\r');
    if (!is_start) continue;
    if (is_at_line_start_) {
      if (std::exchange(has_field_, false)) events++;
    } else if (c != ':') {
      has_field_ = true;
    }
  }
  return events;
}

}  // namespace flow
