#include "engine/cluster/session/session_channel.hpp"

#include <algorithm>
#include <utility>

namespace flow::cluster {

namespace {

constexpr const char* kNotAMessage = "the received bytes are not a message of a stream";

}  // namespace

void SessionChannel::attach(std::shared_ptr<SessionLink> link) {
  {
    std::lock_guard lock(mutex_);
    if (!end_) {
      link_ = std::move(link);
      return;
    }
  }
  // The stream ended before it had a link to end.
  if (link) link->end(kNotAMessage);
}

Status SessionChannel::wait_open() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return is_open_ || end_; });
  if (end_) return end_->second;
  return {};
}

// Calls the session without the lock, because it may report its end synchronously.
bool SessionChannel::write(std::string_view bytes) {
  std::lock_guard one(writing_);
  while (!bytes.empty()) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return stream_.window() > 0 || end_; });
    if (end_) return false;
    size_t size = std::min(bytes.size(), stream_.window());
    std::string message = stream_.put(bytes.substr(0, size));
    auto link = link_;
    lock.unlock();
    if (!link || !link->send(message).ok()) return false;
    bytes.remove_prefix(size);
  }
  return true;
}

bool SessionChannel::read(char* to, size_t size, const std::optional<Deadline>& until) {
  while (size > 0) {
    std::unique_lock lock(mutex_);
    auto has_event = [this] { return stream_.waiting() > 0 || end_; };
    if (!until) changed_.wait(lock, has_event);
    if (until && !changed_.wait_until(lock, *until, has_event)) return false;
    size_t taken = stream_.read(to, size);
    if (taken == 0) return false;
    to += taken;
    size -= taken;
    std::string message = stream_.next_ack();
    auto link = link_;
    lock.unlock();
    if (!message.empty() && link) (void)link->send(message);
  }
  return true;
}

void SessionChannel::close(std::string_view reason) {
  std::unique_lock lock(mutex_);
  auto link = link_;
  lock.unlock();
  if (link) link->end(reason);
}

std::optional<std::pair<EndKind, Error>> SessionChannel::end() const {
  std::lock_guard lock(mutex_);
  return end_;
}

void SessionChannel::on_open(const SessionPeer& peer) {
  std::lock_guard lock(mutex_);
  peer_ = peer;
  is_open_ = true;
  changed_.notify_all();
}

void SessionChannel::on_message(std::string message) {
  std::unique_lock lock(mutex_);
  if (end_) return;
  changed_.notify_all();
  if (stream_.on_message(message)) return;
  end_.emplace(EndKind::damaged, environment_error(kNotAMessage));
  auto link = std::exchange(link_, nullptr);
  lock.unlock();
  if (link) link->end(kNotAMessage);
}

void SessionChannel::on_end(EndKind kind, const Error& why) {
  std::lock_guard lock(mutex_);
  link_.reset();
  if (!end_) end_.emplace(kind, why);
  changed_.notify_all();
}

}  // namespace flow::cluster
