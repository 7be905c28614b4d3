// The port of what carries messages and data between the processes of a cluster. Implementations
// lie in transports/. A link authenticates nobody and finds no hung peer: who uses it does
// (engine/cluster). No function here blocks; what a link tells it tells on its transport's thread,
// one call at a time for each link, and who is told must not block there; it may call the link.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "flow/result.hpp"

namespace flow {

/// A longer frame is refused on either side: the link goes down.
constexpr size_t kFrameBytesMax = size_t{16} << 20;
/// Of one put: more is put in pieces.
constexpr size_t kPutBytesMax = size_t{4} << 20;

/// Host memory, or a GPU's.
struct Region {
  void* data = nullptr;
  size_t size = 0;
  bool is_device = false;
};

/// What a link tells. It is kept until on_down was called.
class LinkHandler {
 public:
  virtual ~LinkHandler() = default;
  /// The peer answered. Frames may be sent before: they wait.
  virtual void on_up() {}
  virtual void on_frame(std::string_view frame) = 0;
  /// Called once, last. `why` is what ended the link, in words; after close() it says that. It is a
  /// user's error where the peer was there and refused the link: asking again changes nothing.
  virtual void on_down(const Error& why) = 0;
};

/// One end of a connection. Thread-safe. Its destructor closes it at once.
class Link {
 public:
  virtual ~Link() = default;
  /// Frames come whole and in order. Nothing happens where the link is down.
  virtual void send(std::string frame) = 0;
  /// Bytes of frames and puts that the peer's side has not taken yet. A frame is taken when the
  /// peer's thread begins to tell it.
  virtual size_t unsent_bytes() const = 0;
  /// From its return on the peer's next put of this tag goes to `to`, whose memory is used until
  /// `done` is called, which it is on any path and before on_down: with the bytes that came, or
  /// with what went wrong. A tag that is expected already is refused; a put longer than `to` ends
  /// the expectation.
  virtual void post_receive(uint64_t tag, Region to, std::function<void(Result<size_t>)> done) = 0;
  /// From its return on nobody waits for a put of that tag: its `done` is called with an error,
  /// soon. One that is arriving goes on, as its memory is being written.
  virtual void cancel_receive(uint64_t tag) = 0;
  /// Puts bytes straight into the memory that the peer expects them in. `from` is used until
  /// `done`, which says whether they are there: a put that nobody expects, or that is too long, is
  /// dropped, and the link stays up. Puts and frames may overtake each other.
  virtual void put(uint64_t tag, Region from, std::function<void(Status)> done) = 0;
  /// From now on the peer may take nothing for so long, in place of the transport's deadline_ms.
  virtual void set_timeout(int64_t /*deadline_ms*/) {}
  /// Ends the link: what was sent before goes first, for up to `flush_ms`; 0 ends it at once.
  virtual void close(int64_t flush_ms) = 0;
  /// The peer's address, and over what the link runs, for people: "127.0.0.1:41231 (tcp)".
  virtual std::string description() const = 0;
};

/// Where links come in.
class Listener {
 public:
  /// Waits for an `accept` under way; no link comes in any more, those there are stay.
  virtual ~Listener() = default;
  virtual std::string address() const = 0;  // "127.0.0.1:41231", whose port is never 0
  /// Told of those who came and were no link of ours, by a transport that asks them for its key, on
  /// its thread. Until it is called nobody is told.
  using OnRejected = std::function<void(const std::string& address, const std::string& why)>;
  virtual void set_on_rejected(OnRejected) {}
};

struct TransportOptions {
  /// A link whose peer takes nothing of what is sent for so long is down; so is one that does not
  /// come up in that time.
  int64_t deadline_ms = 10'000;
  /// A transport between processes hears only of those who hold this too; "" where anybody may
  /// come. That is for its own safety: a link authenticates nobody all the same.
  std::string key;
};

/// Thread-safe. Its destructor ends its links, whose on_down is called before it returns; what is
/// told is told on a thread of the transport's own, which must not destroy it.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual std::string name() const = 0;  // "ucx", "inproc"
  /// For each link that comes in, `accept` gives its handler; null refuses it.
  virtual Result<std::unique_ptr<Listener>> listen(
      const std::string& address,
      std::function<std::shared_ptr<LinkHandler>(std::shared_ptr<Link>)> accept) = 0;
  /// Errors in the address, "host:port", are told here, all else by on_down.
  virtual Result<std::shared_ptr<Link>> connect(const std::string& address,
                                                std::shared_ptr<LinkHandler> handler) = 0;
  /// Whether puts may go to and from a GPU's memory.
  virtual bool takes_device_memory() const = 0;
};

}  // namespace flow
