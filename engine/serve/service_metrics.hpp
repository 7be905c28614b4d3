// What a service counts, and how Prometheus reads it.
#pragma once
#include <array>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace flow {

/// Requests are those for inference. Not thread-safe.
class ServiceMetrics {
 public:
  struct Gauges {
    size_t queued = 0, replicas = 0;
    bool is_ready = false;
  };
  /// One version of a model, for text().
  struct Series {
    std::string model, version;
    const ServiceMetrics* metrics = nullptr;
    Gauges gauges;
  };

  /// Counts an answered request: its status from 100 to 599, and the time from its arrival.
  void count_request(int status, std::chrono::steady_clock::duration duration);
  /// Counts a call of predict.
  void count_batch(int64_t rows, std::chrono::steady_clock::duration duration);
  /// Counts a response whose body came in parts: the time from the arrival of its request to its
  /// first byte.
  void count_first_byte(std::chrono::steady_clock::duration duration);
  /// Counts a stream of at least two events: the mean time between them.
  void count_events(std::chrono::steady_clock::duration between);
  void add(const ServiceMetrics& other);
  struct DurationBucket {
    int64_t up_to_us = 0;  // and longer than that of the bucket before; 0: the last, without limit
    uint64_t requests = 0;
    bool operator==(const DurationBucket&) const = default;
  };
  /// All requests that were counted, by their duration: the histogram of text(), not cumulative.
  std::vector<DurationBucket> durations() const;
  /// The text format 0.0.4 of Prometheus.
  static std::string text(const std::vector<Series>& all);

  /// The statistics extension of the protocol, for the one model. Requests with status 200 are
  /// successes, all others failures.
  std::string statistics(std::string_view model, std::string_view version) const;

  static constexpr std::string_view kContentType = "text/plain; version=0.0.4; charset=utf-8";

 private:
  static constexpr int kStatusMin = 100, kStatusMax = 599;
  static constexpr size_t kBuckets = 17;  // the last one has no limit

  struct Durations {
    std::array<uint64_t, kBuckets> counts{};  // not cumulative
    uint64_t us = 0;                          // their sum

    void add(uint64_t duration_us);
    void add(const Durations& other);
    uint64_t count() const;
  };

  std::array<uint64_t, kStatusMax - kStatusMin + 1> requests_{};  // by status
  Durations durations_, first_bytes_, between_events_;
  uint64_t success_us_ = 0, failure_us_ = 0, last_success_ms_ = 0;  // the last since the Unix epoch
  uint64_t batches_ = 0, rows_ = 0, predict_us_ = 0;
};

}  // namespace flow
