#include "engine/serve/latency_histogram.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

namespace flow {

using std::chrono::microseconds;

size_t LatencyHistogram::bucket_of(int64_t us) {
  if (us < static_cast<int64_t>(kFine)) return static_cast<size_t>(std::max<int64_t>(us, 0));
  auto value = static_cast<uint64_t>(us);
  int power = std::bit_width(value) - 1;
  if (power >= kPowersMax) return kBuckets - 1;
  size_t sub = (value >> (power - kSubPowers)) & (kSub - 1);
  return kFine + static_cast<size_t>(power - kFinePowers) * kSub + sub;
}

int64_t LatencyHistogram::middle_of(size_t bucket) {
  if (bucket < kFine) return static_cast<int64_t>(bucket);
  size_t power = kFinePowers + (bucket - kFine) / kSub, sub = (bucket - kFine) % kSub;
  uint64_t width = uint64_t{1} << (power - kSubPowers);
  return static_cast<int64_t>((kSub + sub) * width + width / 2);
}

void LatencyHistogram::add(const LatencyHistogram& other) {
  for (size_t i = 0; i < kBuckets; i++) counts_[i] += other.counts_[i];
}

uint64_t LatencyHistogram::count() const {
  return std::accumulate(counts_.begin(), counts_.end(), uint64_t{0});
}

microseconds LatencyHistogram::percentile(double share) const {
  uint64_t all = count();
  if (all == 0) return {};
  auto rank = std::max<uint64_t>(
      1, static_cast<uint64_t>(std::ceil(share * static_cast<double>(all) - 1e-9)));
  uint64_t seen = 0;
  size_t bucket = 0;
  while ((seen += counts_[bucket]) < rank) bucket++;
  return microseconds(middle_of(bucket));
}

namespace {

constexpr int kBusy = 429, kUnavailable = 503;

int64_t second_of(RequestCounters::Clock::time_point now) {
  return std::chrono::duration_cast<std::chrono::seconds>(now.time_since_epoch()).count();
}

}  // namespace

void RequestCounters::count(int status, Clock::duration duration, Clock::time_point now) {
  auto us = std::chrono::duration_cast<microseconds>(duration);
  bool is_error = status >= 500;
  requests_++;
  step_requests_++;
  errors_ += is_error ? 1 : 0;
  step_errors_ += is_error ? 1 : 0;
  step_.add(us);
  second_at(now).durations.add(us);
}

void RequestCounters::count_refused(int status, Clock::time_point now) {
  if (status != kBusy && status != kUnavailable) return;
  refused_++;
  step_refused_++;
  second_at(now).rejected += status == kBusy ? 1 : 0;
}

void RequestCounters::count_wait(Clock::duration wait, Clock::time_point now) {
  second_at(now).waits.add(wait);
}

RequestCounters::Second& RequestCounters::second_at(Clock::time_point now) {
  int64_t number = second_of(now);
  Second& second = seconds_[static_cast<size_t>(number % kSeconds)];
  if (second.number != number) second = {.number = number};
  return second;
}

void RequestCounters::restart_step() {
  step_requests_ = step_errors_ = step_refused_ = 0;
  step_ = {};
}

void RequestCounters::restart_load() {
  for (Second& second : seconds_) {
    second.waits = {};
    second.rejected = 0;
  }
}

RequestCounters::Figures RequestCounters::figures(Clock::time_point now) const {
  Figures figures{.requests = requests_,
                  .errors = errors_,
                  .refused = refused_,
                  .step_requests = step_requests_,
                  .step_errors = step_errors_,
                  .step_refused = step_refused_,
                  .step_p50 = step_.percentile(0.5),
                  .step_p99 = step_.percentile(0.99)};
  LatencyHistogram recent;
  int64_t number = second_of(now);
  for (const Second& second : seconds_) {
    if (second.number <= number - kSeconds || second.number > number) continue;
    recent.add(second.durations);
    figures.waits.add(second.waits);
    figures.rejected += second.rejected;
  }
  // The whole seconds, and the begin of this one.
  Clock::time_point first = Clock::time_point(std::chrono::seconds(number - kSeconds + 1));
  std::chrono::duration<double> span = now - std::max(first, began_);
  figures.requests_per_second = static_cast<double>(recent.count()) / std::max(span.count(), 1.0);
  figures.p50 = recent.percentile(0.5);
  figures.p99 = recent.percentile(0.99);
  return figures;
}

}  // namespace flow
