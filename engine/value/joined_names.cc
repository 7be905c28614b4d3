// Many names of nodes and instances as one short text.
#include <algorithm>
#include <charconv>
#include <cstdint>
#include <map>

#include "flow/tags.hpp"

namespace flow {

namespace {

constexpr size_t kGroupsMax = 3;  // further names are counted

/// A name whose last part is a number: "align[3]" is "align[" 3 "]", "train#2" is "train#" 2.
struct NumberedName {
  std::string before, after;
  uint64_t number = 0;
};

bool parse_numbered(const std::string& name, NumberedName& out) {
  bool is_instance = name.ends_with(']');
  size_t at = name.rfind(is_instance ? '[' : '#');
  if (at == std::string::npos) return false;
  const char* begin = name.data() + at + 1;
  const char* end = name.data() + name.size() - (is_instance ? 1 : 0);
  auto [stop, failed] = std::from_chars(begin, end, out.number);
  if (failed != std::errc() || stop != end) return false;
  out.before = name.substr(0, at + 1);
  out.after = is_instance ? "]" : "";
  return true;
}

/// "1..46,50" of sorted numbers.
std::string ranges(const std::vector<uint64_t>& numbers) {
  std::string text;
  for (size_t i = 0; i < numbers.size(); i++) {
    size_t last = i;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) last++;
    text += (text.empty() ? "" : ",") + std::to_string(numbers[i]);
    if (last > i) text += (last == i + 1 ? "," : "..") + std::to_string(numbers[last]);
    i = last;
  }
  return text;
}

}  // namespace

std::string joined_names(const std::vector<std::string>& names) {
  struct Group {
    std::string before, after;      // of the numbers; the whole name if there are none
    std::vector<uint64_t> numbers;  // of names that differ only in the number
  };
  std::vector<Group> groups;  // in the order of their first names
  std::map<std::string, size_t> by_name;
  size_t others = 0;
  for (const std::string& name : names) {
    NumberedName numbered;
    bool is_numbered = parse_numbered(name, numbered);
    if (!is_numbered) numbered.before = name;
    auto found = by_name.find(numbered.before);
    if (found == by_name.end()) {
      if (groups.size() == kGroupsMax) {
        others++;
        continue;
      }
      found = by_name.emplace(numbered.before, groups.size()).first;
      groups.push_back({numbered.before, numbered.after, {}});
    }
    if (is_numbered) groups[found->second].numbers.push_back(numbered.number);
  }
  std::string text;
  for (Group& group : groups) {
    std::sort(group.numbers.begin(), group.numbers.end());
    text += (text.empty() ? "" : ", ") + group.before + ranges(group.numbers) + group.after;
  }
  return others == 0 ? text : text + " and " + std::to_string(others) + " more";
}

}  // namespace flow
