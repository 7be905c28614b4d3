#include "engine/process/process_stat.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <map>
#include <string>

namespace flow {

// The second field is the program's name in parentheses, which may hold spaces and parentheses.
std::optional<ProcessStat> parse_process_stat(std::string_view line) {
  constexpr int kState = 3, kParent = 4, kGroup = 5, kUserTime = 14, kChildrenSystemTime = 17,
                kStart = 22, kResident = 24;
  size_t name_end = line.rfind(')');
  if (name_end == std::string_view::npos) return std::nullopt;
  line.remove_prefix(name_end + 1);
  ProcessStat stat;
  for (int number = kState; number <= kResident; number++) {
    if (!line.starts_with(' ') || line.size() < 2) return std::nullopt;
    line.remove_prefix(1);
    std::string_view field = line.substr(0, line.find(' '));
    line.remove_prefix(field.size());
    auto read = [&](auto& value) {
      std::from_chars(field.data(), field.data() + field.size(), value);
    };
    if (number == kState && !field.empty()) stat.state = field[0];
    if (number == kParent) read(stat.parent);
    if (number == kGroup) read(stat.group);
    uint64_t ticks = 0;  // user and system time of the process, then of its children
    if (number >= kUserTime && number <= kChildrenSystemTime) read(ticks);
    stat.cpu_ticks += ticks;
    if (number == kStart) read(stat.start_ticks);
    if (number == kResident) read(stat.resident_pages);
  }
  return stat;
}

// If the process ends between open and read, the read fails.
std::optional<ProcessStat> process_stat(pid_t pid) {
  int file = ::open(("/proc/" + std::to_string(pid) + "/stat").c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return std::nullopt;
  constexpr size_t kLineMax = 4096;  // the kernel writes about 300 bytes, in one read
  char line[kLineMax];
  ssize_t size = ::read(file, line, sizeof line);
  ::close(file);
  if (size <= 0) return std::nullopt;
  auto stat = parse_process_stat({line, static_cast<size_t>(size)});
  // A process that has just been waited for still has a line, with no group (do_task_stat of
  // Linux).
  if (stat && stat->group < 0) return std::nullopt;
  return stat;
}

void each_process(const std::function<void(pid_t)>& visit) {
  DIR* proc = ::opendir("/proc");
  if (proc == nullptr) return;
  while (dirent* entry = ::readdir(proc)) {
    pid_t pid = static_cast<pid_t>(std::strtol(entry->d_name, nullptr, 10));
    if (pid > 0) visit(pid);
  }
  ::closedir(proc);
}

std::vector<pid_t> living_descendants(pid_t ancestor) {
  std::multimap<pid_t, pid_t> children;
  each_process([&](pid_t pid) {
    auto stat = process_stat(pid);
    if (stat && stat->state != 'Z') children.emplace(stat->parent, pid);
  });
  std::vector<pid_t> found, next = {ancestor};
  while (!next.empty()) {
    auto [first, last] = children.equal_range(next.back());
    next.pop_back();
    for (; first != last; ++first) {
      found.push_back(first->second);
      next.push_back(first->second);
    }
  }
  return found;
}

}  // namespace flow
