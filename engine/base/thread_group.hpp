// Threads that come and go over a long life: those that have ended are joined when another starts.
#pragma once
#include <atomic>
#include <functional>
#include <list>
#include <mutex>
#include <thread>

#include "engine/base/engine_thread.hpp"

namespace flow {

/// Thread-safe. start() is not called by one of its own threads.
class ThreadGroup {
 public:
  ThreadGroup() = default;
  ~ThreadGroup() { join(); }
  ThreadGroup(const ThreadGroup&) = delete;
  ThreadGroup& operator=(const ThreadGroup&) = delete;

  void start(std::function<void()> body) {
    std::lock_guard lock(mutex_);
    threads_.remove_if([](Entry& entry) {
      if (!entry.has_ended) return false;
      entry.thread.join();
      return true;
    });
    Entry& entry = threads_.emplace_back();
    entry.thread = engine_thread([&entry, body = std::move(body)] {
      body();
      entry.has_ended = true;
    });
  }
  /// Waits for all; none starts meanwhile.
  void join() {
    std::lock_guard lock(mutex_);
    for (Entry& entry : threads_) entry.thread.join();
    threads_.clear();
  }
  /// Threads that have not been joined.
  size_t size() const {
    std::lock_guard lock(mutex_);
    return threads_.size();
  }

 private:
  struct Entry {
    std::thread thread;
    std::atomic<bool> has_ended{false};
  };
  mutable std::mutex mutex_;
  std::list<Entry> threads_;  // entries leave in start(), once they have ended
};

}  // namespace flow
