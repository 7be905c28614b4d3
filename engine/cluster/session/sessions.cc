#include "engine/cluster/session/sessions.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <vector>

#include "engine/base/address.hpp"
#include "engine/base/engine_thread.hpp"
#include "engine/base/log.hpp"
#include "engine/cluster/session/rejections.hpp"

namespace flow::cluster {

namespace {

constexpr int64_t kTicksPerHeartbeat = 10;

}  // namespace

void SessionLinkFuture::attach(std::shared_ptr<SessionLink> link) {
  std::lock_guard lock(mutex_);
  link_ = std::move(link);
  attached_.notify_all();
}

std::shared_ptr<SessionLink> SessionLinkFuture::get() {
  std::unique_lock lock(mutex_);
  attached_.wait(lock, [this] { return link_ != nullptr; });
  return link_;
}

struct Sessions::Shared {
  SessionOptions options;
  std::function<void(std::string)> on_note;
  std::atomic<int> handshakes = 0;  // of accepted connections

  std::mutex mutex;
  std::vector<std::weak_ptr<SessionLink>> links;
  RejectionLog rejections;

  void reject(const std::string& address, const std::string& why) {
    std::unique_lock lock(mutex);
    auto text = rejections.add(address, why, options.now_us());
    lock.unlock();
    // Those that the limit suppresses are lines of the level debug.
    log::write(text ? LogLevel::warning : LogLevel::debug, "session rejected",
               {.detail = text ? *text : why});
    if (text && on_note) on_note(std::move(*text));
  }
  void add(const std::shared_ptr<SessionLink>& link) {
    std::lock_guard lock(mutex);
    links.push_back(link);
  }
  /// Sessions whose links exist; forgets the others.
  std::vector<std::shared_ptr<SessionLink>> living() {
    std::lock_guard lock(mutex);
    std::vector<std::shared_ptr<SessionLink>> found;
    std::erase_if(links, [&](const auto& each) {
      auto link = each.lock();
      if (!link || link->is_down()) return true;
      found.push_back(std::move(link));
      return false;
    });
    return found;
  }
  Status check_address(const std::string& address) const {
    auto parsed = parse_address(address);
    FLOW_TRY(parsed);
    if (options.secret || is_loopback(parsed->host)) return {};
    return user_error(fmt::format(
        "{} can be reached from other machines, and without a secret anyone could join or listen: "
        "give the head and its workers the same file with --secret-file, or use 127.0.0.1",
        address));
  }
  std::shared_ptr<SessionLink> accept_link(const std::shared_ptr<Shared>& self,
                                           std::shared_ptr<Link> link,
                                           const SessionLink::Accept& accept);
};

Sessions::Sessions(Transport& transport, const SessionOptions& options,
                   std::function<void(std::string)> on_note, bool has_thread)
    : transport_(transport), shared_(std::make_shared<Shared>()) {
  FLOW_CHECK(check(options).ok());
  shared_->options = options;
  shared_->on_note = std::move(on_note);
  if (has_thread) ticker_ = engine_thread([this] { loop(); });
}

Sessions::~Sessions() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    wake_.notify_all();
  }
  if (ticker_.joinable()) ticker_.join();
  auto links = shared_->living();
  for (const auto& link : links) link->end("its process ends all sessions");
  auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(kGoodbyeMs);
  for (const auto& link : links) link->wait_down(until);
}

void Sessions::tick() {
  for (const auto& link : shared_->living()) link->tick(shared_->options.now_us());
}

void Sessions::loop() {
  auto period =
      std::chrono::microseconds(shared_->options.heartbeat_ms * 1000 / kTicksPerHeartbeat);
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, period, [this] { return stopping_; })) {
    lock.unlock();
    tick();
    lock.lock();
  }
}

std::shared_ptr<SessionLink> Sessions::Shared::accept_link(const std::shared_ptr<Shared>& self,
                                                           std::shared_ptr<Link> link,
                                                           const SessionLink::Accept& accept) {
  std::string address = link->description();
  if (handshakes.fetch_add(1) >= kHandshakesMax) {
    handshakes--;
    reject(
        address,
        fmt::format(
            "{} was rejected: {} other connections have not proven yet that they hold the secret",
            address, kHandshakesMax));
    return nullptr;
  }
  auto opened = [self, accept](const SessionPeer& peer, std::shared_ptr<SessionLink> session) {
    self->handshakes--;
    return accept(peer, std::move(session));
  };
  auto unopened = [self, address](EndKind kind, const Error& why) {
    self->handshakes--;
    if (kind != EndKind::ended) self->reject(address, why.message);
  };
  auto session = std::make_shared<SessionLink>(options, address, opened, unopened);
  session->attach(std::move(link));
  add(session);
  return session;
}

Result<std::unique_ptr<Listener>> Sessions::listen(const std::string& address,
                                                   SessionLink::Accept accept) {
  FLOW_TRY(shared_->check_address(address));
  auto listener =
      transport_.listen(address, [shared = shared_, accept](std::shared_ptr<Link> link) {
        return shared->accept_link(shared, std::move(link), accept);
      });
  FLOW_TRY(listener);
  (*listener)->set_on_rejected([shared = shared_](const std::string& from, const std::string& why) {
    shared->reject(from, fmt::format("no session with {}: {}", from, why));
  });
  return listener;
}

Result<std::shared_ptr<SessionLink>> Sessions::connect(const std::string& address,
                                                       std::shared_ptr<SessionUser> user,
                                                       std::optional<Role> as) {
  FLOW_TRY(shared_->check_address(address));
  SessionOptions options = shared_->options;
  options.role = as.value_or(options.role);
  auto session = std::make_shared<SessionLink>(
      options, fmt::format("{} ({})", address, transport_.name()), std::move(user));
  auto link = transport_.connect(address, session);
  FLOW_TRY(link);
  session->attach(*link);
  shared_->add(session);
  return session;
}

}  // namespace flow::cluster
