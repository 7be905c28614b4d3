// The kernel's data about a process in /proc/PID/stat.
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

namespace flow {

struct ProcessStat {
  char state = 0;  // 'Z': ended, but not yet waited for
  pid_t parent = 0, group = 0;
  uint64_t cpu_ticks = 0;    // of it and the children that it waited for
  uint64_t start_ticks = 0;  // after the boot
  int64_t resident_pages = 0;
};

/// Nothing if the line is too short.
std::optional<ProcessStat> parse_process_stat(std::string_view line);
/// Nothing if the process does not exist.
std::optional<ProcessStat> process_stat(pid_t pid);
/// Calls `visit` for each process that /proc lists; never if /proc cannot be read.
void each_process(const std::function<void(pid_t)>& visit);
/// The living descendants of a process, without itself, from the parents that /proc names.
std::vector<pid_t> living_descendants(pid_t ancestor);

}  // namespace flow
