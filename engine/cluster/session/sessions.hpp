// All sessions over a transport: listens, connects, and ticks the sessions.
#pragma once
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "engine/cluster/session/session_link.hpp"
#include "flow/transport.hpp"

namespace flow::cluster {

/// Maximum number of concurrent handshakes; further connections are rejected.
constexpr int kHandshakesMax = 256;

/// The session that connect() returns, for its user, whose callbacks may run earlier.
class SessionLinkFuture {
 public:
  void attach(std::shared_ptr<SessionLink> link);
  /// Blocks until the session is set.
  std::shared_ptr<SessionLink> get();

 private:
  std::mutex mutex_;
  std::condition_variable attached_;
  std::shared_ptr<SessionLink> link_;
};

/// Thread-safe. The transport must outlive it and have a deadline of at least lost_after_ms, so
/// that the session and not the link reports a hung peer, as lost. The destructor ends all sessions
/// and waits up to kGoodbyeMs for their queued frames; do not run it on a thread of the transport.
class Sessions {
 public:
  /// `on_note` receives lines for the log, on any thread; it must not block. `options` must be
  /// valid (see check). Without `has_thread` the caller ticks the sessions.
  Sessions(Transport& transport, const SessionOptions& options,
           std::function<void(std::string)> on_note, bool has_thread = true);
  ~Sessions();
  Sessions(const Sessions&) = delete;
  Sessions& operator=(const Sessions&) = delete;

  /// `accept` is called for authenticated peers only. Without a secret, listen and connect are
  /// allowed on loopback only.
  Result<std::unique_ptr<Listener>> listen(const std::string& address, SessionLink::Accept accept);
  /// Connects; the outcome is reported to the user. `as`: a role other than that of the options.
  Result<std::shared_ptr<SessionLink>> connect(const std::string& address,
                                               std::shared_ptr<SessionUser> user,
                                               std::optional<Role> as = std::nullopt);
  /// Several times per heartbeat; its own thread does so, if it has one.
  void tick();

 private:
  struct Shared;
  void loop();

  Transport& transport_;
  std::shared_ptr<Shared> shared_;  // used by links that outlive this object
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;
  std::thread ticker_;
};

}  // namespace flow::cluster
