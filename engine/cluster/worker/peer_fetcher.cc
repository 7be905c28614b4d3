#include "engine/cluster/worker/peer_fetcher.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <utility>
#include <vector>

#include "engine/base/clock.hpp"
#include "engine/base/engine_thread.hpp"

namespace flow::cluster {

namespace {

constexpr int64_t kChecksPerTimeout = 4;  // checks per shortest timeout

}  // namespace

/// A session with a peer, opened by either side.
class PeerBlobFetcher::PeerConnection final : public SessionUser,
                                              public std::enable_shared_from_this<PeerConnection> {
 public:
  PeerConnection(std::shared_ptr<PeerBlobFetcher> fetcher, std::string address)
      : fetcher_(std::move(fetcher)), address_(std::move(address)) {}
  void attach(std::shared_ptr<SessionLink> link) { link_.attach(std::move(link)); }
  const std::string& address() const { return address_; }
  /// Whether it ended because it was idle; a concurrent request then opens another session.
  bool was_idle() const { return was_idle_; }

  /// Downloads; starts when the session is open.
  void fetch(const BlobInfo& blob, OnFetched done) {
    std::shared_ptr<BlobTransfer> transfer;
    std::optional<Error> over;
    {
      std::lock_guard lock(mutex_);
      over = over_;
      transfer = transfer_;
      if (!over && !transfer) waiting_.emplace_back(blob, done);
    }
    if (over) return done(*over);
    if (transfer) transfer->fetch(blob, std::move(done));
  }

  void on_open(const SessionPeer& peer) override {
    auto link = link_.get();
    TransferOptions options;
    options.store = fetcher_->options_.store;
    options.thread_pool = &fetcher_->thread_pool_;
    options.link = link->link();
    options.send = [link](std::string_view message) { (void)link->send(message); };
    options.peer = "node `" + peer.name + "` at " + link->link()->description();
    options.seal = link->bulk();
    options.encrypts = fetcher_->options_.encrypts;
    options.on_transferred = fetcher_->options_.on_transferred;
    auto transfer = std::make_shared<BlobTransfer>(options);
    std::vector<std::pair<BlobInfo, OnFetched>> waiting;
    {
      std::lock_guard lock(mutex_);
      transfer_ = transfer;
      waiting = std::exchange(waiting_, {});
    }
    for (auto& [blob, done] : waiting) transfer->fetch(blob, std::move(done));
  }
  void on_message(std::string message) override {
    if (!transfer()->on_message(message)) end("the received bytes are not a message about blobs");
  }
  // The head has the blob too, so a suspect peer is not waited for.
  void on_suspect(const std::string& why) override { end(why); }
  void on_recovered() override {}
  void on_end(EndKind kind, const Error& why) override {
    fetcher_->forget(shared_from_this(), kind != EndKind::left && !was_idle_);
    fail_all(why);
  }

  void end(const std::string& why) { link_.get()->end(why); }
  void fail_all(const Error& why) {
    std::vector<std::pair<BlobInfo, OnFetched>> waiting;
    {
      std::lock_guard lock(mutex_);
      if (!over_) over_ = why;
      waiting = std::exchange(waiting_, {});
    }
    for (auto& [blob, done] : waiting) done(why);
    if (auto open = transfer()) open->end(why);
  }

  /// Ends the session after a timeout. Called by the watcher.
  void check(int64_t now_us, const PeerFetcherOptions& options) {
    auto open = transfer();
    if (!open) return;  // the handshake has its own timeout
    DownloadProgress progress = open->progress();
    bool has_progress =
        received_us_ == 0 || progress.responses != responses_ || !progress.awaits_peer;
    responses_ = progress.responses;
    if (used_us_ == 0 || !progress.is_idle) used_us_ = now_us;
    if (has_progress) received_us_ = now_us;
    if (now_us - received_us_ >= options.stall_ms * 1000)
      return end(
          fmt::format("no byte of the requested blob arrived for {} s", options.stall_ms / 1000.0));
    if (now_us - used_us_ < options.idle_ms * 1000) return;
    was_idle_ = true;
    end("nothing more is requested from it");
  }

 private:
  std::shared_ptr<BlobTransfer> transfer() {
    std::lock_guard lock(mutex_);
    return transfer_;
  }

  const std::shared_ptr<PeerBlobFetcher> fetcher_;
  const std::string address_;
  SessionLinkFuture link_;
  std::mutex mutex_;
  std::shared_ptr<BlobTransfer> transfer_;  // from when it is open
  std::vector<std::pair<BlobInfo, OnFetched>> waiting_;
  std::optional<Error> over_;
  std::atomic<bool> was_idle_{false};
  // Used by the watcher only:
  uint64_t responses_ = 0;
  int64_t received_us_ = 0, used_us_ = 0;
};

struct PeerBlobFetcher::PullRequest {
  BlobInfo blob;
  Addresses untried;  // the last one is tried first
  OnFetched done;
  Error why;
};

PeerBlobFetcher::PeerBlobFetcher(Sessions& sessions, ThreadPool& thread_pool,
                                 PeerFetcherOptions options)
    : sessions_(sessions), thread_pool_(thread_pool), options_(std::move(options)) {}

PeerBlobFetcher::~PeerBlobFetcher() { end(); }

Status PeerBlobFetcher::listen(const std::string& address) {
  auto on_accept = [weak = weak_from_this()](const SessionPeer& peer,
                                             std::shared_ptr<SessionLink> link) {
    auto self = weak.lock();
    return self ? self->accept(peer, link) : nullptr;
  };
  auto listener = sessions_.listen(address, on_accept);
  FLOW_TRY(listener);
  std::lock_guard lock(mutex_);
  listener_ = std::move(*listener);
  return {};
}

std::string PeerBlobFetcher::address() const {
  std::lock_guard lock(mutex_);
  return listener_ ? listener_->address() : "";
}

std::shared_ptr<SessionUser> PeerBlobFetcher::accept(const SessionPeer& peer,
                                                     const std::shared_ptr<SessionLink>& link) {
  if (peer.role != Role::peer) return nullptr;
  auto connection = std::make_shared<PeerConnection>(shared_from_this(), "");
  connection->attach(link);
  std::lock_guard lock(mutex_);
  if (has_ended_) return nullptr;
  incoming_.insert(connection);
  return connection;
}

void PeerBlobFetcher::fetch(const BlobInfo& blob, Addresses from, OnFetched done) {
  std::reverse(from.begin(), from.end());
  auto request = std::make_shared<PullRequest>();
  request->blob = blob;
  request->untried = std::move(from);
  request->done = std::move(done);
  request->why = environment_error("no worker is known to hold it");
  try_next(request);
}

void PeerBlobFetcher::try_next(const std::shared_ptr<PullRequest>& request) {
  while (!request->untried.empty()) {
    std::string address = std::move(request->untried.back());
    request->untried.pop_back();
    auto connection = connect_to(address);
    if (!connection.ok()) {
      request->why = connection.error();
      continue;
    }
    auto on_end = [self = shared_from_this(), request, connection = *connection](Status status) {
      if (status.ok()) return request->done({});
      request->why = status.error();
      if (connection->was_idle()) request->untried.push_back(connection->address());
      self->try_next(request);
    };
    return (*connection)->fetch(request->blob, on_end);
  }
  request->done(request->why);
}

Result<PeerBlobFetcher::PeerConnectionPtr> PeerBlobFetcher::connect_to(const std::string& address) {
  PeerConnectionPtr connection;
  {
    std::lock_guard lock(mutex_);
    if (has_ended_) return environment_error("this worker ends");
    int64_t now_us = monotonic_us();
    std::erase_if(avoid_until_us_, [&](const auto& each) { return each.second <= now_us; });
    if (avoid_until_us_.contains(address))
      return environment_error(address + " did not answer a moment ago, or its connection broke");
    auto found = outgoing_.find(address);
    if (found != outgoing_.end()) return found->second;
    if (outgoing_.size() >= kPeersMax)
      return environment_error(fmt::format("{} other workers are already asked", kPeersMax));
    connection = std::make_shared<PeerConnection>(shared_from_this(), address);
    outgoing_.emplace(address, connection);
    if (!watcher_.joinable()) watcher_ = engine_thread([this] { watch(); });
    wake_.notify_all();
  }
  auto link = sessions_.connect(address, connection, Role::peer);
  if (link.ok()) {
    connection->attach(*link);
    return connection;
  }
  forget(connection, true);
  connection->fail_all(link.error());
  return link.error();
}

void PeerBlobFetcher::forget(const PeerConnectionPtr& connection, bool was_bad) {
  std::lock_guard lock(mutex_);
  if (incoming_.erase(connection) > 0) return;
  auto found = outgoing_.find(connection->address());
  if (found != outgoing_.end() && found->second == connection) outgoing_.erase(found);
  if (was_bad) avoid_until_us_[connection->address()] = monotonic_us() + options_.avoid_ms * 1000;
}

void PeerBlobFetcher::watch() {
  int64_t shortest_ms = std::min(options_.stall_ms, options_.idle_ms);
  auto period = std::chrono::milliseconds(std::max<int64_t>(1, shortest_ms / kChecksPerTimeout));
  std::unique_lock lock(mutex_);
  while (!has_ended_) {
    if (outgoing_.empty()) {
      wake_.wait(lock);
      continue;
    }
    wake_.wait_for(lock, period, [this] { return has_ended_; });
    std::map<std::string, PeerConnectionPtr> outgoing = outgoing_;
    lock.unlock();
    for (const auto& [address, connection] : outgoing) connection->check(monotonic_us(), options_);
    outgoing.clear();
    lock.lock();
  }
}

void PeerBlobFetcher::end() {
  std::unique_ptr<Listener> listener;
  std::set<PeerConnectionPtr> connections;
  {
    std::lock_guard lock(mutex_);
    has_ended_ = true;
    wake_.notify_all();
    listener = std::move(listener_);
    connections = std::exchange(incoming_, {});
    for (auto& [address, connection] : std::exchange(outgoing_, {})) connections.insert(connection);
  }
  listener.reset();
  for (const PeerConnectionPtr& connection : connections)
    connection->fail_all(environment_error("this worker ends"));
  if (watcher_.joinable()) watcher_.join();
}

}  // namespace flow::cluster
