#include "engine/base/process_stat.hpp"

#include <charconv>
#include <fstream>
#include <string>

namespace flow {

// The second field is the program's name in parentheses, which may hold spaces and parentheses.
std::optional<ProcessStat> parse_process_stat(std::string_view line) {
  constexpr int kState = 3, kParent = 4, kGroup = 5, kStart = 22, kResident = 24;
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
    if (number == kStart) read(stat.start_ticks);
    if (number == kResident) read(stat.resident_pages);
  }
  return stat;
}

std::optional<ProcessStat> process_stat(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text((std::istreambuf_iterator<char>(file)), {});  // a name may hold a new line
  return parse_process_stat(text);
}

}  // namespace flow
