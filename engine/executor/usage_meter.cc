#include "engine/executor/usage_meter.hpp"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>

#include "engine/base/files.hpp"

namespace flow {

namespace {

constexpr int64_t kKib = 1024;
constexpr int64_t kUsPerSecond = 1'000'000;

int64_t us_of(const timeval& time) { return int64_t{time.tv_sec} * kUsPerSecond + time.tv_usec; }

int64_t cpu_us_of(const rusage& used) { return us_of(used.ru_utime) + us_of(used.ru_stime); }

}  // namespace

int64_t number_line(std::string_view text, std::string_view name) {
  for (size_t at = text.find(name); at != std::string_view::npos; at = text.find(name, at + 1)) {
    if (at > 0 && text[at - 1] != '\n') continue;
    std::string_view rest = text.substr(at + name.size());
    rest.remove_prefix(std::min(rest.find_first_not_of(" \t"), rest.size()));
    int64_t number = -1;
    auto read = std::from_chars(rest.data(), rest.data() + rest.size(), number);
    return read.ec == std::errc() ? number : -1;
  }
  return -1;
}

int64_t memory_line(std::string_view text, std::string_view name) {
  int64_t kib = number_line(text, name);
  return kib < 0 || kib > INT64_MAX / kKib ? -1 : kib * kKib;
}

UsageMeter::UsageMeter()
    : io_(::open("/proc/self/io", O_RDONLY | O_CLOEXEC)),
      resets_(::open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC)) {}

UsageMeter::Counters UsageMeter::read_counters(bool with_bytes) const {
  Counters counters;
  rusage own{}, children{};
  ::getrusage(RUSAGE_SELF, &own);
  ::getrusage(RUSAGE_CHILDREN, &children);
  counters.cpu_us = cpu_us_of(own) + cpu_us_of(children);
  counters.child_peak = children.ru_maxrss * kKib;
  counters.child_faults = children.ru_minflt + children.ru_majflt;
  if (!with_bytes || io_.number < 0) return counters;
  constexpr size_t kTextMax = 1024;  // the kernel writes about 200 bytes
  char text[kTextMax];
  ssize_t size = ::pread(io_.number, text, sizeof text, 0);
  if (size <= 0) return counters;
  // Calls and not the traffic of disks: that depends on what is cached by chance, and is not
  // counted for network file systems.
  counters.read_bytes = number_line({text, static_cast<size_t>(size)}, "rchar:");
  counters.written_bytes = number_line({text, static_cast<size_t>(size)}, "wchar:");
  return counters;
}

void UsageMeter::begin(int64_t now_us) {
  began_us_ = now_us;
  if (now_us - mark_us_ < kMarkUs) return;
  constexpr char kResetPeak = '5';  // see proc_pid_clear_refs(5)
  mark_ = read_counters(true);
  was_reset_ = resets_.number >= 0 && ::pwrite(resets_.number, &kResetPeak, 1, 0) == 1;
  mark_us_ = now_us;
  busy_us_ = 0;
}

core::AttemptUsage UsageMeter::end(int64_t now_us) {
  core::AttemptUsage usage;
  int64_t duration_us = now_us - began_us_;
  bool has_mark = mark_us_ == began_us_, is_long = duration_us >= kLongUs;
  if (has_mark || duration_us >= kMarkUs) {
    Counters now = read_counters(is_long);
    // Earlier attempts since the mark used at most their duration.
    usage.cpu_us = std::max<int64_t>(0, now.cpu_us - mark_.cpu_us - busy_us_);
    if (is_long && now.read_bytes >= mark_.read_bytes && mark_.read_bytes >= 0)
      usage.read_bytes = now.read_bytes - mark_.read_bytes;
    if (is_long && now.written_bytes >= mark_.written_bytes && mark_.written_bytes >= 0)
      usage.written_bytes = now.written_bytes - mark_.written_bytes;
    if (is_long) usage.peak_memory = peak_memory(now);
  }
  busy_us_ += duration_us;
  return usage;
}

int64_t UsageMeter::peak_memory(const Counters& now) const {
  if (!was_reset_) return -1;
  auto status = read_file("/proc/self/status");
  int64_t own = status.ok() ? memory_line(*status, "VmHWM:") : -1;
  bool has_children = now.child_faults > mark_.child_faults;
  if (own < 0 || !has_children || own >= now.child_peak) return own;
  return now.child_peak > mark_.child_peak ? now.child_peak : -1;
}

}  // namespace flow
