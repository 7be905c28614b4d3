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

  /// Any thread. False: kJobsMax jobs wait. What the job or the opening of the state throws is
  /// given to `refuse`, on the thread. `is_new`: with what was written until now.
  bool post(Job job, Refuse refuse, bool is_new = false);
  /// Runs `poll` on the thread, with the newest state, whenever `is_wanted` is true. Not more often
  /// than each kStateMs, and for at most a fifth of the time; when it is due it goes before the
  /// jobs. Call it once, before other calls.
  /// An error is dropped: the next poll may succeed.
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
