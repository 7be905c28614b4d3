#include "engine/serve/service_metrics.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

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

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr int kSuccess = 200;

}  // namespace

void ServiceMetrics::count_request(int status, std::chrono::steady_clock::duration duration) {
  FLOW_CHECK(status >= kStatusMin && status <= kStatusMax);
  static_assert(std::size(kDurationLimits) + 1 == kBuckets);
  int64_t us = std::chrono::duration_cast<std::chrono::microseconds>(duration).count();
  const auto* limit = std::find_if(std::begin(kDurationLimits), std::end(kDurationLimits),
                                   [us](const DurationLimit& each) { return us <= each.us; });
  requests_[static_cast<size_t>(status - kStatusMin)].fetch_add(1, kRelaxed);
  durations_[static_cast<size_t>(limit - std::begin(kDurationLimits))].fetch_add(1, kRelaxed);
  Counter& total_us = status == kSuccess ? success_us_ : failure_us_;
  total_us.fetch_add(static_cast<uint64_t>(std::max<int64_t>(us, 0)), kRelaxed);
  if (status == kSuccess) last_success_ms_.store(static_cast<uint64_t>(now_ms()), kRelaxed);
}

void ServiceMetrics::count_batch(int64_t rows, std::chrono::steady_clock::duration duration) {
  auto us = std::chrono::duration_cast<std::chrono::microseconds>(duration).count();
  predict_us_.fetch_add(static_cast<uint64_t>(std::max<int64_t>(us, 0)), kRelaxed);
  batches_.fetch_add(1, kRelaxed);
  rows_.fetch_add(static_cast<uint64_t>(rows), kRelaxed);
}

std::string ServiceMetrics::text(std::string_view model, const Gauges& gauges) const {
  std::string out;
  const std::string label = "model=\"" + escaped_label(model) + "\"";
  auto describe = [&out](const char* name, const char* type, const char* help) {
    fmt::format_to(std::back_inserter(out),
                   "# HELP flow_service_{} {}\n# TYPE flow_service_{} {}\n", name, help, name,
                   type);
  };
  auto sample = [&out](const char* name, const std::string& labels, auto value) {
    fmt::format_to(std::back_inserter(out), "flow_service_{}{{{}}} {}\n", name, labels, value);
  };
  auto single = [&](const char* name, const char* type, const char* help, uint64_t value) {
    describe(name, type, help);
    sample(name, label, value);
  };

  describe("requests_total", "counter", "Answered inference requests by HTTP status.");
  for (int status = kStatusMin; status <= kStatusMax; status++) {
    uint64_t count = requests_[static_cast<size_t>(status - kStatusMin)].load(kRelaxed);
    // The series of successes exists from the start, so that its rate has a first value.
    if (count > 0 || status == 200)
      sample("requests_total", fmt::format("{},code=\"{}\"", label, status), count);
  }
  describe("request_duration_seconds", "histogram",
           "Time from the arrival of an inference request to its response.");
  uint64_t cumulative = 0;
  for (size_t i = 0; i < kBuckets; i++) {
    cumulative += durations_[i].load(kRelaxed);
    const char* limit = i + 1 < kBuckets ? kDurationLimits[i].seconds : "+Inf";
    sample("request_duration_seconds_bucket", fmt::format("{},le=\"{}\"", label, limit),
           cumulative);
  }
  sample("request_duration_seconds_sum", label,
         static_cast<double>(success_us_.load(kRelaxed) + failure_us_.load(kRelaxed)) / 1e6);
  sample("request_duration_seconds_count", label, cumulative);
  single("batches_total", "counter", "Calls of predict.", batches_.load(kRelaxed));
  single("rows_total", "counter", "Rows that were passed to predict.", rows_.load(kRelaxed));
  single("queue_length", "gauge", "Requests that wait for predict.", gauges.queued);
  single("ready", "gauge", "Whether the service is ready.", gauges.is_ready ? 1 : 0);
  return out;
}

std::string ServiceMetrics::statistics(std::string_view model, std::string_view version) const {
  uint64_t successes = requests_[kSuccess - kStatusMin].load(kRelaxed), failures = 0;
  for (const Counter& each : requests_) failures += each.load(kRelaxed);
  failures -= std::min(successes, failures);
  auto times = [](uint64_t count, const Counter& us) {
    return fmt::format(R"({{"count":{},"ns":{}}})", count, us.load(kRelaxed) * 1000);
  };
  return fmt::format(
      R"({{"model_stats":[{{"name":{},"version":"{}","last_inference":{},"inference_count":{},)"
      R"("execution_count":{},"inference_stats":{{"success":{},"fail":{},"compute_infer":{}}}}}]}})",
      to_json(Value(std::string(model))), version, last_success_ms_.load(kRelaxed),
      rows_.load(kRelaxed), batches_.load(kRelaxed), times(successes, success_us_),
      times(failures, failure_us_), times(batches_.load(kRelaxed), predict_us_));
}

}  // namespace flow
