#include "engine/cli/top/view_thread.hpp"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <utility>

#include "engine/cli/display/signals.hpp"

namespace flow::cli {

namespace {

constexpr int kPause = 4;        // after a read, in CPU times of the read
constexpr int kLowPriority = 5;  // with a lower one it gets no time while a run uses all CPUs

/// CPU time of the calling thread.
int64_t thread_ms() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return now.tv_sec * 1'000 + now.tv_nsec / 1'000'000;
}

}  // namespace

ViewThread::ViewThread(EngineOptions options, std::string run, int64_t interval_ms,
                       std::function<void()> on_change)
    : options_(std::move(options)),
      interval_ms_(interval_ms),
      on_change_(std::move(on_change)),
      run_(std::move(run)),
      thread_(begin_thread([this] { work(); })) {}

ViewThread::~ViewThread() {
  {
    std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void ViewThread::select(const std::string& run) {
  {
    std::lock_guard lock(mutex_);
    if (run_ == run) return;
    run_ = run;
    is_selected_anew_ = true;
  }
  changed_.notify_all();
}

std::optional<ViewThread::News> ViewThread::take() {
  std::lock_guard lock(mutex_);
  return std::exchange(news_, std::nullopt);
}

void ViewThread::work() {
  setpriority(PRIO_PROCESS, 0, kLowPriority);  // on Linux of this thread only
  std::unique_lock lock(mutex_);
  while (!is_stopping_) {
    std::string run = run_;
    is_selected_anew_ = false;
    lock.unlock();
    int64_t begin_ms = thread_ms();
    News news = read(run);
    int64_t taken_ms = thread_ms() - begin_ms;
    lock.lock();
    news_ = std::move(news);
    lock.unlock();
    on_change_();
    lock.lock();
    std::chrono::milliseconds pause(std::max(interval_ms_, kPause * taken_ms));
    changed_.wait_for(lock, pause, [this] { return is_stopping_ || is_selected_anew_; });
  }
}

ViewThread::News ViewThread::read(const std::string& run) {
  try {
    if (!viewer_) viewer_ = std::make_unique<ClusterViewer>(options_);
    return {std::make_shared<const ClusterView>(viewer_->view(run)), ""};
  } catch (const std::exception& failed) {
    viewer_.reset();  // of a head: connects again
    return {nullptr, failed.what()};
  }
}

RequestThread::~RequestThread() {
  if (thread_.joinable()) thread_.join();
}

bool RequestThread::send(const TopRequest& request) {
  {
    std::lock_guard lock(mutex_);
    if (is_busy_) return false;
    is_busy_ = true;
  }
  if (thread_.joinable()) thread_.join();
  thread_ = begin_thread([this, request] {
    std::string outcome;
    try {
      Engine engine(options_);
      if (request.kind == TopRequest::Kind::cancel) {
        engine.cancel(request.run);
        outcome = "cancelled " + request.run;
      } else {
        engine.signal(request.run, request.signal, request.json);
        outcome = "sent `" + request.signal + "` to " + request.run;
      }
    } catch (const std::exception& failed) {
      outcome = failed.what();
    }
    {
      std::lock_guard lock(mutex_);
      outcome_ = std::move(outcome);
      is_busy_ = false;
    }
    on_change_();
  });
  return true;
}

std::optional<std::string> RequestThread::take_outcome() {
  std::lock_guard lock(mutex_);
  return std::exchange(outcome_, std::nullopt);
}

}  // namespace flow::cli
