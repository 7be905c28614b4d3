// Runs a Session on a link: adds the locking and the callbacks; all decisions are in session.hpp.
#pragma once
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "engine/cluster/session/session.hpp"
#include "flow/transport.hpp"

namespace flow::cluster {

/// Time for flushing queued frames after a goodbye.
constexpr int64_t kGoodbyeMs = 1'000;
/// The link's timeout exceeds that of its session by this much.
constexpr int64_t kLinkAfterSessionMs = 1'000;

/// Sends one message of a session. Thread-safe, does not block. A failure ends the session, which
/// SessionUser::on_end reports.
using Send = std::function<void(std::string_view message)>;

/// The callbacks of a session: one call at a time, on the transport's thread, the ticker's, or the
/// thread that ended the session. They must not block, and they may call the session. What one
/// throws (a crash, in the simulator) reaches the caller of SessionLink; the later callbacks still
/// come.
class SessionUser {
 public:
  virtual ~SessionUser() = default;
  virtual void on_open(const SessionPeer& peer) = 0;
  virtual void on_message(std::string message) = 0;
  virtual void on_suspect(const std::string& why) = 0;
  virtual void on_recovered() = 0;
  /// The last call, made once. `why` is shown to users.
  virtual void on_end(EndKind kind, const Error& why) = 0;
};

/// Thread-safe. It lives until its link is down; end() it when it is no longer needed.
class SessionLink final : public LinkHandler, public std::enable_shared_from_this<SessionLink> {
 public:
  /// Returns the user of a session with an authenticated peer; null ends the session.
  using Accept =
      std::function<std::shared_ptr<SessionUser>(const SessionPeer&, std::shared_ptr<SessionLink>)>;
  /// Called for an incoming session that ended before it was open.
  using OnUnopened = std::function<void(EndKind, const Error& why)>;

  SessionLink(SessionOptions options, std::string address, std::shared_ptr<SessionUser> user);
  SessionLink(SessionOptions options, std::string address, Accept accept, OnUnopened on_unopened);
  /// Sets the link of which this is the handler. Frames are queued until then.
  void attach(std::shared_ptr<Link> link);

  Status send(std::string_view message);
  void end(std::string_view reason);
  void tick(int64_t now_us);

  /// Whether the link is down: no transfer is pending any more.
  bool is_down() const;
  /// Blocks until the link is down. Not on a thread of the transport.
  bool wait_down(std::chrono::steady_clock::time_point until);
  SessionCounters counters() const;
  /// Requires a session that was opened.
  BulkSeal bulk() const;
  /// The link, for puts; null until attach().
  std::shared_ptr<Link> link() const;

  void on_up() override;
  void on_frame(std::string_view frame) override;
  void on_down(const Error& why) override;

 private:
  Session& session(SessionOutput& out);
  void apply(std::unique_lock<std::mutex>& lock, SessionOutput out);
  void queue_frames(SessionOutput& out);
  void send_frames(std::unique_lock<std::mutex>& lock);
  void deliver_events(std::unique_lock<std::mutex>& lock);
  void deliver(SessionEvent& event);
  void deliver_opened(const SessionPeer& peer);
  void deliver_ended(const SessionEnded& ended);

  const SessionOptions options_;
  const std::string address_;
  const Accept accept_;
  const OnUnopened on_unopened_;

  mutable std::mutex mutex_;
  std::condition_variable went_down_;
  bool is_down_ = false;
  std::shared_ptr<Link> link_;  // set once
  std::deque<std::string> unsent_;
  std::optional<int64_t> closing_ms_;  // close the link once they are sent
  bool is_sending_ = false;            // a thread is sending
  std::optional<Session> session_;     // set when the link is up or has an event to report
  std::deque<SessionEvent> events_;
  bool is_delivering_ = false;  // a thread is delivering events_, in order
  // Used by the delivering thread only:
  std::shared_ptr<SessionUser> user_;
  bool was_opened_ = false;
};

}  // namespace flow::cluster
