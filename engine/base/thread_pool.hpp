// Threads for work that takes time, such as reading, writing and hashing; and strands, which run
// jobs on these threads in order.
#pragma once
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "flow/result.hpp"

namespace flow {

struct ThreadPoolOptions {
  std::string name;  // of its threads, as debuggers and `top -H` show it; 15 characters at most
  size_t threads_max = 1;  // 0, for tests: jobs wait for run_waiting()
  size_t queue_max = 1;    // jobs that wait for a thread, when try_post() adds another
  /// Whether its threads never preempt others when they wake (SCHED_BATCH). With few processors
  /// each such switch costs both threads what they had in the cache.
  bool is_batch = false;
};

/// Starts its first thread when it is made, and another when a job finds none idle, up to the
/// maximum. Thread-safe. The destructor runs all posted jobs, including jobs that they post, and
/// joins the threads. It must not be called from one of them. post() does not touch the pool after
/// its job may have run, so the job's end may be the signal that lets another thread destroy the
/// pool.
class ThreadPool {
 public:
  using Job = std::function<void()>;

  /// Throws std::system_error if the first thread cannot be started. If a later one cannot, its
  /// jobs wait for those that exist.
  explicit ThreadPool(ThreadPoolOptions options);
  /// As the constructor, but returns an Error instead of throwing.
  static Result<std::unique_ptr<ThreadPool>> start(ThreadPoolOptions options);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  /// Returns false, and leaves `job` as it is, if the queue is full. Does not block and runs
  /// nothing.
  bool try_post(Job& job);
  /// As try_post(), but a full queue takes the job too: for work that the caller bounds, and for
  /// further jobs of work that try_post() has admitted.
  void post(Job job);
  /// Runs the waiting jobs on the calling thread, and the jobs that they post.
  void run_waiting();
  /// Waiting jobs that no idle thread can take and no new thread may be started for.
  size_t excess_jobs() const;
  size_t queue_max() const { return options_.queue_max; }

 private:
  friend class Strand;
  /// By a job as its last action: its thread, which is free next, takes the oldest job, and no
  /// other thread is woken. The queue may exceed its maximum by one job per thread.
  void post_as_last(Job job);
  void work();
  bool add(Job& job, bool may_exceed);
  bool run_next(std::unique_lock<std::mutex>& lock);
  void start_thread();

  struct Queue {
    std::mutex mutex;
    std::condition_variable wake;
    std::deque<Job> waiting;  // up to queue_max, and the jobs of post() and post_as_last()
    bool is_over = false;
  };
  const ThreadPoolOptions options_;
  const std::shared_ptr<Queue> queue_;  // shared with calls of post(), which may outlast the pool
  std::vector<std::thread> threads_;    // up to threads_max; grows with queue_->mutex locked
  size_t idle_ = 0;                     // threads without a job; guarded by queue_->mutex
};

/// Runs its jobs in their order, one at a time, on any of the pool's threads. Thread-safe.
class Strand : public std::enable_shared_from_this<Strand> {
 public:
  /// `thread_pool` outlives it.
  explicit Strand(ThreadPool& thread_pool) : thread_pool_(thread_pool) {}
  void post(ThreadPool::Job job);
  /// Returns false if this is its first job and the pool's queue is full.
  bool try_post(ThreadPool::Job job);

 private:
  void run_next();

  ThreadPool& thread_pool_;
  std::mutex mutex_;
  std::deque<ThreadPool::Job> waiting_;  // bounded by what its one poster has in progress
  bool is_running_ = false;
};

}  // namespace flow
