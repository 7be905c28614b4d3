#include "transports/collective/gang_link.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>

namespace flow::collective {
namespace {

constexpr size_t kUnprovenMax = 256;  // links that are not proven yet

}  // namespace

GangLink::GangLink(const RankIdentity& identity, int peer, Admit admit)
    : connects_(peer >= 0), admit_(std::move(admit)), seal_(identity, peer) {}

void GangLink::attach(std::shared_ptr<Link> link) {
  {
    std::lock_guard lock(link_mutex_);
    if (has_gone_down_) return;
    link_ = std::move(link);
  }
  if (connects_) send_frame(seal_.hello());
}

std::shared_ptr<Link> GangLink::any_link() const {
  std::lock_guard lock(link_mutex_);
  return link_;
}

std::shared_ptr<Link> GangLink::proven_link() const {
  std::lock_guard lock(link_mutex_);
  return is_proven_ ? link_ : nullptr;
}

void GangLink::send_frame(std::string frame) {
  if (auto link = any_link()) link->send(std::move(frame));
}

void GangLink::send(std::string_view control, std::string_view bulk) {
  auto link = proven_link();
  if (!link) return;
  std::lock_guard lock(seal_mutex_);
  link->send(seal_.seal(control, bulk));
}

void GangLink::post_receive(uint64_t tag, Region to, std::function<void(Result<size_t>)> done) {
  auto link = proven_link();
  if (!link) return done(environment_error("the link is down"));
  link->post_receive(tag, to, std::move(done));
}

void GangLink::put(uint64_t tag, Region from, std::function<void(Status)> done) {
  auto link = proven_link();
  if (!link) return done(environment_error("the link is down"));
  link->put(tag, from, std::move(done));
}

void GangLink::close(int64_t flush_ms) {
  if (auto link = any_link()) link->close(flush_ms);
}

bool GangLink::has_gone_down() const {
  std::lock_guard lock(link_mutex_);
  return has_gone_down_;
}

void GangLink::reject(const Error& why) {
  {
    std::lock_guard lock(user_mutex_);
    if (why_.message.empty()) why_ = why;
  }
  close(0);
}

void GangLink::on_hello(std::string_view frame) {
  Status taken = seal_.receive_hello(frame);
  if (!taken.ok()) return reject(taken.error());
  if (!connects_) send_frame(seal_.hello());
  send_frame(seal_.proof());
}

void GangLink::on_proof(std::string_view frame) {
  Status taken = seal_.receive_proof(frame);
  if (!taken.ok()) return reject(taken.error());
  {
    std::lock_guard lock(link_mutex_);
    is_proven_ = true;
  }
  if (admit_ && !admit_(seal_.peer(), shared_from_this()))
    return reject(environment_error("there is a link to this rank already"));
  std::lock_guard lock(user_mutex_);
  if (user_ != nullptr) user_->on_proven(seal_.peer());
}

/// An error while the link is up is reported to the user, so that the peer can be sent the cause.
void GangLink::on_sealed(std::string_view frame) {
  UnsealedFrame opened;
  Status is_open = seal_.open(frame, opened);
  std::lock_guard lock(user_mutex_);
  if (is_down_) return;
  if (!is_open.ok()) {
    is_down_ = true;
    why_ = is_open.error();
    if (user_ != nullptr) user_->on_down(seal_.peer(), why_);
  } else if (user_ != nullptr) {
    user_->on_frame(seal_.peer(), opened.control, opened.bulk);
  } else {
    early_.emplace_back(std::move(opened.control), opened.bulk);
  }
}

void GangLink::on_frame(std::string_view frame) {
  if (!seal_.has_hello()) return on_hello(frame);
  if (!seal_.is_proven()) return on_proof(frame);
  on_sealed(frame);
}

void GangLink::on_down(const Error& why) {
  std::shared_ptr<Link> closed;
  {
    std::lock_guard lock(link_mutex_);
    has_gone_down_ = true;
    closed.swap(link_);
  }
  std::lock_guard lock(user_mutex_);
  if (std::exchange(is_down_, true)) return;
  if (why_.message.empty()) why_ = why;
  if (user_ != nullptr) user_->on_down(seal_.peer(), why_);
}

void GangLink::set_user(GangLinkUser* user) {
  std::lock_guard lock(user_mutex_);
  user_ = user;
  if (user == nullptr) return;
  if (is_up()) user->on_proven(seal_.peer());
  for (const auto& [control, bulk] : early_) user->on_frame(seal_.peer(), control, bulk);
  early_.clear();
  if (is_down_) user->on_down(seal_.peer(), why_);
}

Result<std::string> RankListener::open(const std::string& address) {
  auto opened = transport_.listen(
      address, [this](std::shared_ptr<Link> link) { return accept(std::move(link)); });
  if (!opened.ok()) return opened.error();
  listener_ = std::move(*opened);
  return listener_->address();
}

std::shared_ptr<GangLink> RankListener::accept(std::shared_ptr<Link> link) {
  auto incoming = std::make_shared<GangLink>(
      identity_, -1,
      [listener = weak_from_this()](int rank, const std::shared_ptr<GangLink>& proven) {
        auto there = listener.lock();
        return there != nullptr && there->admit(rank, proven);
      });
  {
    std::lock_guard lock(mutex_);
    std::erase_if(unproven_, [](const auto& one) { return one.expired(); });
    if (is_closed_ || unproven_.size() >= kUnprovenMax) return nullptr;
    unproven_.push_back(incoming);
  }
  incoming->attach(std::move(link));
  return incoming;
}

bool RankListener::admit(int rank, const std::shared_ptr<GangLink>& link) {
  GangLinkUser* user = nullptr;
  {
    std::lock_guard lock(mutex_);
    // The lower rank connects.
    if (is_closed_ || rank >= identity_.rank || !links_.emplace(rank, link).second) return false;
    std::erase_if(unproven_, [&](const auto& one) { return one.lock() == link; });
    user = user_;
  }
  if (user != nullptr) link->set_user(user);
  return true;
}

void RankListener::set_user(GangLinkUser* user) {
  std::map<int, std::shared_ptr<GangLink>> links;
  {
    std::lock_guard lock(mutex_);
    user_ = user;
    links = links_;
  }
  for (auto& [rank, link] : links) link->set_user(user);
}

std::shared_ptr<GangLink> RankListener::link_to(int rank) const {
  std::lock_guard lock(mutex_);
  auto found = links_.find(rank);
  return found == links_.end() ? nullptr : found->second;
}

Status RankListener::connect(int rank, const std::string& address) {
  auto made = std::make_shared<GangLink>(identity_, rank, nullptr);
  GangLinkUser* user = nullptr;
  {
    std::lock_guard lock(mutex_);
    if (is_closed_ || !links_.emplace(rank, made).second) return {};
    user = user_;
  }
  made->set_user(user);
  auto link = transport_.connect(address, made);
  if (!link.ok()) return link.error();
  made->attach(std::move(*link));
  return {};
}

void RankListener::close(int64_t flush_ms) {
  std::map<int, std::shared_ptr<GangLink>> links;
  std::vector<std::weak_ptr<GangLink>> unproven;
  {
    std::lock_guard lock(mutex_);
    is_closed_ = true;
    user_ = nullptr;
    links = links_;
    unproven.swap(unproven_);
  }
  listener_.reset();
  for (auto& [rank, link] : links) {
    link->set_user(nullptr);
    link->close(flush_ms);
  }
  for (auto& one : unproven)
    if (auto there = one.lock()) there->close(0);
  auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(flush_ms);
  for (auto& [rank, link] : links)
    while (!link->has_gone_down() && std::chrono::steady_clock::now() < until)
      std::this_thread::sleep_for(std::chrono::microseconds(200));
}

}  // namespace flow::collective
