#include "engine/serve/json/json_outline.hpp"

#include <bit>
#include <cstring>

#include "engine/serve/json/json_block.hpp"
#include "engine/serve/json/json_number.hpp"

namespace flow {
namespace {

// A quote in a string has a backslash before it, which this name has not after `data`. In valid
// JSON it therefore ends a string, and what is after a colon behind it is the value of a field.
constexpr std::string_view kName = "\"data\"";
constexpr std::string_view kPlaceholder = "[0]";
constexpr char kMarks[3] = {'[', ']', '"'};
constexpr size_t kListMin = 256;  // bytes; a shorter one costs more to leave out

// Behind the list whose bracket is at `at`; null if it has a string, or no end.
const char* end_of_list(const char* at, const char* end) {
  int64_t depth = 0;
  for (; end - at >= kJsonBlock; at += kJsonBlock) {
    if (!has_any_in_block(at, kMarks)) continue;  // of a list without rows: all blocks but two
    const uint64_t opened = find_in_block(at, '['), closed = find_in_block(at, ']');
    const uint64_t quotes = find_in_block(at, '"');
    for (uint64_t marks = opened | closed | quotes; marks != 0; marks &= marks - 1) {
      const uint64_t mark = marks & -marks;
      if ((quotes & mark) != 0) return nullptr;
      depth += (opened & mark) != 0 ? 1 : -1;
      if (depth == 0) return at + std::countr_zero(marks) + 1;
    }
  }
  for (; at < end; at++) {
    if (*at == '"') return nullptr;
    depth += (*at == '[') - (*at == ']');
    if (depth == 0) return at + 1;
  }
  return nullptr;
}

const char* skip_space(const char* at, const char* end) {
  while (at < end && is_json_space(*at)) at++;
  return at;
}

// The bracket of the list that is the value of the name before `at`; null if it has another value.
const char* list_after(const char* at, const char* end) {
  at = skip_space(at, end);
  if (at == end || *at != ':') return nullptr;
  at = skip_space(at + 1, end);
  return at < end && *at == '[' ? at : nullptr;
}

}  // namespace

JsonOutline outline_json(std::string_view json) {
  JsonOutline outline;
  const char *at = json.data(), *end = at + json.size();
  const char* copied = at;  // up to here
  while (true) {
    auto left = static_cast<size_t>(end - at);
    const void* name = memmem(at, left, kName.data(), kName.size());  // much faster than find()
    if (name == nullptr) break;
    at = static_cast<const char*>(name) + kName.size();
    const char* list = list_after(at, end);
    const char* behind = list == nullptr ? nullptr : end_of_list(list, end);
    if (behind == nullptr || behind - list < static_cast<std::ptrdiff_t>(kListMin)) continue;
    outline.text.append(copied, list);
    outline.lists.push_back(
        {outline.text.size(), std::string_view(list, static_cast<size_t>(behind - list))});
    outline.text += kPlaceholder;
    at = copied = behind;
  }
  if (!outline.lists.empty()) outline.text.append(copied, end);
  return outline;
}

}  // namespace flow
