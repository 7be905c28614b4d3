#include "engine/cluster/nodes/node.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "engine/base/engine_thread.hpp"
#include "engine/base/ids.hpp"

namespace flow::cluster {

/// One session with the head.
class Node::Life final : public SessionUser {
 public:
  explicit Life(Node& node) : node_(node) {}
  /// Before anything is told.
  void attach(const std::shared_ptr<SessionLink>& link) {
    std::lock_guard lock(mutex_);
    link_ = link;
    attached_.notify_all();
  }

  void on_open(const Peer& peer) override {
    auto link = this->link();
    {
      std::lock_guard lock(node_.mutex_);
      node_.is_open_ = true;
      node_.tries_ = 0;
      node_.last_note_.clear();
    }
    node_.options_.on_note(
        fmt::format("joined the head `{}` at {}", peer.node, link->link()->description()));
    node_.agent_->connect([link](std::string_view message) { (void)link->send(message); },
                          link->link(),
                          "node `" + peer.node + "` at " + link->link()->description());
  }
  void on_message(std::string message) override {
    if (!node_.agent_->on_message(message)) link()->end("what came is no message of a head's");
  }
  void on_suspect(const std::string& why) override { node_.options_.on_note(why); }
  void on_heard_again() override { node_.options_.on_note("the head is heard again"); }
  void on_end(EndKind, const Error& why) override {
    node_.agent_->disconnect(why);
    std::lock_guard lock(node_.mutex_);
    node_.is_up_ = node_.is_open_ = false;
    // Who finds no head for a day says so once.
    if (!node_.quit_ && node_.last_note_ != why.message) {
      node_.last_note_ = why.message;
      node_.options_.on_note(why.message + "; trying again");
    }
    node_.wake_.notify_all();
  }

 private:
  std::shared_ptr<SessionLink> link() {
    std::unique_lock lock(mutex_);
    attached_.wait(lock, [this] { return link_ != nullptr; });
    return link_;
  }

  Node& node_;
  std::mutex mutex_;
  std::condition_variable attached_;
  std::shared_ptr<SessionLink> link_;
};

Result<std::unique_ptr<Node>> Node::start(Transport& transport, NodeOptions options,
                                          const Agent::MakeWorker& make) {
  std::unique_ptr<Node> node(new Node(std::move(options)));
  auto agent = Agent::start(node->options_.agent, make);
  FLOW_TRY(agent);
  node->agent_ = std::move(*agent);
  node->sessions_ =
      std::make_unique<Sessions>(transport, node->options_.session, node->options_.on_note);
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
  sessions_.reset();
}

bool Node::is_connected() const {
  std::lock_guard lock(mutex_);
  return is_open_;
}

int64_t Node::pause_ms(int tries) const {
  constexpr int kDoublings = 10;
  int64_t longest = std::min(kRetryLastMs, kRetryFirstMs << std::min(tries, kDoublings));
  return longest / 2 + static_cast<int64_t>(random_u64() % static_cast<uint64_t>(longest / 2 + 1));
}

void Node::loop() {
  std::unique_lock lock(mutex_);
  while (!quit_) {
    is_up_ = true;
    lock.unlock();
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
    auto pause = std::chrono::milliseconds(pause_ms(tries_++));
    wake_.wait_for(lock, pause, [this] { return quit_; });
  }
}

}  // namespace flow::cluster
