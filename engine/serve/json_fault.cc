#include "engine/serve/json_fault.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "flow/value.hpp"

namespace flow {

namespace {

// To explain this many bytes takes up to a millisecond; a client may cause that at will.
constexpr size_t kExplainedMax = 64 * 1024;

}  // namespace

Error json_fault(std::string_view json, const char* at, std::string_view reason) {
  if (json.size() <= kExplainedMax) {
    if (auto value = from_json(json); !value.ok()) {
      constexpr std::string_view kSame = "this is not JSON: ";
      std::string_view why = value.error().message;
      if (why.starts_with(kSame)) why.remove_prefix(kSame.size());
      return user_error(fmt::format("the body is not JSON: {}", why));
    }
  }
  if (at == nullptr) return user_error(fmt::format("the body is not JSON: {}", reason));
  size_t offset = std::min(static_cast<size_t>(at - json.data()), json.size());
  std::string_view before = json.substr(0, offset);
  auto lines = std::count(before.begin(), before.end(), '\n');
  size_t line_end = before.rfind('\n');
  size_t column = line_end == before.npos ? offset : offset - line_end - 1;
  return user_error(
      fmt::format("the body is not JSON: line {}, column {}: {}", lines + 1, column + 1, reason));
}

}  // namespace flow
