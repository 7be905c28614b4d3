#include "engine/cluster/worker/worker_process.hpp"

#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <utility>

#include "engine/base/address.hpp"
#include "engine/base/engine_thread.hpp"
#include "engine/base/ids.hpp"
#include "engine/base/log.hpp"

namespace flow::cluster {

namespace {

constexpr size_t kTransferThreads = 2;

}  // namespace

/// One session with the head.
class WorkerProcess::HeadSession final : public SessionUser {
 public:
  explicit HeadSession(WorkerProcess& process) : process_(process) {}
  /// Call this before any callback.
  void attach(std::shared_ptr<SessionLink> link) { link_.attach(std::move(link)); }

  void on_open(const SessionPeer& peer) override {
    auto link = link_.get();
    {
      std::lock_guard lock(process_.mutex_);
      process_.is_open_ = true;
      opened_us_ = monotonic_us();
    }
    joined_ = fmt::format("joined the head `{}` at {}", peer.name, link->link()->description());
    process_.agent_->connect([link](std::string_view message) { (void)link->send(message); },
                             link->link(), link->bulk(),
                             "node `" + peer.name + "` at " + link->link()->description());
  }
  void on_message(std::string message) override {
    if (!process_.agent_->on_message(message))
      link_.get()->end("the received bytes are not a message of a head");
    // The head may still reject the join, for example because the name is taken.
    bool is_new = !joined_.empty() && process_.agent_->was_accepted();
    if (!is_new) return;
    log::info("joined the head", {.worker = process_.name(), .detail = joined_});
    process_.options_.on_note(std::exchange(joined_, ""));
  }
  void on_suspect(const std::string& why) override {
    log::warning("the head is silent", {.worker = process_.name(), .detail = why});
    process_.options_.on_note(why);
  }
  void on_recovered() override {
    log::info("the head answers again", {.worker = process_.name()});
    process_.options_.on_note("the head answers again");
  }
  void on_end(EndKind kind, const Error& why) override {
    process_.agent_->disconnect(why);
    bool was_accepted = process_.agent_->was_accepted();
    std::lock_guard lock(process_.mutex_);
    if (!process_.quit_)
      log::write(process_.last_note_ != why.message ? LogLevel::warning : LogLevel::debug,
                 process_.is_open_ && was_accepted ? "disconnected from the head"
                                                   : "no session with the head",
                 {.worker = process_.name(), .detail = why.message});
    int64_t now_us = monotonic_us();
    if (process_.is_open_) process_.headless_since_us_ = now_us;
    if (process_.is_open_ && process_.backoff_.on_end(kind, was_accepted, now_us - opened_us_))
      process_.last_note_.clear();
    process_.is_up_ = process_.is_open_ = false;
    // A repeated reason is logged once.
    if (!process_.quit_ && process_.last_note_ != why.message) {
      process_.last_note_ = why.message;
      process_.options_.on_note(why.message + "; trying again");
    }
    process_.wake_.notify_all();
  }

 private:
  WorkerProcess& process_;
  SessionLinkFuture link_;
  int64_t opened_us_ = 0;
  std::string joined_;  // reported when the join is accepted
};

WorkerProcess::WorkerProcess(WorkerProcessOptions options)
    : options_(std::move(options)), thread_pool_(transfer_threads(kTransferThreads)) {}

Result<std::unique_ptr<WorkerProcess>> WorkerProcess::start(Transport& transport,
                                                            WorkerProcessOptions options,
                                                            const WorkerAgent::MakeWorker& make) {
  std::unique_ptr<WorkerProcess> process(new WorkerProcess(std::move(options)));
  process->sessions_ =
      std::make_unique<Sessions>(transport, process->options_.session, process->options_.on_note);
  PeerFetcherOptions fetcher_options;
  fetcher_options.store = process->options_.agent.store;
  fetcher_options.on_transferred = [self = process.get()](bool is_out, const BlobInfo& blob) {
    self->agent_->note_transfer(is_out ? &Traffic::to_workers : &Traffic::from_workers, blob);
  };
  auto encrypts = std::make_shared<std::atomic<bool>>(false);
  fetcher_options.encrypts = [encrypts] { return encrypts->load(); };
  process->peer_fetcher_ = std::make_shared<PeerBlobFetcher>(
      *process->sessions_, process->thread_pool_, fetcher_options);
  WorkerAgent::Options agent_options = process->options_.agent;
  agent_options.encrypts = encrypts;
  agent_options.head = process->options_.head;
  agent_options.blob_address = [peer_fetcher = process->peer_fetcher_] {
    return peer_fetcher->address();
  };
  agent_options.follow_redirect = [peer_fetcher = process->peer_fetcher_](
                                      const BlobInfo& blob, Addresses from, OnFetched done) {
    peer_fetcher->fetch(blob, std::move(from), std::move(done));
  };
  auto agent = WorkerAgent::start(std::move(agent_options), make);
  FLOW_TRY(agent);
  process->agent_ = std::move(*agent);
  process->thread_ = engine_thread([self = process.get()] { self->loop(); });
  return process;
}

WorkerProcess::~WorkerProcess() {
  {
    std::lock_guard lock(mutex_);
    quit_ = true;
    wake_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
  peer_fetcher_->end();
  sessions_.reset();
}

bool WorkerProcess::is_connected() const {
  std::lock_guard lock(mutex_);
  return is_open_;
}

int64_t WorkerProcess::headless_ms() const {
  std::lock_guard lock(mutex_);
  return is_open_ ? 0 : (monotonic_us() - headless_since_us_) / 1000;
}

// Listens for peers: on loopback if the head is, else at the address that this machine uses towards
// the head. The head may not be reachable yet.
void WorkerProcess::serve_peers() {
  if (!peer_fetcher_->address().empty()) return;
  auto head = parse_address(options_.head);
  auto own = head.ok() ? local_host_for(*head) : Result<std::string>(head.error());
  Status listens = own.ok() ? peer_fetcher_->listen(address_text({*own, 0})) : Status(own.error());
  if (listens.ok() || std::exchange(warned_unserved_, true)) return;
  options_.on_note("other workers cannot download blobs from this one: " + listens.error().message);
}

void WorkerProcess::loop() {
  std::unique_lock lock(mutex_);
  while (!quit_) {
    is_up_ = true;
    lock.unlock();
    serve_peers();
    auto session = std::make_shared<HeadSession>(*this);
    auto link = sessions_->connect(options_.head, session);
    if (link.ok()) session->attach(*link);
    lock.lock();
    if (!link.ok()) {
      is_up_ = false;
      std::string why = link.error().message;
      bool is_new = why != std::exchange(last_note_, why);
      log::write(is_new ? LogLevel::warning : LogLevel::debug, "no session with the head",
                 {.worker = name(), .detail = why});
      if (is_new) options_.on_note(why + "; trying again");
    }
    wake_.wait(lock, [this] { return !is_up_ || quit_; });
    auto pause = std::chrono::milliseconds(backoff_.pause_ms(random_u64()));
    wake_.wait_for(lock, pause, [this] { return quit_; });
  }
}

}  // namespace flow::cluster
