// Two ends of a stream, one of which also gets arbitrary messages: neither buffers more than the
// window, and between two correct ends every byte arrives once and in order.
#include <algorithm>
#include <deque>
#include <string>

#include "engine/cluster/session/byte_stream.hpp"
#include "flow/result.hpp"

namespace {

using namespace flow::cluster;

/// Every byte is its predecessor plus one.
const std::string& pattern() {
  static const std::string bytes = [] {
    std::string made(kStreamWindow + 256, '\0');
    for (size_t i = 0; i < made.size(); i++) made[i] = static_cast<char>(i);
    return made;
  }();
  return bytes;
}

struct Way {
  ByteStream &from, &to;
  std::deque<std::string> messages;  // in transit
  uint8_t next_sent = 0, next_taken = 0;

  void put(size_t size) {
    size = std::min(size, from.window());
    if (size == 0) return;
    messages.push_back(from.put(std::string_view(pattern()).substr(next_sent, size)));
    next_sent = static_cast<uint8_t>(next_sent + size);
  }
  void deliver() {
    if (messages.empty()) return;
    FLOW_CHECK(to.on_message(messages.front()));
    messages.pop_front();
    FLOW_CHECK(to.waiting() <= kStreamWindow);
  }
  void read(size_t size) {
    std::string bytes(std::min(size, to.waiting()), '\0');
    FLOW_CHECK(to.read(bytes.data(), size) == bytes.size());
    FLOW_CHECK(bytes == std::string_view(pattern()).substr(next_taken, bytes.size()));
    next_taken = static_cast<uint8_t>(next_taken + bytes.size());
    std::string other_stream = to.next_ack();
    if (!other_stream.empty()) FLOW_CHECK(from.on_message(other_stream));
  }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ByteStream a, b, other_stream;
  Way there{a, b, {}}, back{b, a, {}};
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  while (rest.size() >= 2) {
    uint8_t what = static_cast<uint8_t>(rest[0]), much = static_cast<uint8_t>(rest[1]);
    rest.remove_prefix(2);
    Way& way = (what & 1) == 0 ? there : back;
    switch (what >> 1 & 3) {
      case 0:
        way.put(size_t{much} << 9);
        break;
      case 1:
        way.deliver();
        break;
      case 2:
        way.read(size_t{much} << 11);
        break;
      default: {
        std::string_view message = rest.substr(0, much);
        rest.remove_prefix(message.size());
        size_t before = other_stream.waiting();
        bool is_taken = other_stream.on_message(message);
        FLOW_CHECK(is_taken || other_stream.waiting() == before);
        FLOW_CHECK(other_stream.waiting() <= kStreamWindow &&
                   other_stream.window() <= kStreamChunkMax);
        char bytes[64];
        other_stream.read(bytes, much % sizeof bytes);
        (void)other_stream.next_ack();
      }
    }
  }
  return 0;
}
