// Requests that wait for predict, in buckets of those that can be one batch. Not thread-safe; the
// caller gives the time.
#pragma once
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/serve/http/request_record.hpp"
#include "engine/serve/infer_responder.hpp"
#include "engine/serve/inference.hpp"
#include "engine/serve/latency_histogram.hpp"

namespace flow {

struct PendingRequest {
  using Clock = std::chrono::steady_clock;

  bool is_abandoned() const { return responder != nullptr && responder->is_abandoned(); }

  InferRequest request;
  std::unique_ptr<InferResponder> responder;
  Clock::time_point arrived, deadline;
  std::string traceparent;                // valid, or ""
  std::shared_ptr<RequestRecord> record;  // null: the request is not recorded
  int deaths = 0;                         // of replicas that ran it
  bool is_alone = false;                  // it must not be joined with others
  bool has_begun = false;                 // a batch had it
  bool was_stopped = false;               // its replica was stopped while it ran it
  // Set by push():
  int64_t rows = 0;  // 0 if the request cannot be joined with others
  uint64_t number = 0;
};

constexpr uint64_t kBatchBytesMax = 128u << 20;  // of the inputs of several requests

/// As many requests wait as are pushed: the caller bounds them, by its connections.
class BatchQueue {
 public:
  using Clock = PendingRequest::Clock;
  using Requests = std::vector<std::unique_ptr<PendingRequest>>;

  /// A batch has at most `rows_max` rows; a single request may have more. It is due when it is full
  /// or its oldest request has waited for `wait`.
  BatchQueue(int64_t rows_max, Clock::duration wait);
  ~BatchQueue();
  /// For all requests that are not taken yet.
  void set_limits(int64_t rows_max, Clock::duration wait);

  /// A request that cannot be joined with others is due at once, as it has nothing to wait for.
  void push(std::unique_ptr<PendingRequest> request);
  /// Puts a request that was taken before at its former place. It is due at once.
  void put_back(std::unique_ptr<PendingRequest> request);
  size_t size() const { return deadlines_.size(); }
  /// As many batches as all requests and this one make at least.
  int64_t calls_with(const PendingRequest& request) const;
  /// Those that wait for their first batch, and the sum of their times since their arrival. It
  /// looks at all.
  RequestWaits waits(Clock::time_point now) const;
  /// Removes all requests, in the order of push().
  Requests take_all();
  /// Removes the requests whose deadline has passed, and those whose client has left. It looks for
  /// the latter every 100 ms at most, because it has to look at all.
  Requests take_lapsed(Clock::time_point now);
  /// Removes the batch that is due and has the oldest request, in the order of arrival; empty if
  /// none is due.
  Requests take_batch(Clock::time_point now);
  /// When the next batch is due or the next deadline passes; time_point::max() if it is empty.
  Clock::time_point next_event() const;
  /// time_point::max() if it is empty.
  Clock::time_point next_deadline() const;
  /// When take_lapsed() looks for clients that have left.
  Clock::time_point next_look() const { return next_look_; }

 private:
  struct Entry;
  struct Bucket;
  // By the time of arrival; requests that arrive together are in the order of push().
  using Age = std::pair<Clock::time_point, uint64_t>;
  using Ages = std::map<Age, Bucket*>;

  void insert(std::unique_ptr<PendingRequest> request, bool is_urgent);
  int64_t places_of(const PendingRequest& request) const;
  void insert_age(Bucket& bucket);
  void erase_age(const Bucket& bucket);
  // Without the bucket's age, which the caller erases before and inserts after that.
  std::unique_ptr<PendingRequest> remove(Bucket& bucket, uint64_t number);
  // Drops the bucket if it is empty.
  void update(Bucket& bucket);

  int64_t rows_max_;
  Clock::duration wait_;
  uint64_t pushed_ = 0;
  int64_t places_ = 0;  // of all requests: a batch has rows_max_
  std::unordered_map<std::string, std::unique_ptr<Bucket>> buckets_;  // none is empty
  Ages filling_, full_;                                               // each bucket is in one
  std::multimap<Clock::time_point, Entry*> deadlines_;                // each request
  Clock::time_point next_look_ = Clock::time_point::min();            // for clients that have left
};

}  // namespace flow
