#include "engine/serve/request_scheduler.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <numeric>
#include <utility>

#include "engine/serve/batch.hpp"

namespace flow {

namespace {

using Clock = RequestScheduler::Clock;

constexpr int kClientLeft = 499;  // as nginx has it
constexpr int kStopping = 503;
constexpr int kTooLate = 504;

RejectedRequest rejection_of(PendingRequest& request, int status) {
  return {std::move(request.reply), request.arrived, request.deadline, status};
}

}  // namespace

RequestScheduler::RequestScheduler(const Limits& limits, Outcomes outcomes)
    : limits_(limits), outcomes_(std::move(outcomes)), queue_(limits.rows_max, limits.batch_wait) {}

RequestScheduler::Admission RequestScheduler::push(std::unique_ptr<PendingRequest>& request) {
  bool wakes_predict = false, wakes_timer = false;
  {
    std::lock_guard lock(mutex_);
    uint64_t bytes = bytes_of(request->request.inputs);
    if (is_closed_) return Admission::closed;
    if (queue_.size() >= limits_.queue_max) return Admission::full;
    if (queue_.size() > 0 && queued_bytes_ + bytes > limits_.bytes_max)
      return Admission::too_many_bytes;
    Clock::time_point deadline = request->deadline;
    queue_.push(std::move(request));
    queued_bytes_ += bytes;
    if (deadline < timer_wakes_at_) {
      timer_wakes_at_ = deadline;
      wakes_timer = true;
    }
    bool is_waiting = predict_wakes_at_ != Clock::time_point::min();
    if (is_waiting && queue_.next_event() < predict_wakes_at_) {
      predict_wakes_at_ = Clock::time_point::min();  // one wake suffices
      wakes_predict = true;
    }
  }
  // Without the lock, so that the thread does not wake only to wait for it.
  if (wakes_predict) predict_wake_.notify_one();
  if (wakes_timer) timer_wake_.notify_one();
  return Admission::admitted;
}

bool RequestScheduler::is_full() const {
  std::lock_guard lock(mutex_);
  return queue_.size() >= limits_.queue_max;
}

size_t RequestScheduler::queued() const {
  std::lock_guard lock(mutex_);
  return queue_.size();
}

bool RequestScheduler::is_overdue() const {
  Clock::rep began = call_began_;
  return began != 0 && Clock::now().time_since_epoch() - Clock::duration(began) > limits_.call_max;
}

// ---- the thread that predicts

void RequestScheduler::run(const Predict& predict, const std::function<void()>& between) {
  while (next_batch()) {
    if (!running_.empty()) answer_batch(predict);
    between();
  }
}

/// Waits for a batch and moves it to running_, or for wake(); then running_ is empty. Returns false
/// after close().
bool RequestScheduler::next_batch() {
  std::unique_lock lock(mutex_);
  while (!is_closed_ && running_.empty() && !std::exchange(is_woken_, false)) {
    Clock::time_point now = Clock::now();
    Rejections rejections;
    for (auto& request : queue_.take_batch(now)) {
      queued_bytes_ -= bytes_of(request->request.inputs);
      if (request->reply.is_abandoned())
        rejections.push_back(rejection_of(*request, kClientLeft));
      else
        running_.push_back({std::move(request)});
    }
    if (running_.empty() && rejections.empty() && queue_.next_deadline() <= now)
      rejections = take_lapsed(now);
    if (!rejections.empty()) {
      lock.unlock();
      reject(std::move(rejections));
      lock.lock();
      continue;
    }
    if (!running_.empty()) break;
    Clock::time_point next = queue_.next_event();
    predict_wakes_at_ = next;
    if (next == Clock::time_point::max()) {
      predict_wake_.wait(lock);
    } else {
      predict_wake_.wait_until(lock, next);
    }
    predict_wakes_at_ = Clock::time_point::min();
  }
  return !is_closed_;
}

void RequestScheduler::answer_batch(const Predict& predict) {
  std::vector<const Tensors*> parts;
  std::vector<int64_t> rows;
  for (const RunningRequest& running : running_) {
    parts.push_back(&running.request->request.inputs);
    rows.push_back(rows_of(*parts.back()));
  }
  if (parts.size() > 1) {
    auto outputs = call(predict, parts, std::accumulate(rows.begin(), rows.end(), 0L));
    if (outputs.ok()) {
      auto split = split_rows(*outputs, rows);
      std::vector<RunningRequest> ended = take_running();
      for (size_t i = 0; i < ended.size(); i++) {
        if (ended[i].is_rejected) continue;
        Result<Tensors> outputs_of_one =
            split.ok() ? Result<Tensors>(std::move((*split)[i])) : Result<Tensors>(split.error());
        outcomes_.finished(*ended[i].request, outputs_of_one);
      }
      return;
    }
  }
  // Alone; also each request of a batch that failed, so that one bad request does not fail the
  // others.
  for (size_t i = 0; i < parts.size(); i++) {
    if (!is_wanted(i)) continue;
    auto outputs = call(predict, {parts[i]}, rows[i]);
    RunningRequest ended;
    {
      std::lock_guard lock(mutex_);
      ended = std::exchange(running_[i], {nullptr, true});
    }
    if (!ended.is_rejected) outcomes_.finished(*ended.request, outputs);
  }
  Rejections left;
  for (RunningRequest& running : take_running())
    if (!running.is_rejected) left.push_back(rejection_of(*running.request, kClientLeft));
  reject(std::move(left));
}

Result<Tensors> RequestScheduler::call(const Predict& predict,
                                       const std::vector<const Tensors*>& parts, int64_t rows) {
  Clock::time_point began = Clock::now();
  call_began_ = began.time_since_epoch().count();
  auto outputs = [&]() -> Result<Tensors> {
    try {
      return parts.size() == 1 ? predict(*parts.front()) : predict(join_rows(parts));
    } catch (const std::exception& error) {
      return Error{ErrorKind::task, fmt::format("`predict` failed: {}", error.what())};
    }
  }();
  call_began_ = 0;
  outcomes_.called(rows, Clock::now() - began);
  return outputs;
}

bool RequestScheduler::is_wanted(size_t at) const {
  std::lock_guard lock(mutex_);
  return !running_[at].is_rejected && !running_[at].request->reply.is_abandoned();
}

std::vector<RequestScheduler::RunningRequest> RequestScheduler::take_running() {
  std::lock_guard lock(mutex_);
  return std::exchange(running_, {});
}

void RequestScheduler::wake() {
  {
    std::lock_guard lock(mutex_);
    is_woken_ = true;
  }
  predict_wake_.notify_one();
}

// ---- deadlines and the end

void RequestScheduler::await_deadlines(Clock::time_point until) {
  Rejections lapsed;
  {
    std::unique_lock lock(mutex_);
    timer_wakes_at_ = std::min(until, next_deadline());
    while (Clock::now() < timer_wakes_at_) timer_wake_.wait_until(lock, timer_wakes_at_);
    timer_wakes_at_ = Clock::time_point::min();
    lapsed = take_lapsed(Clock::now());
  }
  reject(std::move(lapsed));
}

/// Of all requests. The lock is held.
Clock::time_point RequestScheduler::next_deadline() const {
  Clock::time_point next = queue_.next_deadline();
  for (const RunningRequest& running : running_)
    if (!running.is_rejected) next = std::min(next, running.request->deadline);
  return next;
}

/// The lock is held.
RequestScheduler::Rejections RequestScheduler::take_lapsed(Clock::time_point now) {
  Rejections lapsed;
  for (auto& request : queue_.take_lapsed(now)) {
    queued_bytes_ -= bytes_of(request->request.inputs);
    lapsed.push_back(rejection_of(*request, request->deadline <= now ? kTooLate : kClientLeft));
  }
  for (RunningRequest& running : running_) {
    if (running.is_rejected || running.request->deadline > now) continue;
    running.is_rejected = true;
    lapsed.push_back(rejection_of(*running.request, kTooLate));
  }
  return lapsed;
}

void RequestScheduler::reject(Rejections rejections) {
  for (RejectedRequest& rejected : rejections) outcomes_.rejected(std::move(rejected));
}

size_t RequestScheduler::close() {
  Rejections left;
  {
    std::lock_guard lock(mutex_);
    is_closed_ = true;
    left = take_lapsed(Clock::time_point::max() - std::chrono::hours(1));  // it adds to it
  }
  predict_wake_.notify_one();
  for (RejectedRequest& request : left) request.status = kStopping;
  size_t count = left.size();
  reject(std::move(left));
  return count;
}

}  // namespace flow
