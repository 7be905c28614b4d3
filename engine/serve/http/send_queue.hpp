// Bytes that wait to be sent by a socket that does not block, in their order.
#pragma once
#include <cstdint>
#include <deque>
#include <string>

namespace flow {

class SendQueue {
 public:
  enum class Outcome { all_sent, blocked, failed };

  void push(std::string bytes);
  /// Sends as much as the socket takes.
  Outcome send(int socket);
  bool is_empty() const { return parts_.empty(); }
  /// That are not sent yet.
  uint64_t bytes() const { return bytes_; }

 private:
  void remove(size_t size);

  std::deque<std::string> parts_;  // none is empty
  size_t sent_ = 0;                // of the first part
  uint64_t bytes_ = 0;
};

}  // namespace flow
