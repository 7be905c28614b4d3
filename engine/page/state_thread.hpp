// The thread of the page that reads the state, so that the thread of the HTTP server never waits.
#pragma once
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "engine/page/state_follower.hpp"
#include "flow/flow.hpp"

namespace flow {

/// Runs jobs one after another. They see the state as of at most kStateMs ago. Without jobs it is
/// closed after that time, because open files keep what was deleted on disk.
class StateThread {
 public:
  using Job = std::function<void(const StateFollower& state)>;
  using Refuse = std::function<void(const Error& error)>;

  static constexpr size_t kJobsMax = 64;
  static constexpr int64_t kStateMs = 250;

  explicit StateThread(EngineOptions options);
  /// Jobs that have not begun are dropped.
  ~StateThread();
  StateThread(const StateThread&) = delete;
  StateThread& operator=(const StateThread&) = delete;

  /// Any thread. Returns false if kJobsMax jobs wait. `refuse` receives, on this thread, what the
  /// job or the reading of the state throws. `is_new`: the job sees all that was written before
  /// this call.
  bool post(Job job, Refuse refuse, bool is_new = false);
  /// Starts the thread. While `is_wanted` returns true it calls `poll` with the newest state, at
  /// most every kStateMs and for at most a fifth of the time; a poll that is due precedes the jobs.
  /// Errors of `poll` are dropped: the next one may succeed. Call it once, before post().
  void poll(std::function<bool()> is_wanted, Job poll);

 private:
  using Clock = std::chrono::steady_clock;
  struct Entry {
    Job job;
    Refuse refuse;
    bool is_new = false;
  };

  void work();
  void run(Entry& entry);
  void run_poll();
  /// Not older than `age`.
  const StateFollower& state(Clock::duration age);
  const StateFollower& newest() { return state(Clock::duration::zero()); }
  bool is_poll_wanted() const { return is_wanted_ && is_wanted_(); }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Entry> jobs_;  // at most kJobsMax; guarded by mutex_, as is_stopping_
  bool is_stopping_ = false;
  StateFollower state_;  // this and the rest: only the thread uses it
  std::function<bool()> is_wanted_;
  Job poll_;
  Clock::time_point poll_at_{};
  Clock::time_point read_at_{};
  std::thread thread_;
};

}  // namespace flow
