#include "engine/cluster/session/session_link.hpp"

#include <utility>

#include "engine/base/clock.hpp"

namespace flow::cluster {

namespace {

// A peer that is lost takes nothing, and one that is not to be trusted is told nothing. Others get
// what makes them see for themselves why there is no session.
int64_t flush_ms_of(EndKind kind) {
  return kind == EndKind::lost || kind == EndKind::damaged ? 0 : kGoodbyeMs;
}

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

Session& SessionLink::session(Outcome& out) {
  if (!session_) session_.emplace(options_, address_, monotonic_us(), out);
  return *session_;
}

// Events that wait are told by who brought them about: who sends may hold what their user needs.
Status SessionLink::send(std::string_view message) {
  std::unique_lock lock(mutex_);
  if (!session_) return environment_error("the link to " + address_ + " is not established yet");
  Outcome out;
  Status status = session_->send(message, out);
  auto self = shared_from_this();  // whom a link wakes may let go of this
  take_frames(out);
  send_frames(lock);
  lock.unlock();
  return status;
}

void SessionLink::end(std::string_view reason) {
  std::unique_lock lock(mutex_);
  Outcome out;
  session(out).end(reason, out);
  act(lock, std::move(out));
}

void SessionLink::tick(int64_t now_us) {
  std::unique_lock lock(mutex_);
  if (!session_) return;  // a link that does not come up is the transport's to tell
  Outcome out;
  session_->tick(now_us, out);
  act(lock, std::move(out));
}

void SessionLink::on_up() {
  std::unique_lock lock(mutex_);
  Outcome out;
  session(out);
  act(lock, std::move(out));
}

void SessionLink::on_frame(std::string_view frame) {
  std::unique_lock lock(mutex_);
  Outcome out;
  session(out).on_frame(frame, monotonic_us(), out);
  act(lock, std::move(out));
}

void SessionLink::on_down(const Error& why) {
  std::unique_lock lock(mutex_);
  Outcome out;
  session(out).on_link_down(why, out);
  is_down_ = true;
  went_down_.notify_all();
  act(lock, std::move(out));
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

// Frames go in the order in which they were sealed, and events in that in which they came about:
// one thread at a time does each, without the lock, since a link may tell something as it is
// called.
void SessionLink::act(std::unique_lock<std::mutex>& lock, Outcome out) {
  auto self = shared_from_this();  // who is told may let go of this
  take_frames(out);
  for (SessionEvent& event : out.events) {
    if (auto* ended = std::get_if<Ended>(&event)) closing_ms_ = flush_ms_of(ended->kind);
    events_.push_back(std::move(event));
  }
  send_frames(lock);
  tell_events(lock);
  lock.unlock();
}

void SessionLink::take_frames(Outcome& out) {
  for (std::string& frame : out.frames) unsent_.push_back(std::move(frame));
}

void SessionLink::send_frames(std::unique_lock<std::mutex>& lock) {
  if (!link_ || is_sending_) return;
  is_sending_ = true;
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
  is_sending_ = false;
}

void SessionLink::tell_events(std::unique_lock<std::mutex>& lock) {
  if (is_telling_) return;
  is_telling_ = true;
  while (!events_.empty()) {
    SessionEvent event = std::move(events_.front());
    events_.pop_front();
    lock.unlock();
    tell(event);
    lock.lock();
  }
  is_telling_ = false;
}

void SessionLink::tell(SessionEvent& event) {
  if (auto* opened = std::get_if<Opened>(&event)) return tell_opened(opened->peer);
  if (auto* ended = std::get_if<Ended>(&event)) return tell_ended(*ended);
  if (auto* patience = std::get_if<Patience>(&event))
    link()->be_patient(patience->lost_after_ms + kLinkAfterSessionMs);
  if (!user_) return;
  if (auto* message = std::get_if<Message>(&event)) user_->on_message(std::move(message->bytes));
  if (auto* suspected = std::get_if<Suspected>(&event)) user_->on_suspect(suspected->why);
  if (std::holds_alternative<HeardAgain>(event)) user_->on_heard_again();
}

void SessionLink::tell_opened(const Peer& peer) {
  was_opened_ = true;
  if (accept_) user_ = accept_(peer, shared_from_this());
  if (user_) return user_->on_open(peer);
  end("this session was refused");
}

void SessionLink::tell_ended(const Ended& ended) {
  auto user = std::exchange(user_, nullptr);  // it may hold this
  if (user) return user->on_end(ended.kind, ended.why);
  if (!was_opened_ && on_unopened_) on_unopened_(ended.kind, ended.why);
}

}  // namespace flow::cluster
