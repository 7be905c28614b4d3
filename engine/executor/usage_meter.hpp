// Measures what the attempts of an executor use, one after the other.
#pragma once
#include <cstdint>
#include <string_view>

#include "engine/base/file_descriptor.hpp"
#include "engine/core/attempt_usage.hpp"

namespace flow {

/// Reading the kernel's counters takes as long as a short attempt. They are therefore read when an
/// attempt begins only if that was not done within the last 5 ms, and when it ends only as
/// far as its duration is worth it.
///
/// Used by one thread.
class UsageMeter {
 public:
  /// How old the counters may be when an attempt begins.
  static constexpr int64_t kMarkUs = 5'000;
  /// Memory and bytes are measured of attempts that take at least this long.
  static constexpr int64_t kLongUs = 50'000;

  UsageMeter();
  /// Times are of the monotonic clock.
  void begin(int64_t now_us);
  /// What this process, and the children that it waited for, used since `begin`. Nothing is known
  /// of an attempt that is shorter than kMarkUs and began within kMarkUs after another one.
  core::AttemptUsage end(int64_t now_us);

 private:
  struct Counters {
    int64_t cpu_us = 0;
    int64_t child_peak = 0;    // of the largest child so far
    int64_t child_faults = 0;  // page faults of all children so far; each child has some
    int64_t read_bytes = -1, written_bytes = -1;
  };
  Counters read_counters(bool with_bytes) const;
  /// -1 if it is not known: a smaller child than one before the attempt may be the largest of it.
  int64_t peak_memory(const Counters& now) const;

  const FileDescriptor io_, resets_;
  bool was_reset_ = false;  // the peak, at the mark
  Counters mark_;
  int64_t mark_us_ = -kMarkUs, began_us_ = 0;
  int64_t busy_us_ = 0;  // of attempts that ended since the mark
};

/// The number of KiB in this line of a text like /proc/PID/status ("VmHWM:"), in bytes; -1 if it is
/// not there.
int64_t memory_line(std::string_view text, std::string_view name);
/// The number in this line of a text like /proc/PID/io ("rchar:"); -1 if it is not there.
int64_t number_line(std::string_view text, std::string_view name);

}  // namespace flow
