// What the driver (NVML) measures of the GPUs of the page's machine.
#pragma once
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "engine/worker/gpu_samples.hpp"
#include "engine/worker/gpu_watch.hpp"
#include "flow/gpu.hpp"

namespace flow {

/// {"GPU-…":{"utilisation":PERCENT,"memory_used":BYTES,"memory":BYTES,"temperature":CELSIUS,"power":
/// WATTS}…}, by UUID; a value that the GPU does not measure is null.
std::string gpu_readings_json(const std::vector<GpuSample>& samples);

/// Measures GPUs in a child process, because the driver's library may crash or hang, from the first
/// request until `idle_timeout` after the last one. Thread-safe.
class GpuReadings {
 public:
  static constexpr std::chrono::milliseconds kIdleTimeout{30'000};

  /// `executor` is the program that asks the driver. It ends `idle_timeout` after the last request.
  explicit GpuReadings(std::string executor, std::chrono::milliseconds idle_timeout = kIdleTimeout);
  ~GpuReadings();
  GpuReadings(const GpuReadings&) = delete;
  GpuReadings& operator=(const GpuReadings&) = delete;

  /// gpu_readings_json() of those of `gpus` that are whole GPUs of this machine. Does not wait for
  /// the driver: the first requests have none, and later ones those of the last 5 s.
  std::string json(const std::vector<Gpu>& gpus);
  bool is_measuring() const;

 private:
  void stop_when_idle();

  const std::string executor_;
  const std::chrono::milliseconds idle_timeout_;
  mutable std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  bool is_ending_ = false;
  std::chrono::steady_clock::time_point requested_at_{};
  std::set<std::string> uuids_;
  std::shared_ptr<GpuSamples> samples_;
  std::unique_ptr<GpuWatch> watch_;  // null: nothing is measured
  std::thread thread_;               // ends the watch
};

}  // namespace flow
