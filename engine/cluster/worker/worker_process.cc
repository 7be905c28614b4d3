#include "engine/cluster/worker/worker_process.hpp"

#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <utility>

#include "engine/base/address.hpp"
#include "engine/base/engine_thread.hpp"
#include "engine/base/ids.hpp"

namespace flow::cluster {

namespace {

constexpr int kTransferThreads = 2;

}  // namespace

/// One session with the head.
class Node::Life final : public SessionUser {
 public:
  explicit Life(Node& node) : node_(node) {}
  /// Before anything is told.
  void attach(std::shared_ptr<SessionLink> link) { link_.attach(std::move(link)); }

  void on_open(const Peer& peer) override {
    auto link = link_.get();
    {
      std::lock_guard lock(node_.mutex_);
      node_.is_open_ = true;
      opened_us_ = monotonic_us();
    }
    joined_ = fmt::format("joined the head `{}` at {}", peer.node, link->link()->description());
    node_.agent_->connect([link](std::string_view message) { (void)link->send(message); },
                          link->link(), link->bulk(),
                          "node `" + peer.node + "` at " + link->link()->description());
  }
  void on_message(std::string message) override {
    if (!node_.agent_->on_message(message))
      link_.get()->end("the received bytes are not a message of a head");
    // The head may still turn it away, and say why, as one whose name is taken.
    bool is_news = !joined_.empty() && node_.agent_->was_accepted();
    if (is_news) node_.options_.on_note(std::exchange(joined_, ""));
  }
  void on_suspect(const std::string& why) override { node_.options_.on_note(why); }
  void on_heard_again() override { node_.options_.on_note("the head answers again"); }
  void on_end(EndKind kind, const Error& why) override {
    node_.agent_->disconnect(why);
    bool was_accepted = node_.agent_->was_accepted();
    std::lock_guard lock(node_.mutex_);
    int64_t now_us = monotonic_us();
    if (node_.is_open_) node_.alone_since_us_ = now_us;
    if (node_.is_open_ && node_.retries_.on_end(kind, was_accepted, now_us - opened_us_))
      node_.last_note_.clear();
    node_.is_up_ = node_.is_open_ = false;
    // Who finds no head for a day says so once.
    if (!node_.quit_ && node_.last_note_ != why.message) {
      node_.last_note_ = why.message;
      node_.options_.on_note(why.message + "; trying again");
    }
    node_.wake_.notify_all();
  }

 private:
  Node& node_;
  AwaitedLink link_;
  int64_t opened_us_ = 0;
  std::string joined_;  // to be told with the welcome
};

Node::Node(NodeOptions options) : options_(std::move(options)), thread_pool_(kTransferThreads) {}

Result<std::unique_ptr<Node>> Node::start(Transport& transport, NodeOptions options,
                                          const WorkerAgent::MakeWorker& make) {
  std::unique_ptr<Node> node(new Node(std::move(options)));
  node->sessions_ =
      std::make_unique<Sessions>(transport, node->options_.session, node->options_.on_note);
  FellowsOptions fellows;
  fellows.store = node->options_.agent.store;
  fellows.on_transferred = [self = node.get()](bool is_out, const BlobInfo& blob) {
    self->agent_->note_transfer(is_out ? &Traffic::to_workers : &Traffic::from_workers, blob);
  };
  auto encrypts = std::make_shared<std::atomic<bool>>(false);
  fellows.encrypts = [encrypts] { return encrypts->load(); };
  node->fellows_ = std::make_shared<Fellows>(*node->sessions_, node->thread_pool_, fellows);
  WorkerAgent::Options agent_options = node->options_.agent;
  agent_options.encrypts = encrypts;
  agent_options.head = node->options_.head;
  agent_options.blob_address = [fellows = node->fellows_] { return fellows->address(); };
  agent_options.follow_redirect = [fellows = node->fellows_](const BlobInfo& blob, Addresses from,
                                                             OnFetched done) {
    fellows->fetch(blob, std::move(from), std::move(done));
  };
  auto agent = WorkerAgent::start(std::move(agent_options), make);
  FLOW_TRY(agent);
  node->agent_ = std::move(*agent);
  node->thread_ = engine_thread([self = node.get()] { self->loop(); });
  return node;
}

Node::~Node() {
  {
    std::lock_guard lock(mutex_);
    quit_ = true;
    wake_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
  fellows_->end();
  sessions_.reset();
}

bool Node::is_connected() const {
  std::lock_guard lock(mutex_);
  return is_open_;
}

int64_t Node::alone_ms() const {
  std::lock_guard lock(mutex_);
  return is_open_ ? 0 : (monotonic_us() - alone_since_us_) / 1000;
}

// Where the head is this machine's alone, so are they; else at the address that others have on the
// way here. There may be no way to the head yet.
void Node::serve_fellows() {
  if (!fellows_->address().empty()) return;
  auto head = parse_address(options_.head);
  auto own = head.ok() ? own_host_towards(*head) : Result<std::string>(head.error());
  Status listens = own.ok() ? fellows_->listen(address_text({*own, 0})) : Status(own.error());
  if (listens.ok() || std::exchange(told_unserved_, true)) return;
  options_.on_note("other workers cannot fetch content from this one: " + listens.error().message);
}

void Node::loop() {
  std::unique_lock lock(mutex_);
  while (!quit_) {
    is_up_ = true;
    lock.unlock();
    serve_fellows();
    auto life = std::make_shared<Life>(*this);
    auto link = sessions_->connect(options_.head, life);
    if (link.ok()) life->attach(*link);
    lock.lock();
    if (!link.ok()) {
      is_up_ = false;
      std::string why = link.error().message;
      if (why != std::exchange(last_note_, why)) options_.on_note(why + "; trying again");
    }
    wake_.wait(lock, [this] { return !is_up_ || quit_; });
    auto pause = std::chrono::milliseconds(retries_.pause_ms(random_u64()));
    wake_.wait_for(lock, pause, [this] { return quit_; });
  }
}

}  // namespace flow::cluster
