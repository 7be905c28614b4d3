// A sealed byte stream over a plain connection: the session of a cluster (session.hpp), whose
// frames have a length prefix here, with one byte stream in each direction in it. It is a state
// machine: bytes, time and calls in, bytes out; it knows no clock, socket or thread.
//
// Before the peer has proven that it holds the cluster's secret, no frame may be longer than one of
// the handshake, and nothing but the handshake is read.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/cluster/session/byte_stream.hpp"
#include "engine/cluster/session/session.hpp"

namespace flow::cluster {

constexpr size_t kNoteBytesMax = 64;
/// The longest frame after the handshake: a message of a stream, or a goodbye.
constexpr size_t kStreamFrameMax = kStreamChunkMax + 1024;

/// One side. One thread at a time.
class StreamSession {
 public:
  /// Greets the peer. `address`: the peer's, for messages.
  StreamSession(const SessionOptions& options, const std::string& address, int64_t now_us);

  /// Bytes from the peer. Without effect after the end.
  void receive(std::string_view bytes, int64_t now_us);
  /// Call this several times per heartbeat: see Session::tick.
  void tick(int64_t now_us);
  /// Ends the session with a goodbye; `reason` is shown to users.
  void end(std::string_view reason);

  /// The connection broke.
  void cut(const std::string& why);

  /// How many bytes write() takes now; 0 before the session is open and after its end.
  size_t window() const;
  /// 1 to window() bytes for the peer's read().
  void write(std::string_view bytes);
  /// Number of received, unread bytes. They can be read after the end too.
  size_t waiting() const { return stream_.waiting(); }
  /// Reads up to `size` bytes; returns the number read.
  size_t read(char* to, size_t size);
  /// A short message beside the stream, 1 to kNoteBytesMax bytes, in order with write(). Requires
  /// an open session.
  void tell(std::string_view note);
  /// Takes the notes of the peer that came since the last call.
  std::vector<std::string> take_notes();
  /// Takes the bytes to send to the peer, also those that tell it about the end.
  std::string take_output();

  bool is_open() const { return session_ && session_->is_open(); }
  bool has_ended() const { return end_.has_value(); }
  /// Requires the end.
  const SessionEnded& how_ended() const { return *end_; }
  /// Valid once the session was open.
  const SessionPeer& peer() const { return peer_; }

 private:
  void apply(SessionOutput out);
  bool on_message(std::string_view message);
  bool take_frame();

  std::optional<Session> session_;
  ByteStream stream_;
  std::string in_;  // bytes that are no complete frame yet: up to one frame and its length
  std::string out_;
  std::vector<std::string> notes_;
  SessionPeer peer_;
  std::optional<SessionEnded> end_;
  int64_t now_us_ = 0;
};

}  // namespace flow::cluster
