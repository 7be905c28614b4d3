// The newest measurements of this machine's GPUs.
#pragma once
#include <cstdint>
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

/// Thread-safe.
class GpuSamples {
 public:
  /// Replaces the sample of the same GPU. There are as many as the machine has GPUs.
  void put(GpuSample sample) {
    std::lock_guard lock(mutex_);
    uint32_t index = sample.index;
    by_index_[index] = std::move(sample);
  }
  /// The GPUs are not measured any more.
  void clear() {
    std::lock_guard lock(mutex_);
    by_index_.clear();
  }
  std::vector<GpuSample> all() const {
    std::lock_guard lock(mutex_);
    std::vector<GpuSample> all;
    for (const auto& [index, sample] : by_index_) all.push_back(sample);
    return all;
  }

 private:
  mutable std::mutex mutex_;
  std::map<uint32_t, GpuSample> by_index_;
};

}  // namespace flow
