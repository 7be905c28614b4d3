#include "engine/page/gpu_readings.hpp"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "engine/base/engine_thread.hpp"
#include "engine/page/page_json.hpp"

namespace flow {

namespace {

template <typename T>
std::string number_or_null(const std::optional<T>& number) {
  return number ? fmt::format("{}", *number) : "null";
}

std::optional<double> watts_of(const GpuSample& sample) {
  constexpr double kMilliwatts = 1000;
  if (!sample.power_milliwatts) return std::nullopt;
  return *sample.power_milliwatts / kMilliwatts;
}

}  // namespace

std::string gpu_readings_json(const std::vector<GpuSample>& samples) {
  std::string list;
  for (const GpuSample& sample : samples)
    list += fmt::format(
        R"({}{}:{{"utilisation":{},"memory_used":{},"memory":{},"temperature":{},"power":{}}})",
        list.empty() ? "" : ",", text_to_json(sample.uuid),
        number_or_null(sample.utilization_percent), number_or_null(sample.memory_used_bytes),
        number_or_null(sample.memory_bytes), number_or_null(sample.temperature_celsius),
        number_or_null(watts_of(sample)));
  return "{" + list + "}";
}

GpuReadings::GpuReadings(std::string executor, std::chrono::milliseconds idle_timeout)
    : executor_(std::move(executor)), idle_timeout_(idle_timeout) {
  thread_ = engine_thread([this] { stop_when_idle(); });
}

GpuReadings::~GpuReadings() {
  {
    std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

std::string GpuReadings::json(const std::vector<Gpu>& gpus) {
  std::set<std::string> uuids;
  for (const Gpu& gpu : gpus) uuids.insert(gpu.uuid);
  std::lock_guard lock(mutex_);
  requested_at_ = std::chrono::steady_clock::now();
  if (watch_ == nullptr || uuids != uuids_) {
    watch_.reset();
    uuids_ = std::move(uuids);
    samples_ = std::make_shared<GpuSamples>();
    // Failures are reported by the worker that runs attempts on the GPUs, not here.
    watch_ = std::make_unique<GpuWatch>(
        executor_, gpus, [](const std::string&, const GpuError&) {}, [](const std::string&) {},
        samples_);
    changed_.notify_all();
  }
  return gpu_readings_json(samples_->all());
}

bool GpuReadings::is_measuring() const {
  std::lock_guard lock(mutex_);
  return watch_ != nullptr;
}

void GpuReadings::stop_when_idle() {
  std::unique_lock lock(mutex_);
  while (!is_ending_) {
    if (watch_ == nullptr) {
      changed_.wait(lock);
    } else if (requested_at_ + idle_timeout_ <= std::chrono::steady_clock::now()) {
      watch_.reset();
    } else {
      changed_.wait_until(lock, requested_at_ + idle_timeout_);
    }
  }
}

}  // namespace flow
