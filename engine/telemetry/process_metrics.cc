#include "engine/telemetry/process_metrics.hpp"

#include <dirent.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <optional>
#include <string>

#include "engine/process/process_stat.hpp"
#include "flow/flow.hpp"

namespace flow {

namespace {

/// Seconds since the Unix epoch; 0 if unknown.
int64_t boot_time() {
  std::ifstream stat("/proc/stat");
  for (std::string word; stat >> word;) {
    if (word != "btime") continue;
    int64_t seconds = 0;
    stat >> seconds;
    return seconds;
  }
  return 0;
}

uint64_t open_files() {
  DIR* folder = ::opendir("/proc/self/fd");
  if (folder == nullptr) return 0;
  uint64_t count = 0;
  while (const dirent* entry = ::readdir(folder)) count += entry->d_name[0] != '.' ? 1 : 0;
  ::closedir(folder);
  return count - 1;  // without that of the folder
}

double seconds_of(const timeval& time) {
  constexpr double kUsPerSecond = 1e6;
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / kUsPerSecond;
}

}  // namespace

void add_process_metrics(MetricText& out) {
  out.gauge("flow_build_info", "The version of flow, as a label; the value is 1.");
  out.add({{"version", version()}}, uint64_t{1});
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  out.counter("process_cpu_seconds_total", "User and system CPU time of this process.");
  out.add(seconds_of(usage.ru_utime) + seconds_of(usage.ru_stime));
  if (auto stat = process_stat(::getpid())) {
    out.gauge("process_resident_memory_bytes", "Resident memory of this process.");
    out.add(static_cast<uint64_t>(stat->resident_pages * ::sysconf(_SC_PAGESIZE)));
    out.gauge("process_start_time_seconds", "Start of this process since the Unix epoch.");
    out.add(static_cast<double>(boot_time()) +
            static_cast<double>(stat->start_ticks) / static_cast<double>(::sysconf(_SC_CLK_TCK)));
  }
  out.gauge("process_open_fds", "Open file descriptors of this process.");
  out.add(open_files());
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  out.gauge("process_max_fds", "Maximum number of open file descriptors of this process.");
  out.add(static_cast<uint64_t>(limit.rlim_cur));
}

void add_gpu_metrics(const std::vector<GpuSample>& gpus, MetricText& out) {
  if (gpus.empty()) return;
  auto family = [&](const char* name, const char* help, const auto& value_of) {
    bool has_begun = false;
    for (const GpuSample& gpu : gpus) {
      std::optional<double> value = value_of(gpu);
      if (!value) continue;
      if (!has_begun) out.gauge(name, help);
      has_begun = true;
      out.add({{"gpu", std::to_string(gpu.index)}, {"uuid", gpu.uuid}}, *value);
    }
  };
  constexpr double kPercent = 100, kMilli = 1000;
  auto scaled = [](const auto& number, double unit) {
    return number ? std::optional<double>(static_cast<double>(*number) / unit) : std::nullopt;
  };
  family("flow_gpu_utilization_ratio", "Share of the time in which the GPU ran a kernel.",
         [&](const GpuSample& gpu) { return scaled(gpu.utilization_percent, kPercent); });
  family("flow_gpu_memory_used_bytes", "Used memory of the GPU.",
         [&](const GpuSample& gpu) { return scaled(gpu.memory_used_bytes, 1); });
  family("flow_gpu_memory_size_bytes", "Memory of the GPU.",
         [&](const GpuSample& gpu) { return scaled(gpu.memory_bytes, 1); });
  family("flow_gpu_temperature_celsius", "Temperature of the GPU.",
         [&](const GpuSample& gpu) { return scaled(gpu.temperature_celsius, 1); });
  family("flow_gpu_power_watts", "Power that the GPU draws.",
         [&](const GpuSample& gpu) { return scaled(gpu.power_milliwatts, kMilli); });
}

}  // namespace flow
