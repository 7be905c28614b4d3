// Bytes that wait to be sent by a socket that does not block, in their order.
#pragma once
#include <cstdint>
#include <deque>
#include <string>

#include "flow/bytes.hpp"

namespace flow {

class SendQueue {
 public:
  enum class Outcome { all_sent, blocked, failed };

  void push(std::string bytes);
  void push(Bytes bytes);
  /// Sends as much as the socket takes.
  Outcome send(int socket);
  bool is_empty() const { return parts_.empty(); }
  /// That are not sent yet.
  uint64_t bytes() const { return bytes_; }

 private:
  void remove(size_t size);

  struct Part {
    std::string text;
    Bytes bytes;  // instead of the text
    std::string_view view() const { return bytes == nullptr ? std::string_view(text) : *bytes; }
  };

  std::deque<Part> parts_;  // none is empty
  size_t sent_ = 0;         // of the first part
  uint64_t bytes_ = 0;
};

}  // namespace flow
