#include "engine/page/state_thread.hpp"

#include <algorithm>
#include <utility>

#include "engine/base/engine_thread.hpp"

namespace flow {

namespace {

constexpr std::chrono::milliseconds kStateAge{StateThread::kStateMs};
constexpr int kPollPauses = 4;  // the pause after a poll, in durations of the poll

/// The Error of the exception that is being handled.
Error handled_error() {
  try {
    throw;
  } catch (const Failed& failed) {
    return failed.error;
  } catch (const std::exception& exception) {
    return internal_error(exception.what());
  }
}

}  // namespace

StateThread::StateThread(EngineOptions options) : state_(std::move(options)) {}

StateThread::~StateThread() {
  {
    std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void StateThread::poll(std::function<bool()> is_wanted, Job poll) {
  is_wanted_ = std::move(is_wanted);
  poll_ = std::move(poll);
  thread_ = engine_thread([this] { work(); });
}

bool StateThread::post(Job job, Refuse refuse, bool is_new) {
  {
    std::lock_guard lock(mutex_);
    if (jobs_.size() >= kJobsMax) return false;
    jobs_.push_back({std::move(job), std::move(refuse), is_new});
  }
  changed_.notify_all();
  return true;
}

void StateThread::work() {
  std::unique_lock lock(mutex_);
  while (!is_stopping_) {
    // A poll goes first: the queue may never be empty, and polls take at most a fifth of the time.
    if (is_poll_wanted() && poll_at_ <= Clock::now()) {
      lock.unlock();
      run_poll();
      lock.lock();
    } else if (!jobs_.empty()) {
      Entry entry = std::move(jobs_.front());
      jobs_.pop_front();
      lock.unlock();
      run(entry);
      lock.lock();
    } else if (is_poll_wanted()) {
      changed_.wait_until(lock, poll_at_);
    } else if (!state_.is_open()) {
      changed_.wait(lock);
    } else if (changed_.wait_until(lock, read_at_ + kStateAge) == std::cv_status::timeout) {
      state_.close();
    }
  }
}

void StateThread::run(Entry& entry) {
  const bool may_be_old = !entry.is_new && state_.is_open();
  try {
    return entry.job(entry.is_new ? newest() : state(kStateAge));
  } catch (...) {
    Error error = handled_error();
    if (!may_be_old) return entry.refuse(error);
    // What the job misses may be newer than the state. Or a file of it was deleted.
    if (error.kind != ErrorKind::user) state_.close();
  }
  try {
    entry.job(newest());
  } catch (...) {
    entry.refuse(handled_error());
  }
}

void StateThread::run_poll() {
  Clock::time_point begin = Clock::now();
  try {
    poll_(newest());
  } catch (const std::exception&) {
    state_.close();  // such as a file that a compaction of the writer deleted meanwhile
  }
  Clock::time_point end = Clock::now();
  poll_at_ = end + std::max<Clock::duration>(kStateAge, kPollPauses * (end - begin));
}

const StateFollower& StateThread::state(Clock::duration age) {
  if (!state_.is_open() || read_at_ + age <= Clock::now()) {
    read_at_ = Clock::now();
    state_.refresh();
  }
  return state_;
}

}  // namespace flow
