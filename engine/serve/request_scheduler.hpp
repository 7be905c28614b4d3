// Inference requests from their admission to their outcome: the queue, the batches at replicas, and
// the deadlines.
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/serve/batch_queue.hpp"
#include "engine/serve/call_times.hpp"
#include "flow/result.hpp"

namespace flow {

/// What runs `predict`: one batch at a time.
class Replica {
 public:
  virtual ~Replica() = default;
  /// Starts the batch, whose parts are to be joined in this order; its outcome comes back by
  /// RequestScheduler::finish(), later. The parts are valid during the call; those after the last
  /// of `requests` fill the batch.
  virtual void start(uint64_t batch, const std::vector<const Tensors*>& parts,
                     const std::vector<BatchedRequest>& requests) = 0;
};

/// Not thread-safe. The caller gives the time, calls run_due() when next_event() has come, and owns
/// the replicas.
class RequestScheduler {
 public:
  using Clock = PendingRequest::Clock;

  struct Limits {
    int64_t rows_max = 1;          // of a batch of several requests
    Clock::duration batch_wait{};  // for more requests
    size_t queue_max = 1024;
    uint64_t bytes_max = 256u << 20;  // of the tensors in the queue; one request may have more
    Clock::duration call_max{};       // a longer call of predict is overdue
    bool is_idempotent = true;        // a request may run again after the death of its replica
    bool is_padded = false;           // zeros fill a batch up to rows_max, if it has rows
  };
  /// They may call push() only: an answer can bring the next request of its connection.
  struct Outcomes {
    /// It may move from both.
    std::function<void(PendingRequest&, Result<Tensors>&)> finished;
    /// The request gets no result: status 499 if its client has left, 502 if its replica died, 503
    /// if the service ends or its replica was stopped, 504 if its deadline has passed.
    std::function<void(PendingRequest&, int status)> rejected;
    /// After each call of predict.
    std::function<void(int64_t rows, Clock::duration duration)> called;
    /// A request gets its first batch, so long after its arrival.
    std::function<void(Clock::duration wait)> begun = [](Clock::duration) {};
    /// Before a batch of so many rows with this request is given to the replica. It may be empty.
    std::function<void(PendingRequest&, const Replica&, int64_t rows)> started{};
  };
  struct ReplicaState {
    uint64_t batches = 0;  // that it has answered
    bool is_busy = false, is_leaving = false;
  };
  /// `too_late`: as long as calls of predict take at present, the requests before it would take all
  /// of its time.
  enum class Admission : uint8_t { admitted, full, too_many_bytes, too_late, closed };

  /// Runs of a request whose replicas die, the last one alone: a request may be what kills them.
  static constexpr int kRunsMax = 3;

  RequestScheduler(const Limits& limits, Outcomes outcomes);
  ~RequestScheduler();
  /// For requests and batches from now on.
  void set_limits(const Limits& limits);

  /// Takes the request if it is admitted.
  Admission push(std::unique_ptr<PendingRequest>& request, Clock::time_point now);
  /// Takes a request that another scheduler has admitted.
  void adopt(std::unique_ptr<PendingRequest> request, Clock::time_point now);
  /// Removes all requests that wait.
  BatchQueue::Requests take_queue();

  void add(Replica& replica, Clock::time_point now);
  /// The replica is gone: the requests of its batch run again, in the order of their arrival.
  void remove(Replica& replica, Clock::time_point now);
  /// From now on it gets batches only if all replicas are leaving; with `is_replaced` it gets none.
  void set_leaving(Replica& replica, Clock::time_point now, bool is_replaced = false);
  /// The replica is stopped although it runs a batch. A request of it that may run again, and whose
  /// deadline leaves as much time as the call has taken, waits for another replica; others are
  /// rejected. The replica is busy until it answers the batch or is removed.
  struct Stopped {
    size_t waiting = 0, rejected = 0;
  };
  Stopped stop(Replica& replica, Clock::time_point now);
  /// The outcome of the replica's batch. False if it does not run this one.
  bool finish(Replica& replica, uint64_t batch, Result<Tensors> outputs, Clock::time_point now,
              ResponseParameters parameters = {});
  /// While it is paused no batch is started.
  void set_paused(bool is_paused, Clock::time_point now);

  /// Rejects the requests whose deadline has passed or whose client has left, and starts batches
  /// that are due.
  void run_due(Clock::time_point now);
  /// time_point::max() if there is none.
  Clock::time_point next_event() const;
  /// Rejects all requests, also those at replicas, and those that come. Returns how many there
  /// were.
  size_t close();

  bool is_closed() const { return is_closed_; }
  bool is_full() const { return queue_.size() >= limits_.queue_max; }
  size_t queued() const { return queue_.size(); }
  /// Of the requests that wait for their first batch.
  RequestWaits waits(Clock::time_point now) const { return queue_.waits(now); }
  /// Requests at replicas for which a client waits.
  size_t running() const;
  /// Whether a replica is neither gone nor leaving.
  bool has_staying() const;
  /// Whether the call of predict of every replica is overdue; false without replicas.
  bool is_overdue(Clock::time_point now) const;
  ReplicaState state(const Replica& replica) const;

 private:
  struct Slot;
  using Rejections = std::vector<std::pair<std::unique_ptr<PendingRequest>, int>>;

  Slot& slot_of(const Replica& replica) const;
  bool may_start(const Slot& slot, bool has_others) const;
  Slot* idle_slot() const;
  bool is_too_late(const PendingRequest& request, Clock::time_point now) const;
  void start_batches(Clock::time_point now, Rejections& rejections);
  void start(Slot& slot, BatchQueue::Requests requests, Clock::time_point now);
  void put_back(std::unique_ptr<PendingRequest> request);
  void run_each_alone(BatchQueue::Requests& requests);
  void report_whole(PendingRequest* request, Result<Tensors>& outputs) const;
  void report_parts(BatchQueue::Requests& requests, std::vector<Tensors>& parts) const;
  void reject_lapsed(Clock::time_point now, Rejections& rejections);
  void reject(Rejections rejections);

  Limits limits_;
  const Outcomes outcomes_;
  BatchQueue queue_;           // up to queue_max, and what is put back or adopted
  uint64_t queued_bytes_ = 0;  // of its tensors
  CallTimes call_times_;
  std::vector<std::unique_ptr<Slot>> slots_;  // of the replicas, which the caller bounds
  uint64_t last_batch_ = 0;
  bool is_paused_ = false, is_closed_ = false;
};

}  // namespace flow
