// A stream of bytes in each direction over the messages of a session. Who sends stops where the
// other side has not taken so much of it: neither ever holds more of what came. Pure.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace flow::cluster {

constexpr size_t kStreamWindow = size_t{1} << 20;      // on the way and not taken, each direction
constexpr size_t kStreamChunkMax = size_t{64} << 10;   // of one message
constexpr size_t kStreamAckAfter = kStreamWindow / 4;  // so much was taken: the sender hears it

/// One side. One thread at a time.
class ByteStream {
 public:
  /// How many bytes the next message may hold.
  size_t window() const;
  /// The message that carries these, which are at least one and for which there is room.
  std::string put(std::string_view bytes);

  /// False where that is nothing that this side's peer may say; nothing has changed then.
  bool on_message(std::string_view message);
  /// Bytes that came and were not taken.
  size_t waiting() const { return received_.size() - began_; }
  /// Takes up to so many of them; how many that were.
  size_t take(char* to, size_t size);
  /// The message that tells the peer what was taken, or "" while it need not know yet.
  std::string next_ack();

 private:
  uint64_t sent_ = 0, peer_acked_ = 0;
  uint64_t arrived_ = 0, taken_ = 0, acked_ = 0;
  std::string received_;
  size_t began_ = 0;  // of it: what is before was taken
};

}  // namespace flow::cluster
