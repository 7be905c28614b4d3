#include "transports/inproc/loop.hpp"

#include <chrono>

#include "engine/base/clock.hpp"
#include "engine/base/engine_thread.hpp"
#include "flow/result.hpp"

namespace flow::inproc {

EventLoop::EventLoop() : thread_(engine_thread([this] { run(); })) {}

EventLoop::~EventLoop() { stop(); }

bool EventLoop::post(std::function<void()> call) {
  std::lock_guard lock(mutex_);
  if (stopped_) return false;
  calls_.push_back(std::move(call));
  wake_.notify_one();
  return true;
}

bool EventLoop::watch(const void* key, std::shared_ptr<LoopClient> watched) {
  std::lock_guard lock(mutex_);
  if (closed_) return false;
  watched_.emplace(key, std::move(watched));
  wake_.notify_one();
  return true;
}

void EventLoop::forget(const void* key) {
  std::lock_guard lock(mutex_);
  watched_.erase(key);
}

void EventLoop::stop() {
  if (!thread_.joinable()) return;
  FLOW_CHECK(thread_.get_id() != std::this_thread::get_id());
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
  }
  for (const auto& each : watched()) each->end();
  {
    std::lock_guard lock(mutex_);
    stopped_ = true;
    wake_.notify_one();
  }
  thread_.join();
}

void EventLoop::run() {
  std::vector<std::function<void()>> calls;
  while (take(calls)) {
    for (auto& call : calls) call();
    calls.clear();
    check_deadlines();
  }
}

bool EventLoop::take(std::vector<std::function<void()>>& calls) {
  std::unique_lock lock(mutex_);
  auto is_due = [this] { return !calls_.empty() || stopped_; };
  if (watched_.empty()) {
    wake_.wait(lock, [&] { return is_due() || !watched_.empty(); });
  } else {
    wake_.wait_for(lock, std::chrono::milliseconds(kCheckMs), is_due);
  }
  calls.swap(calls_);
  return !calls.empty() || !stopped_;
}

void EventLoop::check_deadlines() {
  int64_t now_us = monotonic_us();
  for (const auto& each : watched()) each->check_deadlines(now_us);
}

std::vector<std::shared_ptr<LoopClient>> EventLoop::watched() {
  std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<LoopClient>> found;
  for (const auto& [key, each] : watched_) found.push_back(each);
  return found;
}

}  // namespace flow::inproc
