#include "engine/runtime/inbox.hpp"

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include "engine/base/latch.hpp"

namespace flow {

namespace {

constexpr size_t kInputsMax = 64;  // per turn: the next turn decides while this one is written
constexpr size_t kOwnTurnMax = 4;  // inputs that a posting thread may process itself
// A condition variable does not count the time that the machine is suspended, and timers do.
constexpr core::Time kSleepMaxMs = 60'000;

void reject(std::vector<TurnInput> inputs) {
  for (TurnInput& input : inputs)
    if (input.outcome) input.outcome(false);
}

}  // namespace

void Inbox::post(TurnInput input) {
  std::vector<TurnInput> one;
  one.push_back(std::move(input));
  post(std::move(one));
}

void Inbox::post(std::vector<TurnInput> inputs) {
  if (inputs.empty()) return;
  {
    std::unique_lock lock(mutex_);
    if (is_over()) {
      lock.unlock();
      return reject(std::move(inputs));
    }
    for (TurnInput& input : inputs) queue_.push_back(std::move(input));
  }
  wake_.notify_one();
}

void Inbox::post_or_turn(std::vector<TurnInput> inputs) {
  if (inputs.size() <= kOwnTurnMax) {
    std::unique_lock lock(mutex_);
    bool is_idle = !is_turning_ && queue_.empty() && is_started_ && !is_over();
    if (is_idle) {
      is_turning_ = true;
      lock.unlock();
      hooks_.turn(std::move(inputs), false);
      lock.lock();
      is_turning_ = false;
      bool must_wake = !queue_.empty() || hooks_.has_work() || hooks_.next_due() < wake_at_;
      if (must_wake || is_over()) wake_.notify_all();
      return;
    }
  }
  post(std::move(inputs));
}

bool Inbox::post_and_wait(TurnInput input) {
  auto latch = std::make_shared<Latch>();
  input.outcome = [latch, outcome = std::move(input.outcome)](bool admitted) {
    if (outcome) outcome(admitted);
    latch->open(admitted);
  };
  post(std::move(input));
  return latch->wait();
}

void Inbox::quit() {
  {
    std::lock_guard lock(mutex_);
    quit_ = true;
  }
  wake_.notify_all();
}

void Inbox::wake() {
  // The lock makes sure that the engine's thread, which may have asked has_work() just before, is
  // waiting by now.
  { std::lock_guard lock(mutex_); }
  wake_.notify_all();
}

void Inbox::run_turns() {
  std::unique_lock lock(mutex_);
  is_started_ = true;
  while (true) {
    wait_for_work(lock);
    while (is_turning_) wake_.wait(lock);  // a turn of another thread ends first
    if (is_over()) return;
    run_inputs(lock);
  }
}

bool Inbox::run_turn() {
  std::unique_lock lock(mutex_);
  bool has_work = !queue_.empty() || hooks_.has_work() || hooks_.next_due() <= hooks_.now();
  if (is_over() || !has_work) return false;
  run_inputs(lock);
  return true;
}

void Inbox::wait_for_work(std::unique_lock<std::mutex>& lock) {
  while (!is_over() && (is_turning_ || (queue_.empty() && !hooks_.has_work()))) {
    if (is_turning_) {
      wake_at_ = INT64_MAX;  // the thread that runs the turn wakes this one for the next timer too
      wake_.wait(lock);
      continue;
    }
    core::Time now = hooks_.now();
    wake_at_ = hooks_.next_due();
    if (wake_at_ <= now) return;
    if (wake_at_ == INT64_MAX) {
      wake_.wait(lock);
    } else {
      wake_.wait_for(lock, std::chrono::milliseconds(std::min(wake_at_ - now, kSleepMaxMs)));
    }
  }
}

void Inbox::run_inputs(std::unique_lock<std::mutex>& lock) {
  std::vector<TurnInput> taken;
  while (!queue_.empty() && taken.size() < kInputsMax) {
    taken.push_back(std::move(queue_.front()));
    queue_.pop_front();
  }
  is_turning_ = true;
  wake_at_ = 0;
  lock.unlock();
  hooks_.turn(std::move(taken), true);
  lock.lock();
  is_turning_ = false;
}

void Inbox::reject_rest() {
  std::vector<TurnInput> undelivered;
  {
    std::lock_guard lock(mutex_);
    undelivered.assign(std::make_move_iterator(queue_.begin()),
                       std::make_move_iterator(queue_.end()));
    queue_.clear();
  }
  reject(std::move(undelivered));
}

}  // namespace flow
