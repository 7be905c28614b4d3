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

constexpr int64_t kLooks = 4;  // within the shortest time that is waited for

}  // namespace

/// A session with a fellow, whichever side opened it.
class Fellows::Talk final : public SessionUser, public std::enable_shared_from_this<Talk> {
 public:
  Talk(std::shared_ptr<Fellows> fellows, std::string address)
      : fellows_(std::move(fellows)), address_(std::move(address)) {}
  void attach(std::shared_ptr<SessionLink> link) { link_.attach(std::move(link)); }
  const std::string& address() const { return address_; }
  /// Ended because nothing was wanted of it: who wants something at that moment opens another.
  bool was_idle() const { return was_idle_; }

  /// Begins when the session is open.
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

  void on_open(const Peer& peer) override {
    auto link = link_.get();
    TransferOptions options;
    options.store = fellows_->options_.store;
    options.thread_pool = &fellows_->thread_pool_;
    options.link = link->link();
    options.send = [link](std::string_view message) { (void)link->send(message); };
    options.peer = "node `" + peer.node + "` at " + link->link()->description();
    options.seal = link->bulk();
    options.encrypts = fellows_->options_.encrypts;
    options.on_transferred = fellows_->options_.on_transferred;
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
    if (!transfer()->on_message(message)) end("the received bytes are not a message about content");
  }
  // The head has it too: nobody is waited for.
  void on_suspect(const std::string& why) override { end(why); }
  void on_heard_again() override {}
  void on_end(EndKind kind, const Error& why) override {
    fellows_->forget(shared_from_this(), kind != EndKind::left && !was_idle_);
    give_up(why);
  }

  void end(const std::string& why) { link_.get()->end(why); }
  void give_up(const Error& why) {
    std::vector<std::pair<BlobInfo, OnFetched>> waiting;
    {
      std::lock_guard lock(mutex_);
      if (!over_) over_ = why;
      waiting = std::exchange(waiting_, {});
    }
    for (auto& [blob, done] : waiting) done(why);
    if (auto open = transfer()) open->end(why);
  }

  /// Ends it where it is time to. Of the watcher.
  void look_at(int64_t now_us, const FellowsOptions& options) {
    auto open = transfer();
    if (!open) return;  // the handshake has a time of its own
    DownloadProgress progress = open->progress();
    bool goes_on = heard_us_ == 0 || progress.responses != heard_ || !progress.awaits_peer;
    heard_ = progress.responses;
    if (used_us_ == 0 || !progress.is_idle) used_us_ = now_us;
    if (goes_on) heard_us_ = now_us;
    if (now_us - heard_us_ >= options.stall_ms * 1000)
      return end(
          fmt::format("none of the requested content arrived for {} s", options.stall_ms / 1000.0));
    if (now_us - used_us_ < options.idle_ms * 1000) return;
    was_idle_ = true;
    end("nothing more is requested from it");
  }

 private:
  std::shared_ptr<BlobTransfer> transfer() {
    std::lock_guard lock(mutex_);
    return transfer_;
  }

  const std::shared_ptr<Fellows> fellows_;
  const std::string address_;
  AwaitedLink link_;
  std::mutex mutex_;
  std::shared_ptr<BlobTransfer> transfer_;  // from when it is open
  std::vector<std::pair<BlobInfo, OnFetched>> waiting_;
  std::optional<Error> over_;
  std::atomic<bool> was_idle_{false};
  // Of the watcher:
  uint64_t heard_ = 0;
  int64_t heard_us_ = 0, used_us_ = 0;
};

struct Fellows::Errand {
  BlobInfo blob;
  Addresses left;  // the next is the last
  OnFetched done;
  Error why;
};

Fellows::Fellows(Sessions& sessions, ThreadPool& thread_pool, FellowsOptions options)
    : sessions_(sessions), thread_pool_(thread_pool), options_(std::move(options)) {}

Fellows::~Fellows() { end(); }

Status Fellows::listen(const std::string& address) {
  auto accept = [weak = weak_from_this()](const Peer& peer, std::shared_ptr<SessionLink> link) {
    auto self = weak.lock();
    return self ? self->let_in(peer, link) : nullptr;
  };
  auto listener = sessions_.listen(address, accept);
  FLOW_TRY(listener);
  std::lock_guard lock(mutex_);
  listener_ = std::move(*listener);
  return {};
}

