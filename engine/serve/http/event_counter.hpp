// Counts the events of a stream of type text/event-stream.
#pragma once
#include <cstdint>
#include <string_view>

namespace flow {

/// An event ends with an empty line; comments alone are none (WHATWG HTML, "Parsing an event
/// stream"). Lines end with LF, CR or both.
class EventCounter {
 public:
  /// The next bytes of the stream: how many events end in them.
  uint64_t count(std::string_view bytes);

 private:
  bool is_at_line_start_ = true, is_after_cr_ = false;
  bool has_field_ = false;  // the event that has not ended
};

}  // namespace flow
