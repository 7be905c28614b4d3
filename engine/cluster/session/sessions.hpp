// Sessions over a transport: listens, connects, and has the thread that gives them the time.
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

/// Peers that have not proven themselves yet; more are turned away until these are through.
constexpr int kHandshakesMax = 256;

/// The session that connect() returns, for its user, who may be told of it before that.
class SessionLinkFuture {
 public:
  void attach(std::shared_ptr<SessionLink> link);
  /// Waits for it.
  std::shared_ptr<SessionLink> get();

 private:
  std::mutex mutex_;
  std::condition_variable attached_;
  std::shared_ptr<SessionLink> link_;
};

/// Thread-safe. The transport outlives it, and has a deadline of lost_after_ms or more: a peer that
/// hangs is then told by its session, as lost, and not by its link. Its destructor, on no thread of
/// the transport, ends its sessions and waits up to kGoodbyeMs for what they have to send.
class Sessions {
 public:
  /// `on_note` is told what somebody should read in a log, on any thread; it must not block.
  /// `options` are right (check).
  Sessions(Transport& transport, const SessionOptions& options,
           std::function<void(std::string)> on_note);
  ~Sessions();
  Sessions(const Sessions&) = delete;
  Sessions& operator=(const Sessions&) = delete;

  /// `accept` is asked once a peer is proven, and never for another. Without a secret both this and
  /// connect are for loopback alone.
  Result<std::unique_ptr<Listener>> listen(const std::string& address, SessionLink::Accept accept);
  /// What comes of it the user is told. `as`: in another role than the options'.
  Result<std::shared_ptr<SessionLink>> connect(const std::string& address,
                                               std::shared_ptr<SessionUser> user,
                                               std::optional<Role> as = std::nullopt);

 private:
  struct Shared;
  void tick_all();

  Transport& transport_;
  std::shared_ptr<Shared> shared_;  // with what links tell after this is gone
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;
  std::thread ticker_;
};

}  // namespace flow::cluster
