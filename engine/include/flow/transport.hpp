// The port for messages and data between the processes of a cluster. Implementations are in
// transports/. A link neither authenticates its peer nor detects a hung one: engine/cluster does
// both. Only the destructors of Listener and Transport block. Callbacks run on the transport's
// thread, one at a time per link; they must not block, and they may call the link.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "flow/result.hpp"

namespace flow {

/// Maximum size of a frame. Each side rejects a longer one: the link goes down.
constexpr size_t kFrameBytesMax = size_t{16} << 20;
/// Maximum size of one put. Callers split longer data into chunks.
constexpr size_t kPutBytesMax = size_t{4} << 20;

/// A region of host memory or GPU memory.
struct Region {
  void* data = nullptr;
  size_t size = 0;
  bool is_device = false;
};

/// The callbacks of a link. The link keeps the handler until on_down has returned.
class LinkHandler {
 public:
  virtual ~LinkHandler() = default;
  /// The link is established. Frames that were sent earlier are queued until then.
  virtual void on_up() {}
  virtual void on_frame(std::string_view frame) = 0;
  /// The last call, made once. `why` says what ended the link, also after close(). Its kind is
  /// `user` if the peer rejected the link: a retry would be rejected too.
  virtual void on_down(const Error& why) = 0;
};

/// One end of a connection. Thread-safe. Its destructor closes it at once.
class Link {
 public:
  virtual ~Link() = default;
  /// Sends a frame. Frames arrive whole and in order. Has no effect on a link that is down.
  virtual void send(std::string frame) = 0;
  /// Bytes of frames and puts that the peer has not received yet. A frame counts as received when
  /// the peer's thread starts its on_frame.
  virtual size_t unsent_bytes() const = 0;
  /// Accepts the peer's next put with this tag into `to`. The memory is in use until `done` is
  /// called with the number of bytes or an error; `done` is always called, before on_down. It gets
  /// an error if the tag is already posted, or if the put is longer than `to`.
  virtual void post_receive(uint64_t tag, Region to, std::function<void(Result<size_t>)> done) = 0;
  /// Cancels a posted receive: its `done` is soon called with an error. A put that is already
  /// arriving completes, because its memory is being written.
  virtual void cancel_receive(uint64_t tag) = 0;
  /// Writes bytes directly into the memory that the peer posted for this tag. `from` is in use
  /// until `done` is called with the outcome. A put without a posted receive, or longer than it, is
  /// dropped and the link stays up. Puts and frames may overtake each other.
  virtual void put(uint64_t tag, Region from, std::function<void(Status)> done) = 0;
  /// Replaces the transport's deadline_ms for this link.
  virtual void set_timeout(int64_t /*deadline_ms*/) {}
  /// Ends the link after queued data was sent, for up to `flush_ms`; 0 ends it immediately.
  virtual void close(int64_t flush_ms) = 0;
  /// The peer's address and the protocol, for messages to users: "127.0.0.1:41231 (tcp)".
  virtual std::string description() const = 0;
};

/// Accepts incoming links while it lives.
class Listener {
 public:
  /// Waits for a running `accept` callback, then accepts no more links. Established links stay up.
  virtual ~Listener() = default;
  virtual std::string address() const = 0;  // "127.0.0.1:41231"; the port is never 0
  /// Sets the callback for connections that did not present the transport's key. It runs on the
  /// transport's thread.
  using OnRejected = std::function<void(const std::string& address, const std::string& why)>;
  virtual void set_on_rejected(OnRejected) {}
};

struct TransportOptions {
  /// A link goes down if its peer receives nothing for this time while data is queued, or if it is
  /// not established within this time. Unit: ms.
  int64_t deadline_ms = 10'000;
  /// A transport between processes accepts only connections that present this key; "": any. It
  /// protects the transport itself and does not replace authentication.
  std::string key;
};

/// Thread-safe. The destructor ends all links and calls their on_down before it returns. Callbacks
/// run on the transport's own thread, which must not destroy the transport.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual std::string name() const = 0;  // "ucx", "inproc"
  /// Calls `accept` for each incoming link; it returns the link's handler, or null to reject it.
  virtual Result<std::unique_ptr<Listener>> listen(
      const std::string& address,
      std::function<std::shared_ptr<LinkHandler>(std::shared_ptr<Link>)> accept) = 0;
  /// Returns an error for an invalid address ("host:port"); on_down reports all other errors.
  virtual Result<std::shared_ptr<Link>> connect(const std::string& address,
                                                std::shared_ptr<LinkHandler> handler) = 0;
  /// Whether puts may read and write GPU memory.
  virtual bool takes_device_memory() const = 0;
};

}  // namespace flow
