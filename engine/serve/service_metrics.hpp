// What a service counts, and how Prometheus reads it.
#pragma once
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace flow {

/// Thread-safe. Requests are those for inference.
class ServiceMetrics {
 public:
  struct Gauges {
    size_t queued = 0;
    bool is_ready = false;
  };

  /// Counts an answered request: its status from 100 to 599, and the time from its arrival.
  void count_request(int status, std::chrono::steady_clock::duration duration);
  /// Counts a call of predict.
  void count_batch(int64_t rows, std::chrono::steady_clock::duration duration);
  /// The text format 0.0.4 of Prometheus.
  std::string text(std::string_view model, const Gauges& gauges) const;

  /// The statistics extension of the protocol, for the one model. Requests with status 200 are
  /// successes, all others failures.
  std::string statistics(std::string_view model, std::string_view version) const;

  static constexpr std::string_view kContentType = "text/plain; version=0.0.4; charset=utf-8";

 private:
  using Counter = std::atomic<uint64_t>;
  static constexpr int kStatusMin = 100, kStatusMax = 599;
  static constexpr size_t kBuckets = 17;  // the last one has no limit

  std::array<Counter, kStatusMax - kStatusMin + 1> requests_{};  // by status
  std::array<Counter, kBuckets> durations_{};                    // not cumulative
  Counter success_us_{0}, failure_us_{0}, last_success_ms_{0};   // the last since the Unix epoch
  Counter batches_{0}, rows_{0}, predict_us_{0};
};

}  // namespace flow
