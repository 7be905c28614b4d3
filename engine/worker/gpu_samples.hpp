// The newest measurements of this machine's GPUs.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace flow {

/// Of a whole GPU, also if it is divided into MIG instances. Nothing: it does not measure that.
struct GpuSample {
  uint32_t index = 0;
  std::string uuid;
  std::optional<uint32_t> utilization_percent = {};
  std::optional<int64_t> memory_used_bytes = {}, memory_bytes = {};
  std::optional<int32_t> temperature_celsius = {};
  std::optional<uint32_t> power_milliwatts = {};
  std::optional<uint64_t> energy_millijoules = {};  // since the driver was loaded
  bool operator==(const GpuSample&) const = default;
};

constexpr uint32_t kSampledGpusMax = 256;  // of a machine

/// Thread-safe.
class GpuSamples {
 public:
  using Listener = std::function<void(const GpuSample& sample)>;
  /// `on_put` is called for each sample, by the thread that puts it, without a lock.
  explicit GpuSamples(Listener on_put = {}) : on_put_(std::move(on_put)) {}

  /// Replaces the sample of the same GPU, whose index is below kSampledGpusMax. `at_us`: by the
  /// monotonic clock.
  void put(GpuSample sample, int64_t at_us) {
    if (sample.index >= kSampledGpusMax) return;
    if (on_put_) on_put_(sample);
    std::lock_guard lock(mutex_);
    uint32_t index = sample.index;
    by_index_[index] = {std::move(sample), at_us};
  }
  /// The GPUs are not measured any more.
  void clear() {
    std::lock_guard lock(mutex_);
    by_index_.clear();
  }
  std::vector<GpuSample> all() const {
    std::lock_guard lock(mutex_);
    std::vector<GpuSample> all;
    for (const auto& [index, timed] : by_index_) all.push_back(timed.sample);
    return all;
  }
  struct TimedSample {
    GpuSample sample;
    int64_t at_us = 0;
  };
  std::vector<TimedSample> all_timed() const {
    std::lock_guard lock(mutex_);
    std::vector<TimedSample> all;
    for (const auto& [index, timed] : by_index_) all.push_back(timed);
    return all;
  }

 private:
  mutable std::mutex mutex_;
  std::map<uint32_t, TimedSample> by_index_;
  const Listener on_put_;
};

}  // namespace flow