std::string Fellows::address() const {
  std::lock_guard lock(mutex_);
  return listener_ ? listener_->address() : "";
}

std::shared_ptr<SessionUser> Fellows::let_in(const Peer& peer,
                                             const std::shared_ptr<SessionLink>& link) {
  if (peer.role != Role::peer) return nullptr;
  auto talk = std::make_shared<Talk>(shared_from_this(), "");
  talk->attach(link);
  std::lock_guard lock(mutex_);
  if (has_ended_) return nullptr;
  asking_.insert(talk);
  return talk;
}

void Fellows::fetch(const BlobInfo& blob, Addresses from, OnFetched done) {
  std::reverse(from.begin(), from.end());
  auto errand = std::make_shared<Errand>();
  errand->blob = blob;
  errand->left = std::move(from);
  errand->done = std::move(done);
  errand->why = environment_error("no worker is known to hold it");
  go_on(errand);
}

void Fellows::go_on(const std::shared_ptr<Errand>& errand) {
  while (!errand->left.empty()) {
    std::string address = std::move(errand->left.back());
    errand->left.pop_back();
    auto talk = talk_with(address);
    if (!talk.ok()) {
      errand->why = talk.error();
      continue;
    }
    auto on_end = [self = shared_from_this(), errand, talk = *talk](Status status) {
      if (status.ok()) return errand->done({});
      errand->why = status.error();
      if (talk->was_idle()) errand->left.push_back(talk->address());
      self->go_on(errand);
    };
    return (*talk)->fetch(errand->blob, on_end);
  }
  errand->done(errand->why);
}

Result<Fellows::TalkPtr> Fellows::talk_with(const std::string& address) {
  TalkPtr talk;
  {
    std::lock_guard lock(mutex_);
    if (has_ended_) return environment_error("this worker ends");
    int64_t now_us = monotonic_us();
    std::erase_if(avoided_us_, [&](const auto& each) { return each.second <= now_us; });
    if (avoided_us_.contains(address))
      return environment_error(address + " did not answer a moment ago, or its connection broke");
    auto found = asked_.find(address);
    if (found != asked_.end()) return found->second;
    if (asked_.size() >= kFellowsMax)
      return environment_error(fmt::format("{} other workers are already asked", kFellowsMax));
    talk = std::make_shared<Talk>(shared_from_this(), address);
    asked_.emplace(address, talk);
    if (!watcher_.joinable()) watcher_ = engine_thread([this] { watch(); });
    wake_.notify_all();
  }
  auto link = sessions_.connect(address, talk, Role::peer);
  if (link.ok()) {
    talk->attach(*link);
    return talk;
  }
  forget(talk, true);
  talk->give_up(link.error());
  return link.error();
}

void Fellows::forget(const TalkPtr& talk, bool was_bad) {
  std::lock_guard lock(mutex_);
  if (asking_.erase(talk) > 0) return;
  auto found = asked_.find(talk->address());
  if (found != asked_.end() && found->second == talk) asked_.erase(found);
  if (was_bad) avoided_us_[talk->address()] = monotonic_us() + options_.avoid_ms * 1000;
}

void Fellows::watch() {
  int64_t shortest_ms = std::min(options_.stall_ms, options_.idle_ms);
  auto period = std::chrono::milliseconds(std::max<int64_t>(1, shortest_ms / kLooks));
  std::unique_lock lock(mutex_);
  while (!has_ended_) {
    if (asked_.empty()) {
      wake_.wait(lock);
      continue;
    }
    wake_.wait_for(lock, period, [this] { return has_ended_; });
    std::map<std::string, TalkPtr> asked = asked_;
    lock.unlock();
    for (const auto& [address, talk] : asked) talk->look_at(monotonic_us(), options_);
    asked.clear();
    lock.lock();
  }
}

void Fellows::end() {
  std::unique_ptr<Listener> listener;
  std::set<TalkPtr> talks;
  {
    std::lock_guard lock(mutex_);
    has_ended_ = true;
    wake_.notify_all();
    listener = std::move(listener_);
    talks = std::exchange(asking_, {});
    for (auto& [address, talk] : std::exchange(asked_, {})) talks.insert(talk);
  }
  listener.reset();
  for (const TalkPtr& talk : talks) talk->give_up(environment_error("this worker ends"));
  if (watcher_.joinable()) watcher_.join();
}

}  // namespace flow::cluster
