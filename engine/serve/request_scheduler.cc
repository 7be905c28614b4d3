#include "engine/serve/request_scheduler.hpp"

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>

#include "engine/serve/batch.hpp"

namespace flow {

namespace {

constexpr int kClientLeft = 499;  // as nginx has it
constexpr int kReplicaDied = 502;
constexpr int kStopping = 503;
constexpr int kTooLate = 504;
constexpr int kMarginShare = 4;  // of the time that others take before a request

/// Whether the inputs have rows, and so many more of them are not too large.
bool may_be_padded(const std::vector<const Tensors*>& parts, int64_t rows) {
  const Tensors& first = *parts.front();
  if (batch_signature(first).empty()) return false;
  uint64_t bytes = 0;
  for (const Tensors* part : parts) bytes += bytes_of(*part);
  uint64_t row_bytes = bytes_of(first) / static_cast<uint64_t>(rows_of(first));
  return bytes <= kBatchBytesMax &&
         row_bytes <= (kBatchBytesMax - bytes) / static_cast<uint64_t>(rows);
}

int64_t sum_of(std::span<const int64_t> rows) {
  return std::accumulate(rows.begin(), rows.end(), int64_t{0});
}

void give_parameters(const BatchQueue::Requests& requests, ResponseParameters& parameters) {
  for (size_t i = 0; i < std::min(requests.size(), parameters.size()); i++)
    if (requests[i] != nullptr) requests[i]->request.response_parameters = std::move(parameters[i]);
}

}  // namespace

struct RequestScheduler::Slot {
  struct Batch {
    uint64_t number = 0;
    BatchQueue::Requests requests = {};  // null: it was rejected, and predict still reads it
    std::vector<int64_t> rows = {};      // of the requests, and then of the padding
    Clock::time_point began, deadline;   // the earliest of its requests

    int64_t request_rows() const { return sum_of(std::span(rows).first(requests.size())); }
  };

