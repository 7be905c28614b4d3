#include "engine/serve/batch_queue.hpp"

#include <algorithm>
#include <limits>

#include "engine/serve/batch.hpp"

namespace flow {

namespace {

constexpr auto kLookInterval = std::chrono::milliseconds(100);

}  // namespace

struct BatchQueue::Entry {
  std::unique_ptr<PendingRequest> request;
  Bucket* bucket = nullptr;
  bool is_urgent = false;  // it makes its bucket due
  std::multimap<Clock::time_point, Entry*>::iterator deadline;
};

struct BatchQueue::Bucket {
  std::string key;
  int64_t rows_full;  // with this many it is due at once
  int64_t rows = 0;
  size_t urgent = 0;                  // entries
  std::map<uint64_t, Entry> entries;  // by the number of push()

  bool is_full() const { return rows >= rows_full || urgent > 0; }
  Age age() const {
    const auto& [number, oldest] = *entries.begin();
    return {oldest.request->arrived, number};
  }
};

BatchQueue::BatchQueue(int64_t rows_max, Clock::duration wait) : rows_max_(rows_max), wait_(wait) {}

BatchQueue::~BatchQueue() = default;

void BatchQueue::set_limits(int64_t rows_max, Clock::duration wait) {
  rows_max_ = rows_max;
  wait_ = wait;
  places_ = 0;
  for (auto& [key, bucket] : buckets_) {
    for (const auto& [number, entry] : bucket->entries) places_ += places_of(*entry.request);
    bool is_alone = bucket->rows_full == 0;
    if (is_alone) continue;
    erase_age(*bucket);
    bucket->rows_full = rows_max;
    insert_age(*bucket);
  }
}

void BatchQueue::push(std::unique_ptr<PendingRequest> request) {
  // A queue that was empty had no client to look for.
  if (deadlines_.empty()) next_look_ = std::max(next_look_, request->arrived + kLookInterval);
  request->number = pushed_++;
  insert(std::move(request), false);
}

void BatchQueue::put_back(std::unique_ptr<PendingRequest> request) {
  insert(std::move(request), true);
}

void BatchQueue::insert(std::unique_ptr<PendingRequest> request, bool is_urgent) {
  uint64_t number = request->number;
  std::string key = request->is_alone ? "" : batch_signature(request->request.inputs);
  bool is_alone = key.empty();
  request->rows = is_alone ? 0 : rows_of(request->request.inputs);
  if (is_alone) key = "alone " + std::to_string(number);  // a signature begins with a digit
  auto [found, is_new] = buckets_.try_emplace(key);
  if (is_new) {
    found->second = std::make_unique<Bucket>();
    found->second->key = std::move(key);
    found->second->rows_full = is_alone ? 0 : rows_max_;
  }
  Bucket& bucket = *found->second;
  if (!is_new) erase_age(bucket);
  Entry& entry = bucket.entries[number];
  entry.deadline = deadlines_.emplace(request->deadline, &entry);
  entry.bucket = &bucket;
  entry.is_urgent = is_urgent;
  bucket.urgent += is_urgent ? 1 : 0;
  bucket.rows += request->rows;
  places_ += places_of(*request);
  entry.request = std::move(request);
  insert_age(bucket);
}

/// A request that cannot be joined with others takes a batch, and so does one with more rows.
int64_t BatchQueue::places_of(const PendingRequest& request) const {
  return request.rows == 0 ? rows_max_ : std::min(request.rows, rows_max_);
}

int64_t BatchQueue::calls_with(const PendingRequest& request) const {
  bool is_joined = !request.is_alone && !batch_signature(request.request.inputs).empty();
  int64_t places = is_joined ? std::min(rows_of(request.request.inputs), rows_max_) : rows_max_;
  return (places_ + places + rows_max_ - 1) / rows_max_;
}

BatchQueue::Requests BatchQueue::take_all() {
  std::map<uint64_t, std::unique_ptr<PendingRequest>> by_number;
  for (auto& [key, bucket] : buckets_)
    for (auto& [number, entry] : bucket->entries) by_number[number] = std::move(entry.request);
  buckets_.clear();
  filling_.clear();
  full_.clear();
  deadlines_.clear();
  places_ = 0;
  Requests all;
  for (auto& [number, request] : by_number) all.push_back(std::move(request));
  return all;
}

RequestWaits BatchQueue::waits(Clock::time_point now) const {
  RequestWaits waits;
  for (const auto& [deadline, entry] : deadlines_)
    if (!entry->request->has_begun) waits.add(now - entry->request->arrived);
  return waits;
}

BatchQueue::Requests BatchQueue::take_lapsed(Clock::time_point now) {
  std::vector<Entry*> lapsed;
  if (now >= next_look_) {
    next_look_ = now + kLookInterval;
    for (const auto& [deadline, entry] : deadlines_)
      if (deadline <= now || entry->request->is_abandoned()) lapsed.push_back(entry);
  } else {
    for (const auto& [deadline, entry] : deadlines_) {
      if (deadline > now) break;
      lapsed.push_back(entry);
    }
  }
  Requests removed;
  for (Entry* entry : lapsed) {
    Bucket& bucket = *entry->bucket;
    erase_age(bucket);
    removed.push_back(remove(bucket, entry->request->number));
    update(bucket);
  }
  return removed;
}

BatchQueue::Requests BatchQueue::take_batch(Clock::time_point now) {
  Ages::iterator chosen = full_.begin();
  // A bucket waits for more requests as long as its oldest one may.
  bool is_waited = !filling_.empty() && filling_.begin()->first.first + wait_ <= now;
  if (is_waited && (full_.empty() || filling_.begin()->first < full_.begin()->first))
    chosen = filling_.begin();
  else if (full_.empty())
    return {};
  Bucket& bucket = *chosen->second;
  erase_age(bucket);
  Requests batch;
  int64_t rows = 0;
  uint64_t bytes = 0;
  while (!bucket.entries.empty()) {
    const auto& [number, entry] = *bucket.entries.begin();
    rows += entry.request->rows;
    bytes += bytes_of(entry.request->request);
    if (!batch.empty() && (rows > rows_max_ || bytes > kBatchBytesMax)) break;
    batch.push_back(remove(bucket, number));
  }
  update(bucket);
  return batch;
}

BatchQueue::Clock::time_point BatchQueue::next_event() const {
  if (!full_.empty()) return full_.begin()->first.first;
  if (filling_.empty()) return Clock::time_point::max();
  return std::min(filling_.begin()->first.first + wait_, next_deadline());
}

BatchQueue::Clock::time_point BatchQueue::next_deadline() const {
  return deadlines_.empty() ? Clock::time_point::max() : deadlines_.begin()->first;
}

void BatchQueue::insert_age(Bucket& bucket) {
  (bucket.is_full() ? full_ : filling_).emplace(bucket.age(), &bucket);
}

void BatchQueue::erase_age(const Bucket& bucket) {
  (bucket.is_full() ? full_ : filling_).erase(bucket.age());
}

std::unique_ptr<PendingRequest> BatchQueue::remove(Bucket& bucket, uint64_t number) {
  auto entry = bucket.entries.find(number);
  std::unique_ptr<PendingRequest> request = std::move(entry->second.request);
  deadlines_.erase(entry->second.deadline);
  bucket.rows -= request->rows;
  places_ -= places_of(*request);
  bucket.urgent -= entry->second.is_urgent ? 1 : 0;
  bucket.entries.erase(entry);
  return request;
}

void BatchQueue::update(Bucket& bucket) {
  if (bucket.entries.empty()) {
    buckets_.erase(buckets_.find(bucket.key));
  } else {
    insert_age(bucket);
  }
}

}  // namespace flow
