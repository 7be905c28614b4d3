#include "engine/serve/service_metrics.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <numeric>

#include "engine/base/clock.hpp"
#include "flow/result.hpp"
#include "flow/value.hpp"

namespace flow {

namespace {

struct DurationLimit {
  int64_t us;
  const char* seconds;
};
constexpr DurationLimit kDurationLimits[] = {
    {500, "0.0005"},   {1'000, "0.001"},   {2'500, "0.0025"},  {5'000, "0.005"},
    {10'000, "0.01"},  {25'000, "0.025"},  {50'000, "0.05"},   {100'000, "0.1"},
    {250'000, "0.25"}, {500'000, "0.5"},   {1'000'000, "1"},   {2'500'000, "2.5"},
    {5'000'000, "5"},  {10'000'000, "10"}, {30'000'000, "30"}, {60'000'000, "60"},
};

std::string escaped_label(std::string_view text) {
  std::string escaped;
  for (char c : text) {
    if (c == '\n') {
      escaped += "\\n";
      continue;
    }
    if (c == '\\' || c == '"') escaped += '\\';
    escaped += c;
  }
  return escaped;
}

constexpr int kSuccess = 200;

uint64_t us_of(std::chrono::steady_clock::duration duration) {
  auto us = std::chrono::duration_cast<std::chrono::microseconds>(duration).count();
  return static_cast<uint64_t>(std::max<int64_t>(us, 0));
}

}  // namespace

void ServiceMetrics::Durations::add(uint64_t duration_us) {
  static_assert(std::size(kDurationLimits) + 1 == kBuckets);
  const auto* limit = std::find_if(
      std::begin(kDurationLimits), std::end(kDurationLimits),
      [duration_us](const auto& each) { return duration_us <= static_cast<uint64_t>(each.us); });
  counts[static_cast<size_t>(limit - std::begin(kDurationLimits))]++;
  us += duration_us;
}

void ServiceMetrics::Durations::add(const Durations& other) {
  std::ranges::transform(counts, other.counts, counts.begin(), std::plus<>());
  us += other.us;
}

uint64_t ServiceMetrics::Durations::count() const {
  return std::accumulate(counts.begin(), counts.end(), uint64_t{0});
}

void ServiceMetrics::count_request(int status, std::chrono::steady_clock::duration duration) {
  FLOW_CHECK(status >= kStatusMin && status <= kStatusMax);
  uint64_t us = us_of(duration);
  requests_[static_cast<size_t>(status - kStatusMin)]++;
  durations_.add(us);
  (status == kSuccess ? success_us_ : failure_us_) += us;
  if (status == kSuccess) last_success_ms_ = static_cast<uint64_t>(now_ms());
}

void ServiceMetrics::count_batch(int64_t rows, std::chrono::steady_clock::duration duration) {
  predict_us_ += us_of(duration);
  batches_++;
  rows_ += static_cast<uint64_t>(rows);
}

void ServiceMetrics::count_first_byte(std::chrono::steady_clock::duration duration) {
  first_bytes_.add(us_of(duration));
}

void ServiceMetrics::count_events(std::chrono::steady_clock::duration between) {
  between_events_.add(us_of(between));
}

void ServiceMetrics::add(const ServiceMetrics& other) {
  std::ranges::transform(requests_, other.requests_, requests_.begin(), std::plus<>());
  durations_.add(other.durations_);
  first_bytes_.add(other.first_bytes_);
  between_events_.add(other.between_events_);
  success_us_ += other.success_us_;
  failure_us_ += other.failure_us_;
  last_success_ms_ = std::max(last_success_ms_, other.last_success_ms_);
  batches_ += other.batches_;
  rows_ += other.rows_;
  predict_us_ += other.predict_us_;
}

std::vector<ServiceMetrics::DurationBucket> ServiceMetrics::durations() const {
  std::vector<DurationBucket> buckets;
  for (size_t i = 0; i < kBuckets; i++)
    buckets.push_back({i + 1 < kBuckets ? kDurationLimits[i].us : 0, durations_.counts[i]});
  return buckets;
}

std::string ServiceMetrics::text(const std::vector<Series>& all) {
  std::string out;
  auto describe = [&](const char* name, const char* type, const char* help) {
    fmt::format_to(std::back_inserter(out),
                   "# HELP flow_service_{} {}\n# TYPE flow_service_{} {}\n", name, help, name,
                   type);
  };
  auto sample = [&](const Series& of, const char* name, const std::string& labels, auto value) {
    fmt::format_to(std::back_inserter(out), "flow_service_{}{{model=\"{}\",version=\"{}\"{}}} {}\n",
                   name, escaped_label(of.model), escaped_label(of.version), labels, value);
  };
  auto single = [&](const char* name, const char* type, const char* help, const auto& value_of) {
    describe(name, type, help);
    for (const Series& each : all) sample(each, name, "", uint64_t{value_of(each)});
  };

  describe("requests_total", "counter", "Answered inference requests by HTTP status.");
  for (const Series& each : all)
    for (int status = kStatusMin; status <= kStatusMax; status++) {
      uint64_t count = each.metrics->requests_[static_cast<size_t>(status - kStatusMin)];
      // The series of successes exists from the start, so that its rate has a first value.
      if (count > 0 || status == kSuccess)
        sample(each, "requests_total", fmt::format(",code=\"{}\"", status), count);
    }
  // `is_always`: also of a version that has counted none.
  auto histogram = [&](const std::string& name, Durations ServiceMetrics::*durations,
                       bool is_always, const char* help) {
    auto has_series = [&](const Series& each) {
      return is_always || (each.metrics->*durations).count() > 0;
    };
    if (std::ranges::none_of(all, has_series)) return;
    describe(name.c_str(), "histogram", help);
    for (const Series& each : all) {
      if (!has_series(each)) continue;
      const Durations& of = each.metrics->*durations;
      uint64_t cumulative = 0;
      for (size_t i = 0; i < kBuckets; i++) {
        cumulative += of.counts[i];
        const char* limit = i + 1 < kBuckets ? kDurationLimits[i].seconds : "+Inf";
        sample(each, (name + "_bucket").c_str(), fmt::format(",le=\"{}\"", limit), cumulative);
      }
      sample(each, (name + "_sum").c_str(), "", static_cast<double>(of.us) / 1e6);
      sample(each, (name + "_count").c_str(), "", cumulative);
    }
  };
  histogram("request_duration_seconds", &ServiceMetrics::durations_, true,
            "Time from the arrival of an inference request to its response.");
  histogram("first_byte_seconds", &ServiceMetrics::first_bytes_, false,
            "Time from the arrival of a request to the first byte of the response's body.");
  histogram("event_seconds", &ServiceMetrics::between_events_, false,
            "Mean time between the events of a streamed response.");
  single("batches_total", "counter", "Calls of predict.",
         [](const Series& each) { return each.metrics->batches_; });
  single("rows_total", "counter", "Rows that were passed to predict.",
         [](const Series& each) { return each.metrics->rows_; });
  single("queue_length", "gauge", "Requests that wait for predict.",
         [](const Series& each) { return each.gauges.queued; });
  single("replicas", "gauge", "Replicas that are connected.",
         [](const Series& each) { return each.gauges.replicas; });
  single("ready", "gauge", "Whether the version is ready.",
         [](const Series& each) { return each.gauges.is_ready ? 1u : 0u; });
  return out;
}

std::string ServiceMetrics::statistics(std::string_view model, std::string_view version) const {
  uint64_t successes = requests_[kSuccess - kStatusMin];
  uint64_t answered = std::accumulate(requests_.begin(), requests_.end(), uint64_t{0});
  auto times = [](uint64_t count, uint64_t us) {
    return fmt::format(R"({{"count":{},"ns":{}}})", count, us * 1000);
  };
  // What is not measured was measured 0 times: clients read these fields.
  std::string unmeasured = times(0, 0);
  return fmt::format(
      R"({{"model_stats":[{{"name":{},"version":"{}","last_inference":{},"inference_count":{},)"
      R"("execution_count":{},"inference_stats":{{"success":{},"fail":{},"queue":{},)"
      R"("compute_input":{},"compute_infer":{},"compute_output":{},"cache_hit":{},)"
      R"("cache_miss":{}}},"batch_stats":[]}}]}})",
      to_json(Value(std::string(model))), version, last_success_ms_, rows_, batches_,
      times(successes, success_us_), times(answered - successes, failure_us_), unmeasured,
      unmeasured, times(batches_, predict_us_), unmeasured, unmeasured, unmeasured);
}

}  // namespace flow
