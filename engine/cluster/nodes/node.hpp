// A worker's process: keeps a session with its head, whatever becomes of it, for its Agent.
#pragma once
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "engine/cluster/nodes/agent.hpp"
#include "engine/cluster/sessions.hpp"

namespace flow::cluster {

/// Between two tries to reach the head: doubled from the first to the last, and a little random, so
/// that not all workers of a head that comes back come at once.
constexpr int64_t kRetryFirstMs = 50, kRetryLastMs = 2'000;

struct NodeOptions {
  SessionOptions session;
  std::string head;  // address
  Agent::Options agent;
  /// Told of what changed, in words. On any thread; it must not block.
  std::function<void(std::string)> on_note = [](std::string) {};
};

class Node {
 public:
  /// `transport` outlives it.
  static Result<std::unique_ptr<Node>> start(Transport& transport, NodeOptions options,
                                             const Agent::MakeWorker& make);
  /// Leaves the head and ends what runs.
  ~Node();

  bool is_connected() const;
  const Agent& agent() const { return *agent_; }

 private:
  class Life;
  explicit Node(NodeOptions options) : options_(std::move(options)) {}
  void loop();
  int64_t pause_ms(int tries) const;

  const NodeOptions options_;
  std::unique_ptr<Agent> agent_;
  std::unique_ptr<Sessions> sessions_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  bool quit_ = false;
  bool is_up_ = false, is_open_ = false;  // there is a session, and it is open
  int tries_ = 0;                         // since there was one
  std::string last_note_;
  std::thread thread_;
};

}  // namespace flow::cluster
