// Builds graphs one after the other on a thread, for callers that must not block.
#pragma once
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

#include "engine/worker/worker.hpp"

namespace flow {

/// Thread-safe.
class BuildQueue {
 public:
  /// Called on the queue's thread.
  using OnBuilt = std::function<void(Result<BuildReply>)>;

  explicit BuildQueue(Builder& builder) : builder_(builder) {}
  /// Waits for the build that runs. Those that have not begun are dropped, and are never answered.
  ~BuildQueue();
  BuildQueue(const BuildQueue&) = delete;
  BuildQueue& operator=(const BuildQueue&) = delete;

  void add(BuildOrder order, OnBuilt on_built);

 private:
  void work();

  Builder& builder_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::pair<BuildOrder, OnBuilt>> orders_;
  bool quit_ = false;
  std::thread thread_;  // started by the first order
};

}  // namespace flow
