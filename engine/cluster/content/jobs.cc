#include "engine/cluster/content/jobs.hpp"

#include <utility>

namespace flow::cluster {

Jobs::Jobs(int threads) {
  for (int i = 0; i < threads; i++) threads_.emplace_back([this] { work(); });
}

Jobs::~Jobs() {
  {
    std::lock_guard lock(mutex_);
    is_over_ = true;
    wake_.notify_all();
  }
  for (std::thread& thread : threads_) thread.join();
  run_waiting();
}

void Jobs::post(Job job) {
  std::lock_guard lock(mutex_);
  waiting_.push_back(std::move(job));
  wake_.notify_one();
}

void Jobs::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return is_over_ || !waiting_.empty(); });
    if (!run_next(lock)) return;
  }
}

void Jobs::run_waiting() {
  std::unique_lock lock(mutex_);
  while (run_next(lock)) continue;
}

bool Jobs::run_next(std::unique_lock<std::mutex>& lock) {
  if (waiting_.empty()) return false;
  Job job = std::move(waiting_.front());
  waiting_.pop_front();
  lock.unlock();
  job();
  job = nullptr;  // what it holds may post as it goes
  lock.lock();
  return true;
}

void Strand::post(Job job) {
  {
    std::lock_guard lock(mutex_);
    waiting_.push_back(std::move(job));
    if (std::exchange(is_running_, true)) return;
  }
  jobs_.post([self = shared_from_this()] { self->run_next(); });
}

void Strand::run_next() {
  Job job;
  {
    std::lock_guard lock(mutex_);
    job = std::move(waiting_.front());
    waiting_.pop_front();
  }
  job();
  job = nullptr;
  {
    std::lock_guard lock(mutex_);
    if (waiting_.empty()) {
      is_running_ = false;
      return;
    }
  }
  jobs_.post([self = shared_from_this()] { self->run_next(); });
}

}  // namespace flow::cluster
