#include "engine/serve/http/event_loop.hpp"

#include <fmt/format.h>
#include <pthread.h>

#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <exception>
#include <future>

namespace flow {

namespace asio = boost::asio;

EventLoop::EventLoop(const std::string& name, std::function<void(const std::string&)> report)
    : report_(std::move(report)) {
  thread_ = std::thread([this, name] {
    ::pthread_setname_np(::pthread_self(), name.c_str());
    work();
  });
}

/// One event for which there is no memory must not end the process.
void EventLoop::work() {
  while (!context_.stopped()) {
    try {
      context_.run();
    } catch (const std::exception& error) {
      if (report_) report_(fmt::format("the server failed to handle an event: {}", error.what()));
    }
  }
}

void EventLoop::post(std::function<void()> job) { asio::post(context_, std::move(job)); }

void EventLoop::run(const std::function<void()>& job) {
  if (!thread_.joinable() || is_current()) return job();
  std::promise<void> done;
  asio::post(context_, [&] {
    try {
      job();
      done.set_value();
    } catch (...) {
      done.set_exception(std::current_exception());
    }
  });
  done.get_future().get();
}

void EventLoop::stop() {
  context_.stop();
  if (thread_.joinable()) thread_.join();
}

/// Handlers share it, because they may outlive the timer.
struct LoopTimer::State : std::enable_shared_from_this<State> {
  State(EventLoop& loop, std::function<void()> run) : job(std::move(run)), timer(loop.context()) {}

  void wait() {
    timer.expires_at(at);
    timer.async_wait([self = shared_from_this()](const boost::system::error_code& error) {
      if (error || self->at > Clock::now()) return;  // it was set again
      self->at = Clock::time_point::max();
      if (self->job) self->job();
    });
  }

  std::function<void()> job;
  asio::steady_timer timer;
  Clock::time_point at = Clock::time_point::max();  // max(): it is idle
};

LoopTimer::LoopTimer(EventLoop& loop, std::function<void()> job)
    : state_(std::make_shared<State>(loop, std::move(job))) {}

LoopTimer::~LoopTimer() {
  state_->job = {};
  state_->timer.cancel();
}

void LoopTimer::wake_by(Clock::time_point time) {
  if (time >= state_->at) return;
  state_->at = time;
  state_->wait();
}

}  // namespace flow
