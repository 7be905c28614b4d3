// Metrics in the text format 0.0.4 of Prometheus.
#pragma once
#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

namespace flow {

constexpr std::string_view kMetricsContentType = "text/plain; version=0.0.4; charset=utf-8";

/// Durations up to 10 s. Not thread-safe.
class DurationHistogram {
 public:
  struct Limit {
    int64_t us;
    const char* seconds;
  };
  static constexpr std::array<Limit, 15> kLimits{{{100, "0.0001"},
                                                  {250, "0.00025"},
                                                  {500, "0.0005"},
                                                  {1'000, "0.001"},
                                                  {2'500, "0.0025"},
                                                  {5'000, "0.005"},
                                                  {10'000, "0.01"},
                                                  {25'000, "0.025"},
                                                  {50'000, "0.05"},
                                                  {100'000, "0.1"},
                                                  {250'000, "0.25"},
                                                  {500'000, "0.5"},
                                                  {1'000'000, "1"},
                                                  {2'500'000, "2.5"},
                                                  {10'000'000, "10"}}};

  void add(int64_t us);
  /// Number of durations in this bucket only (not cumulative); the last bucket is unbounded.
  uint64_t bucket(size_t at) const { return counts_[at]; }
  uint64_t sum_us() const { return sum_us_; }

 private:
  std::array<uint64_t, kLimits.size() + 1> counts_{};
  uint64_t sum_us_ = 0;
};

/// Writes metric families: begin one, then add its samples.
class MetricText {
 public:
  using Labels = std::initializer_list<std::pair<const char*, std::string_view>>;

  void counter(std::string_view name, std::string_view help) { begin(name, "counter", help); }
  void gauge(std::string_view name, std::string_view help) { begin(name, "gauge", help); }
  /// Adds a sample to the family that was begun last.
  void add(uint64_t value) { add({}, value); }
  void add(double value) { add({}, value); }
  void add(Labels labels, uint64_t value);
  void add(Labels labels, double value);
  /// Writes a histogram family with its samples.
  void histogram(std::string_view name, std::string_view help, const DurationHistogram& durations);

  const std::string& text() const { return text_; }

 private:
  void begin(std::string_view name, std::string_view type, std::string_view help);
  void add_sample(std::string_view suffix, Labels labels, std::string_view value);

  std::string text_, name_;
};

}  // namespace flow
