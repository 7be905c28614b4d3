// The queue in front of the turns. Any thread posts; one turn runs at a time, on the engine's
// thread or, if that is idle and there is little to do, on the thread that posts.
#pragma once
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <vector>

#include "engine/core/types.hpp"
#include "engine/runtime/stop_cause.hpp"
#include "engine/runtime/turn_input.hpp"

namespace flow {

/// Thread-safe, except where noted. An input that is posted after quit() or after the engine has
/// stopped gets the outcome false at once.
class Inbox {
 public:
  /// The functions are called by one thread at a time, with what earlier turns have written.
  struct Hooks {
    /// Runs one turn of these inputs, and of the timers that are due if `with_timers`.
    std::function<void(std::vector<TurnInput> inputs, bool with_timers)> turn;
    std::function<bool()> has_work;             // besides the inputs in the inbox
    std::function<core::Time()> next_due, now;  // of the timers; INT64_MAX: none
  };
  Inbox(Hooks hooks, const StopCause& stop) : hooks_(std::move(hooks)), stop_(stop) {}

  void post(TurnInput input);
  void post(std::vector<TurnInput> inputs);
  /// Posts, or runs the turn on the calling thread if there are few inputs and the engine's thread
  /// is idle: a step of a chain does not wait for another thread to wake.
  void post_or_turn(std::vector<TurnInput> inputs);
  /// Posts the input and blocks until its outcome is known; returns that.
  bool post_and_wait(TurnInput input);
  /// Rejects further inputs and ends run_turns().
  void quit();
  /// Wakes the engine's thread, which asks has_work() again.
  void wake();

  /// On the engine's thread: runs turns until quit() or until the engine has stopped.
  void run_turns();
  /// Runs one turn on the calling thread; false if there is nothing to do or the engine has
  /// stopped. For an engine without a thread of its own.
  bool run_turn();
  /// Gives the outcome false to the inputs that are left.
  void reject_rest();

 private:
  bool is_over() const { return quit_ || stop_.is_set(); }
  void wait_for_work(std::unique_lock<std::mutex>& lock);
  void run_inputs(std::unique_lock<std::mutex>& lock);

  const Hooks hooks_;
  const StopCause& stop_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<TurnInput> queue_;
  bool is_turning_ = false;  // a thread runs a turn, with exclusive use of the state
  bool is_started_ = false;  // the engine's thread exists
  core::Time wake_at_ = 0;   // when the engine's thread wakes by itself
  bool quit_ = false;
};

}  // namespace flow
