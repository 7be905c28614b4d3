// One thread that runs the handlers of an Asio context.
#pragma once
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>

namespace flow {

class EventLoop {
 public:
  /// `name` is the thread's, 15 characters at most. `report` gets a line for each exception that a
  /// handler throws, on the loop's thread.
  EventLoop(const std::string& name, std::function<void(const std::string&)> report);
  ~EventLoop() { stop(); }

  boost::asio::io_context& context() { return context_; }
  /// Whether the caller is the loop's thread.
  bool is_current() { return context_.get_executor().running_in_this_thread(); }
  /// Runs the job soon, after those that were posted before. Any thread may call it.
  void post(std::function<void()> job);
  /// Runs the job on the loop's thread and waits for its end. After stop() it runs on the caller's.
  void run(const std::function<void()>& job);
  /// Ends the thread after the present handler. Further handlers are not run, but destroyed with
  /// the loop: what they refer to must be gone or valid then. Not on the loop's thread.
  void stop();

 private:
  void work();

  const std::function<void(const std::string&)> report_;
  boost::asio::io_context context_{1};
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> guard_{
      context_.get_executor()};
  std::thread thread_;
};

/// Runs a job on the loop's thread when a time has come. Only that thread uses it, but for
/// construction, and destruction after the loop has stopped.
class LoopTimer {
 public:
  using Clock = std::chrono::steady_clock;

  LoopTimer(EventLoop& loop, std::function<void()> job);
  ~LoopTimer();
  /// Runs the job at this time or earlier: a call with a later time than the last one costs
  /// nothing. After the job the timer is idle.
  void wake_by(Clock::time_point time);

 private:
  struct State;
  const std::shared_ptr<State> state_;
};

}  // namespace flow
