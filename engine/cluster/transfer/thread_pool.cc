#include "engine/cluster/transfer/thread_pool.hpp"

#include <pthread.h>
#include <sched.h>

#include <utility>

namespace flow::cluster {

ThreadPool::ThreadPool(int threads) : queue_(std::make_shared<Queue>()) {
  for (int i = 0; i < threads; i++) threads_.emplace_back([this] { work(); });
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(queue_->mutex);
    queue_->is_over = true;
    queue_->wake.notify_all();
  }
  for (std::thread& thread : threads_) thread.join();
  run_waiting();
}

// Who wakes finds the lock free. The job may have run by then, and this be no more.
void ThreadPool::post(Job job) {
  std::shared_ptr<Queue> queue = queue_;
  {
    std::lock_guard lock(queue->mutex);
    queue->waiting.push_back(std::move(job));
  }
  queue->wake.notify_one();
}

void ThreadPool::post_as_last(Job job) {
  std::lock_guard lock(queue_->mutex);
  queue_->waiting.push_back(std::move(job));
}

namespace {

/// Who is woken to write takes the processor neither from who hashes nor from who answers: where
/// there are few of them each such switch costs both what they had in its cache.
void take_no_precedence() {
  sched_param none{};
  ::pthread_setschedparam(::pthread_self(), SCHED_BATCH, &none);  // else it runs as any thread
}

}  // namespace

void ThreadPool::work() {
  take_no_precedence();
  std::unique_lock lock(queue_->mutex);
  while (true) {
    queue_->wake.wait(lock, [this] { return queue_->is_over || !queue_->waiting.empty(); });
    if (!run_next(lock)) return;
  }
}

void ThreadPool::run_waiting() {
  std::unique_lock lock(queue_->mutex);
  while (run_next(lock)) continue;
}

bool ThreadPool::run_next(std::unique_lock<std::mutex>& lock) {
  if (queue_->waiting.empty()) return false;
  Job job = std::move(queue_->waiting.front());
  queue_->waiting.pop_front();
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
  thread_pool_.post([self = shared_from_this()] { self->run_next(); });
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
  thread_pool_.post_as_last([self = shared_from_this()] { self->run_next(); });
}

}  // namespace flow::cluster
