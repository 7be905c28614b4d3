// A byte stream in each direction over the messages of a session, with flow control: a sender stops
// when the receiver has a window of unread bytes, so that neither side buffers more. Pure.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace flow::cluster {

constexpr size_t kStreamWindow = size_t{1} << 20;     // sent and not read, per direction
constexpr size_t kStreamChunkMax = size_t{64} << 10;  // per message
// An acknowledgment is due after this many read bytes.
constexpr size_t kStreamAckAfter = kStreamWindow / 4;

/// One side. One thread at a time.
class ByteStream {
 public:
  /// How many bytes the next message may hold.
  size_t window() const;
  /// The message that carries `bytes`: at least one, at most window().
  std::string put(std::string_view bytes);

  /// Returns false, without effect, if the message is not valid in this state.
  bool on_message(std::string_view message);
  /// Number of received, unread bytes.
  size_t waiting() const { return received_.size() - began_; }
  /// Reads up to `size` bytes; returns the number read.
  size_t read(char* to, size_t size);
  /// The acknowledgment of read bytes, or "" if none is due yet.
  std::string next_ack();

 private:
  uint64_t sent_ = 0, peer_acked_ = 0;
  uint64_t arrived_ = 0, read_ = 0, acked_ = 0;
  std::string received_;
  size_t began_ = 0;  // start of the unread part
};

}  // namespace flow::cluster
