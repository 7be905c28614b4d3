// One end of a connection, as a client or a server whose exact bytes a test sends and sees.
#pragma once
#include <catch2/catch.hpp>
#include <string>
#include <utility>

#include "client.hpp"

namespace flow {

class HttpPeer {
 public:
  explicit HttpPeer(int descriptor) : descriptor_(descriptor) { REQUIRE(descriptor >= 0); }
  HttpPeer(HttpPeer&& other) noexcept
      : descriptor_(std::exchange(other.descriptor_, -1)), in_(std::move(other.in_)) {}
  HttpPeer& operator=(HttpPeer&&) = delete;
  ~HttpPeer() { close(); }

  void send(const std::string& text) const {
    for (size_t sent = 0; sent < text.size();) {
      ssize_t more = ::send(descriptor_, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
      if (more <= 0) return;  // the peer has left, as what it then receives shows
      sent += static_cast<size_t>(more);
    }
  }
  /// What arrives up to the end of `mark`, or all if the connection ends before.
  std::string until(const std::string& mark) {
    size_t at = 0;
    while ((at = in_.find(mark)) == std::string::npos)
      if (!read_more()) return std::exchange(in_, {});
    return take(at + mark.size());
  }
  std::string head() { return until("\r\n\r\n"); }
  std::string read(size_t size) {
    while (in_.size() < size && read_more()) {
    }
    return take(size);
  }
  /// All until the connection ends.
  std::string rest() {
    while (read_more()) {
    }
    return std::exchange(in_, {});
  }
  int descriptor() const { return descriptor_; }
  /// Whether it has ended with a reset.
  bool is_reset() const { return is_reset_; }

  void close() {
    if (descriptor_ >= 0) ::close(std::exchange(descriptor_, -1));
  }
  void end_sending() const { ::shutdown(descriptor_, SHUT_WR); }

 private:
  std::string take(size_t size) {
    std::string taken = in_.substr(0, size);
    in_.erase(0, size);
    return taken;
  }
  bool read_more() {
    char chunk[64 * 1024];
    ssize_t got = ::recv(descriptor_, chunk, sizeof chunk, 0);
    if (got < 0) is_reset_ = true;
    if (got > 0) in_.append(chunk, static_cast<size_t>(got));
    return got > 0;
  }

  int descriptor_;
  std::string in_;
  bool is_reset_ = false;
};

}  // namespace flow
