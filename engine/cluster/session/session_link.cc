#include "engine/cluster/session/session_link.hpp"

#include <utility>

namespace flow::cluster {

namespace {

// A lost peer receives nothing, and an untrusted one is sent nothing. Other peers get the frames
// from which they see why the session ended.
int64_t flush_ms_of(EndKind kind) {
  return kind == EndKind::lost || kind == EndKind::damaged ? 0 : kGoodbyeMs;
}

/// Sets a flag that `lock` guards, and clears it at the end of the scope, also if a callback throws
/// there, without the lock: a crash of the simulator does. With a flag that stays set the session
/// would not even report its end, and its link and its user would own each other for ever.
class FlagScope {
 public:
  FlagScope(const std::unique_lock<std::mutex>& lock, bool& flag) : lock_(lock), flag_(flag) {
    flag_ = true;
  }
  ~FlagScope() {
    std::unique_lock<std::mutex> again;
    if (!lock_.owns_lock()) again = std::unique_lock(*lock_.mutex());
    flag_ = false;
  }
  FlagScope(const FlagScope&) = delete;
  FlagScope& operator=(const FlagScope&) = delete;

 private:
  const std::unique_lock<std::mutex>& lock_;
  bool& flag_;
};

}  // namespace

SessionLink::SessionLink(SessionOptions options, std::string address,
                         std::shared_ptr<SessionUser> user)
    : options_(std::move(options)), address_(std::move(address)), user_(std::move(user)) {}

SessionLink::SessionLink(SessionOptions options, std::string address, Accept accept,
                         OnUnopened on_unopened)
    : options_(std::move(options)),
      address_(std::move(address)),
      accept_(std::move(accept)),
      on_unopened_(std::move(on_unopened)) {}

void SessionLink::attach(std::shared_ptr<Link> link) {
  std::unique_lock lock(mutex_);
  link_ = std::move(link);
  send_frames(lock);
}

Session& SessionLink::session(SessionOutput& out) {
  if (!session_) session_.emplace(options_, address_, options_.now_us(), out);
  return *session_;
}

// Pending events are delivered by the thread that caused them: a sender may hold a lock that the
// user needs.
Status SessionLink::send(std::string_view message) {
  std::unique_lock lock(mutex_);
  if (!session_) return environment_error("the link to " + address_ + " is not established yet");
  SessionOutput out;
  Status status = session_->send(message, out);
  auto self = shared_from_this();  // a thread that the link wakes may release this object
  queue_frames(out);
  send_frames(lock);
  lock.unlock();
  return status;
}

void SessionLink::end(std::string_view reason) {
  std::unique_lock lock(mutex_);
  SessionOutput out;
  session(out).end(reason, out);
  apply(lock, std::move(out));
}

void SessionLink::tick(int64_t now_us) {
  std::unique_lock lock(mutex_);
  if (!session_) return;  // the transport reports a link that does not come up
  SessionOutput out;
  session_->tick(now_us, out);
  apply(lock, std::move(out));
}

void SessionLink::on_up() {
  std::unique_lock lock(mutex_);
  SessionOutput out;
  session(out);
  apply(lock, std::move(out));
}

void SessionLink::on_frame(std::string_view frame) {
  std::unique_lock lock(mutex_);
  SessionOutput out;
  session(out).on_frame(frame, options_.now_us(), out);
  apply(lock, std::move(out));
}

void SessionLink::on_down(const Error& why) {
  std::unique_lock lock(mutex_);
  SessionOutput out;
  session(out).on_link_down(why, out);
  is_down_ = true;
  went_down_.notify_all();
  apply(lock, std::move(out));
}

bool SessionLink::is_down() const {
  std::lock_guard lock(mutex_);
  return is_down_;
}

bool SessionLink::wait_down(std::chrono::steady_clock::time_point until) {
  std::unique_lock lock(mutex_);
  return went_down_.wait_until(lock, until, [this] { return is_down_; });
}

SessionCounters SessionLink::counters() const {
  std::lock_guard lock(mutex_);
  return session_ ? session_->counters() : SessionCounters{};
}

BulkSeal SessionLink::bulk() const {
  std::lock_guard lock(mutex_);
  FLOW_CHECK(session_.has_value());
  return session_->bulk();
}

std::shared_ptr<Link> SessionLink::link() const {
  std::lock_guard lock(mutex_);
  return link_;
}

// Frames are sent in the order of their sealing, and events are delivered in the order of their
// occurrence. One thread at a time does each, without the lock, because a link may call back
// synchronously.
void SessionLink::apply(std::unique_lock<std::mutex>& lock, SessionOutput out) {
  auto self = shared_from_this();  // a callback may release this object
  queue_frames(out);
  for (SessionEvent& event : out.events) {
    if (auto* ended = std::get_if<SessionEnded>(&event)) closing_ms_ = flush_ms_of(ended->kind);
    events_.push_back(std::move(event));
  }
  send_frames(lock);
  deliver_events(lock);
  lock.unlock();
}

void SessionLink::queue_frames(SessionOutput& out) {
  for (std::string& frame : out.frames) unsent_.push_back(std::move(frame));
}

void SessionLink::send_frames(std::unique_lock<std::mutex>& lock) {
  if (!link_ || is_sending_) return;
  FlagScope sending(lock, is_sending_);
  while (!unsent_.empty() || closing_ms_) {
    std::string frame;
    auto closing_ms = unsent_.empty() ? std::exchange(closing_ms_, std::nullopt) : std::nullopt;
    if (!closing_ms) {
      frame = std::move(unsent_.front());
      unsent_.pop_front();
    }
    lock.unlock();
    if (closing_ms)
      link_->close(*closing_ms);
    else
      link_->send(std::move(frame));
    lock.lock();
  }
}

void SessionLink::deliver_events(std::unique_lock<std::mutex>& lock) {
  if (is_delivering_) return;
  FlagScope delivering(lock, is_delivering_);
  while (!events_.empty()) {
    SessionEvent event = std::move(events_.front());
    events_.pop_front();
    lock.unlock();
    deliver(event);
    lock.lock();
  }
}

void SessionLink::deliver(SessionEvent& event) {
  if (auto* opened = std::get_if<SessionOpened>(&event)) return deliver_opened(opened->peer);
  if (auto* ended = std::get_if<SessionEnded>(&event)) return deliver_ended(*ended);
  if (auto* timeout = std::get_if<TimeoutChanged>(&event))
    link()->set_timeout(timeout->lost_after_ms + kLinkAfterSessionMs);
  if (!user_) return;
  if (auto* message = std::get_if<MessageReceived>(&event))
    user_->on_message(std::move(message->bytes));
  if (auto* suspected = std::get_if<PeerSuspected>(&event)) user_->on_suspect(suspected->why);
  if (std::holds_alternative<PeerRecovered>(event)) user_->on_recovered();
}

void SessionLink::deliver_opened(const SessionPeer& peer) {
  was_opened_ = true;
  if (accept_) user_ = accept_(peer, shared_from_this());
  if (user_) return user_->on_open(peer);
  end("this session was rejected");
}

void SessionLink::deliver_ended(const SessionEnded& ended) {
  auto user = std::exchange(user_, nullptr);  // it may own this object
  if (user) return user->on_end(ended.kind, ended.why);
  if (!was_opened_ && on_unopened_) on_unopened_(ended.kind, ended.why);
}

}  // namespace flow::cluster
