// Inference requests from their admission to their outcome: the queue, the calls of predict, and
// the deadlines.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "engine/serve/batch_queue.hpp"
#include "engine/serve/model_server.hpp"

namespace flow {

/// A request that gets no result: status 499 if its client has left, 503 if the service ends, 504
/// if its deadline has passed.
struct RejectedRequest {
  using Clock = PendingRequest::Clock;

  HttpReply reply;
  Clock::time_point arrived, deadline;
  int status = 0;
};

/// Thread-safe. One thread calls run(), and another one await_deadlines() from time to time.
class RequestScheduler {
 public:
  using Clock = PendingRequest::Clock;

  struct Limits {
    int64_t rows_max = 1;          // of a batch of several requests
    Clock::duration batch_wait{};  // for more requests
    size_t queue_max = 1024;
    uint64_t bytes_max = 256u << 20;  // of the tensors in the queue; one request may have more
    Clock::duration call_max{};       // a longer call of predict is overdue
  };
  /// The functions are called without a lock.
  struct Outcomes {
    /// On the thread of run(). It may move from both.
    std::function<void(PendingRequest&, Result<Tensors>&)> finished;
    /// On any thread.
    std::function<void(RejectedRequest)> rejected;
    /// After each call of predict, on the thread of run().
    std::function<void(int64_t rows, Clock::duration duration)> called;
  };
  enum class Admission : uint8_t { admitted, full, too_many_bytes, closed };

  RequestScheduler(const Limits& limits, Outcomes outcomes);

  /// Takes the request if it is admitted.
  Admission push(std::unique_ptr<PendingRequest>& request);
  bool is_full() const;
  size_t queued() const;
  /// Whether the current call of predict is overdue.
  bool is_overdue() const;

  /// Calls predict for each batch until close(). Calls `between` after each batch and after wake().
  void run(const Predict& predict, const std::function<void()>& between);
  /// Makes run() call `between` soon.
  void wake();
  /// Waits until `until` or the next deadline, and rejects the requests whose deadline has passed.
  /// Also rejects waiting requests whose client has left.
  void await_deadlines(Clock::time_point until);
  /// Rejects all requests, also those in a call of predict. Returns how many there were.
  size_t close();

 private:
  struct RunningRequest {
    std::unique_ptr<PendingRequest> request;
    bool is_rejected = false;  // then predict still reads it, but its reply is gone
  };
  using Rejections = std::vector<RejectedRequest>;

  bool next_batch();
  void answer_batch(const Predict& predict);
  Result<Tensors> call(const Predict& predict, const std::vector<const Tensors*>& parts,
                       int64_t rows);
  bool is_wanted(size_t at) const;
  std::vector<RunningRequest> take_running();
  Clock::time_point next_deadline() const;
  Rejections take_lapsed(Clock::time_point now);
  void reject(Rejections rejections);

  const Limits limits_;
  const Outcomes outcomes_;
  mutable std::mutex mutex_;
  BatchQueue queue_;                       // up to queue_max
  uint64_t queued_bytes_ = 0;              // of its tensors
  std::vector<RunningRequest> running_;    // in predict; the thread of run() alone resizes it
  std::atomic<Clock::rep> call_began_{0};  // 0: predict is not running
  std::condition_variable predict_wake_, timer_wake_;
  // When these threads wake by themselves; min() while they do not wait.
  Clock::time_point predict_wakes_at_ = Clock::time_point::min();
  Clock::time_point timer_wakes_at_ = Clock::time_point::min();
  bool is_woken_ = false, is_closed_ = false;
};

}  // namespace flow