  Replica* replica;
  Clock::time_point idle_since;
  std::optional<Batch> batch = {};
  uint64_t batches = 0;
  bool is_leaving = false, is_replaced = false;
};

RequestScheduler::RequestScheduler(const Limits& limits, Outcomes outcomes)
    : limits_(limits), outcomes_(std::move(outcomes)), queue_(limits.rows_max, limits.batch_wait) {}

RequestScheduler::~RequestScheduler() = default;

void RequestScheduler::set_limits(const Limits& limits) {
  limits_ = limits;
  queue_.set_limits(limits.rows_max, limits.batch_wait);
}

// ---- Requests

RequestScheduler::Admission RequestScheduler::push(std::unique_ptr<PendingRequest>& request,
                                                   Clock::time_point now) {
  if (is_closed_) return Admission::closed;
  if (is_full()) return Admission::full;
  uint64_t bytes = bytes_of(request->request);
  if (queue_.size() > 0 && queued_bytes_ + bytes > limits_.bytes_max)
    return Admission::too_many_bytes;
  if (is_too_late(*request, now)) return Admission::too_late;
  queue_.push(std::move(request));
  queued_bytes_ += bytes;
  Rejections rejections;
  start_batches(now, rejections);
  reject(std::move(rejections));
  return Admission::admitted;
}

/// Never if no other waits: then at least one request runs, and shows whether calls became shorter.
/// The time of the batches before it gets a margin: with an estimate that is too low, a long queue
/// would have all its requests answered shortly after their deadlines.
bool RequestScheduler::is_too_late(const PendingRequest& request, Clock::time_point now) const {
  auto call = call_times_.typical();
  if (queue_.size() == 0 || is_paused_ || !call) return false;
  const bool has_others = has_staying();
  int64_t replicas = 0;
  Clock::time_point next = Clock::time_point::max();  // when one of them is idle
  for (const auto& slot : slots_) {
    if (slot->is_replaced || (slot->is_leaving && has_others)) continue;
    replicas++;
    next = std::min(next, slot->batch ? std::max(now, slot->batch->began + *call) : now);
  }
  if (replicas == 0) return false;
  int64_t rounds = (queue_.calls_with(request) - 1) / replicas;
  Clock::duration before = *call * rounds;
  return next + before + before / kMarginShare + *call > request.deadline;
}

void RequestScheduler::adopt(std::unique_ptr<PendingRequest> request, Clock::time_point now) {
  queued_bytes_ += bytes_of(request->request);
  queue_.push(std::move(request));
  run_due(now);
}

BatchQueue::Requests RequestScheduler::take_queue() {
  queued_bytes_ = 0;
  return queue_.take_all();
}

void RequestScheduler::put_back(std::unique_ptr<PendingRequest> request) {
  queued_bytes_ += bytes_of(request->request);
  queue_.put_back(std::move(request));
}

void RequestScheduler::reject(Rejections rejections) {
  for (auto& [request, status] : rejections) outcomes_.rejected(*request, status);
}

// ---- Replicas

RequestScheduler::Slot& RequestScheduler::slot_of(const Replica& replica) const {
  auto found = std::ranges::find(slots_, &replica, [](const auto& slot) { return slot->replica; });
  FLOW_CHECK(found != slots_.end());
  return **found;
}

void RequestScheduler::add(Replica& replica, Clock::time_point now) {
  slots_.push_back(std::make_unique<Slot>(Slot{&replica, now}));
  run_due(now);
}

void RequestScheduler::remove(Replica& replica, Clock::time_point now) {
  auto batch = std::move(slot_of(replica).batch);
  std::erase_if(slots_, [&](const auto& slot) { return slot->replica == &replica; });
  Rejections rejections;
  if (batch) {
    for (auto& request : batch->requests) {
      if (request == nullptr) continue;
      request->deaths++;
      request->is_alone = request->is_alone || request->deaths == kRunsMax - 1;
      if (request->is_abandoned()) {
        rejections.emplace_back(std::move(request), kClientLeft);
      } else if (!limits_.is_idempotent || request->deaths >= kRunsMax) {
        rejections.emplace_back(std::move(request), kReplicaDied);
      } else {
        put_back(std::move(request));
      }
    }
  }
  start_batches(now, rejections);
  reject(std::move(rejections));
}

void RequestScheduler::set_leaving(Replica& replica, Clock::time_point now, bool is_replaced) {
  slot_of(replica).is_leaving = true;
  slot_of(replica).is_replaced = is_replaced;
  run_due(now);
}

RequestScheduler::Stopped RequestScheduler::stop(Replica& replica, Clock::time_point now) {
  Slot& slot = slot_of(replica);
  Stopped stopped;
  if (!slot.batch) return stopped;
  Clock::duration taken = now - slot.batch->began;
  Rejections rejections;
  for (auto& request : slot.batch->requests) {
    if (request == nullptr) continue;
    request->was_stopped = true;
    if (request->is_abandoned()) {
      rejections.emplace_back(std::move(request), kClientLeft);
    } else if (!limits_.is_idempotent || request->deadline - now < taken) {
      stopped.rejected++;
      rejections.emplace_back(std::move(request), kStopping);
    } else {
      stopped.waiting++;
      put_back(std::move(request));
    }
  }
  start_batches(now, rejections);
  reject(std::move(rejections));
  return stopped;
}

RequestScheduler::ReplicaState RequestScheduler::state(const Replica& replica) const {
  const Slot& slot = slot_of(replica);
  return {slot.batches, slot.batch.has_value(), slot.is_leaving};
}

bool RequestScheduler::has_staying() const {
  return std::ranges::any_of(slots_, [](const auto& slot) { return !slot->is_leaving; });
}

size_t RequestScheduler::running() const {
  size_t count = 0;
  for (const auto& slot : slots_)
    if (slot->batch)
      count +=
          static_cast<size_t>(std::ranges::count_if(slot->batch->requests, [](const auto& request) {
            return request != nullptr && !request->is_abandoned();
          }));
  return count;
}

bool RequestScheduler::is_overdue(Clock::time_point now) const {
  return !slots_.empty() && std::ranges::all_of(slots_, [&](const auto& slot) {
    return slot->batch && now - slot->batch->began > limits_.call_max;
  });
}

// ---- Batches

bool RequestScheduler::may_start(const Slot& slot, bool has_others) const {
  return !slot.batch && !slot.is_replaced && !(slot.is_leaving && has_others);
}

/// The one that was busy last: what it needs is most likely still in its caches. Null if none is
/// idle.
RequestScheduler::Slot* RequestScheduler::idle_slot() const {
  bool has_others = has_staying();
  Slot* idle = nullptr;
  for (const auto& slot : slots_)
    if (may_start(*slot, has_others) && (idle == nullptr || slot->idle_since > idle->idle_since))
      idle = slot.get();
  return idle;
}

void RequestScheduler::start_batches(Clock::time_point now, Rejections& rejections) {
  while (!is_paused_ && queue_.size() > 0) {
    Slot* slot = idle_slot();
    if (slot == nullptr) return;
    BatchQueue::Requests taken = queue_.take_batch(now);
    if (taken.empty()) return;
    BatchQueue::Requests wanted;
    for (auto& request : taken) {
      queued_bytes_ -= bytes_of(request->request);
      if (request->deadline <= now) {
        rejections.emplace_back(std::move(request), kTooLate);
      } else if (request->is_abandoned()) {
        rejections.emplace_back(std::move(request), kClientLeft);
      } else {
        wanted.push_back(std::move(request));
      }
    }
    if (!wanted.empty()) start(*slot, std::move(wanted), now);
  }
}

void RequestScheduler::start(Slot& slot, BatchQueue::Requests requests, Clock::time_point now) {
  Slot::Batch batch{.number = ++last_batch_, .began = now, .deadline = Clock::time_point::max()};
  std::vector<const Tensors*> parts;
  for (const auto& request : requests) {
    if (!std::exchange(request->has_begun, true)) outcomes_.begun(now - request->arrived);
    parts.push_back(&request->request.inputs);
    batch.rows.push_back(rows_of(request->request.inputs));
    batch.deadline = std::min(batch.deadline, request->deadline);
  }
  const int64_t rows = sum_of(batch.rows);
  std::vector<BatchedRequest> described;
  for (size_t i = 0; i < requests.size(); i++) {
    PendingRequest& request = *requests[i];
    described.push_back(
        {request.request.id, batch.rows[i], request.traceparent, request.request.parameters});
    if (outcomes_.started) outcomes_.started(request, *slot.replica, rows);
  }
  Tensors padding;
  int64_t missing = limits_.rows_max - rows;
  if (limits_.is_padded && missing > 0 && may_be_padded(parts, missing)) {
    padding = zero_rows(*parts.front(), missing);
    parts.push_back(&padding);
    batch.rows.push_back(missing);
  }
  batch.requests = std::move(requests);
  slot.batch = std::move(batch);
  slot.replica->start(last_batch_, parts, described);
}

bool RequestScheduler::finish(Replica& replica, uint64_t number, Result<Tensors> outputs,
                              Clock::time_point now, ResponseParameters parameters) {
  Slot& slot = slot_of(replica);
  if (!slot.batch || slot.batch->number != number) return false;
  Slot::Batch batch = std::move(*slot.batch);
  slot.batch.reset();
  slot.idle_since = now;
  slot.batches++;
  call_times_.add(now - batch.began);
  outcomes_.called(batch.request_rows(), now - batch.began);
  std::vector<Tensors> parts;  // of the outputs, by request; none if one request has them all
  if (outputs.ok() && batch.rows.size() > 1) {
    auto split = split_rows(*outputs, batch.rows);
    if (split.ok())
      parts = std::move(*split);
    else
      outputs = split.error();
  }
  const bool runs_again = !outputs.ok() && batch.requests.size() > 1;
  if (runs_again) run_each_alone(batch.requests);
  give_parameters(batch.requests, parameters);
  // The replica gets its next batch before the requests get their outputs: encoding takes time.
  Rejections rejections;
  start_batches(now, rejections);
  reject(std::move(rejections));
  if (runs_again) return true;
  if (parts.empty())
    report_whole(batch.requests.front().get(), outputs);
  else
    report_parts(batch.requests, parts);
  return true;
}

/// So that one bad request does not fail the others of its batch.
void RequestScheduler::run_each_alone(BatchQueue::Requests& requests) {
  for (auto& request : requests) {
    if (request == nullptr) continue;
    request->is_alone = true;
    put_back(std::move(request));
  }
}

void RequestScheduler::report_whole(PendingRequest* request, Result<Tensors>& outputs) const {
  if (request == nullptr) return;
  request->request.are_outputs_own = true;
  outcomes_.finished(*request, outputs);
}

/// The parts after the last request are those of the padding.
void RequestScheduler::report_parts(BatchQueue::Requests& requests,
                                    std::vector<Tensors>& parts) const {
  for (size_t i = 0; i < requests.size(); i++) {
    if (requests[i] == nullptr) continue;
    Result<Tensors> outputs = std::move(parts[i]);
    outcomes_.finished(*requests[i], outputs);
  }
}

void RequestScheduler::set_paused(bool is_paused, Clock::time_point now) {
  if (std::exchange(is_paused_, is_paused) && !is_paused) run_due(now);
}

// ---- Time

void RequestScheduler::run_due(Clock::time_point now) {
  Rejections rejections;
  reject_lapsed(now, rejections);
  start_batches(now, rejections);
  reject(std::move(rejections));
}

void RequestScheduler::reject_lapsed(Clock::time_point now, Rejections& rejections) {
  for (auto& request : queue_.take_lapsed(now)) {
    queued_bytes_ -= bytes_of(request->request);
    int status = request->deadline <= now ? kTooLate : kClientLeft;
    rejections.emplace_back(std::move(request), status);
  }
  for (auto& slot : slots_) {
    if (!slot->batch || slot->batch->deadline > now) continue;
    slot->batch->deadline = Clock::time_point::max();
    for (auto& request : slot->batch->requests) {
      if (request == nullptr) continue;
      if (request->deadline <= now) {
        rejections.emplace_back(std::move(request), kTooLate);
      } else {
        slot->batch->deadline = std::min(slot->batch->deadline, request->deadline);
      }
    }
  }
}

RequestScheduler::Clock::time_point RequestScheduler::next_event() const {
  Clock::time_point next = Clock::time_point::max();
  for (const auto& slot : slots_)
    if (slot->batch) next = std::min(next, slot->batch->deadline);
  if (queue_.size() == 0) return next;
  next = std::min({next, queue_.next_deadline(), queue_.next_look()});
  bool can_start = !is_paused_ && idle_slot() != nullptr;
  return can_start ? std::min(next, queue_.next_event()) : next;
}

size_t RequestScheduler::close() {
  is_closed_ = true;
  Rejections left;
  for (auto& request : take_queue()) left.emplace_back(std::move(request), kStopping);
  for (auto& slot : slots_) {
    if (!slot->batch) continue;
    for (auto& request : slot->batch->requests) {
      if (request == nullptr) continue;
      request->was_stopped = true;
      left.emplace_back(std::move(request), kStopping);
    }
  }
  size_t count = left.size();
  reject(std::move(left));
  return count;
}

}  // namespace flow
