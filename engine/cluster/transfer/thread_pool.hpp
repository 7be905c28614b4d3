// Threads for what takes time: reading, writing and hashing, which no callback of a link may do.
#pragma once
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace flow::cluster {

using Job = std::function<void()>;

/// Thread-safe. Its destructor, on none of its threads, waits until all that was posted is done;
/// who hears of a job that has run may call it though the job's post() has not returned yet.
class ThreadPool {
 public:
  /// Without a thread, for tests, jobs wait for run_waiting.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  /// Does not block, and runs nothing.
  void post(Job job);
  void run_waiting();

 private:
  friend class Strand;
  void work();
  /// By a job, as the last thing that it does: its thread, which is free next, takes what waits
  /// longest, and none is woken.
  void post_as_last(Job job);
  bool run_next(std::unique_lock<std::mutex>& lock);

  struct Queue {
    std::mutex mutex;
    std::condition_variable wake;
    std::deque<Job> waiting;
    bool is_over = false;
  };
  const std::shared_ptr<Queue> queue_;  // of each post() too, which may outlast this
  std::vector<std::thread> threads_;    // as many as the constructor says
};

/// Runs its jobs in their order, one at a time, on whichever threads. Thread-safe.
class Strand : public std::enable_shared_from_this<Strand> {
 public:
  explicit Strand(ThreadPool& thread_pool) : thread_pool_(thread_pool) {}
  void post(Job job);

 private:
  void run_next();

  ThreadPool& thread_pool_;
  std::mutex mutex_;
  std::deque<Job> waiting_;
  bool is_running_ = false;
};

}  // namespace flow::cluster
