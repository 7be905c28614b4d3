#include "engine/base/thread_pool.hpp"

#include <pthread.h>
#include <sched.h>

#include <system_error>
#include <utility>

#include "engine/base/engine_thread.hpp"

namespace flow {

ThreadPool::ThreadPool(ThreadPoolOptions options)
    : options_(std::move(options)), queue_(std::make_shared<Queue>()) {
  FLOW_CHECK(options_.name.size() <= 15 && options_.queue_max > 0);
  std::lock_guard lock(queue_->mutex);
  if (options_.threads_max > 0) start_thread();
}

Result<std::unique_ptr<ThreadPool>> ThreadPool::start(ThreadPoolOptions options) {
  try {
    return std::make_unique<ThreadPool>(std::move(options));
  } catch (const std::system_error& error) {
    return environment_error("cannot start a thread: " + error.code().message() +
                             ". `ulimit -u` shows how many the user may have");
  }
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(queue_->mutex);
    queue_->is_over = true;  // no thread is started from here on
    queue_->wake.notify_all();
  }
  for (std::thread& thread : threads_) thread.join();
  run_waiting();
}

// Notifies after the unlock, so that the thread that wakes finds the mutex free. By then the job
// may have run and the pool may be destroyed: only the queue is used.
bool ThreadPool::add(Job& job, bool may_exceed) {
  std::shared_ptr<Queue> queue = queue_;
  {
    std::lock_guard lock(queue->mutex);
    if (!may_exceed && queue->waiting.size() >= options_.queue_max) return false;
    bool needs_thread = queue->waiting.size() >= idle_ && threads_.size() < options_.threads_max;
    if (needs_thread && !queue->is_over) start_thread();
    queue->waiting.push_back(std::move(job));
  }
  queue->wake.notify_one();
  return true;
}

bool ThreadPool::try_post(Job& job) { return add(job, false); }
void ThreadPool::post(Job job) { add(job, true); }

void ThreadPool::post_as_last(Job job) {
  std::lock_guard lock(queue_->mutex);
  queue_->waiting.push_back(std::move(job));
}

size_t ThreadPool::excess_jobs() const {
  std::lock_guard lock(queue_->mutex);
  size_t waiting = queue_->waiting.size();
  bool can_grow = threads_.size() < options_.threads_max;
  return can_grow || waiting <= idle_ ? 0 : waiting - idle_;
}

// The new thread waits for the mutex, which the caller holds.
void ThreadPool::start_thread() {
  try {
    threads_.push_back(engine_thread([this] { work(); }));
  } catch (const std::system_error&) {
    if (threads_.empty()) throw;  // in the constructor
    return;                       // the threads that exist take the job later
  }
  idle_++;
}

void ThreadPool::work() {
  ::pthread_setname_np(::pthread_self(), options_.name.c_str());
  if (options_.is_batch) {
    sched_param none{};
    ::pthread_setschedparam(::pthread_self(), SCHED_BATCH, &none);  // else it runs as any thread
  }
  std::unique_lock lock(queue_->mutex);
  while (true) {
    queue_->wake.wait(lock, [this] { return queue_->is_over || !queue_->waiting.empty(); });
    idle_--;
    if (!run_next(lock)) return;
    idle_++;
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
  job = nullptr;  // what it owns may post from its destructor
  lock.lock();
  return true;
}

bool Strand::try_post(ThreadPool::Job job) {
  std::lock_guard lock(mutex_);
  if (!is_running_) {
    ThreadPool::Job run = [self = shared_from_this()] { self->run_next(); };
    if (!thread_pool_.try_post(run)) return false;
    is_running_ = true;
  }
  waiting_.push_back(std::move(job));
  return true;
}

void Strand::post(ThreadPool::Job job) {
  {
    std::lock_guard lock(mutex_);
    waiting_.push_back(std::move(job));
    if (std::exchange(is_running_, true)) return;
  }
  thread_pool_.post([self = shared_from_this()] { self->run_next(); });
}

void Strand::run_next() {
  ThreadPool::Job job;
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

}  // namespace flow
