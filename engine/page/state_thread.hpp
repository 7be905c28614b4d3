// The thread of the page that reads the state, so that the thread of the HTTP server never waits.
#pragma once
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "flow/flow.hpp"

namespace flow {

/// Runs jobs one after another. A reader sees the state as of the time when it was opened: jobs
/// share one for kReaderMs, and without jobs it is closed, because it keeps deleted files on disk.
class StateThread {
 public:
  using Job = std::function<void(const Reader& reader)>;
  using Refuse = std::function<void(const Error& error)>;

  static constexpr size_t kJobsMax = 64;
  static constexpr int64_t kReaderMs = 250;

  explicit StateThread(EngineOptions options);
  /// Jobs that have not begun are dropped.
  ~StateThread();
  StateThread(const StateThread&) = delete;
  StateThread& operator=(const StateThread&) = delete;

  /// Any thread. False: kJobsMax jobs wait. What the job or the opening of the state throws is
  /// given to `refuse`, on the thread. `is_new`: with a reader that is opened for it.
  bool post(Job job, Refuse refuse, bool is_new = false);
  /// Runs `poll` on the thread, with a new reader, whenever `is_wanted` is true. Not more often
  /// than each kReaderMs, and for at most a fifth of the time; when it is due it goes before the
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
  const Reader& reader();
  bool is_poll_wanted() const { return is_wanted_ && is_wanted_(); }

  const EngineOptions options_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Entry> jobs_;  // at most kJobsMax; guarded by mutex_, as is_stopping_
  bool is_stopping_ = false;
  std::function<bool()> is_wanted_;  // this and the rest: only the thread uses it
  Job poll_;
  Clock::time_point poll_at_{};
  Clock::time_point opened_at_{};
  std::unique_ptr<Reader> reader_;
  std::thread thread_;
};

}  // namespace flow
