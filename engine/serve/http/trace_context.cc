#include "engine/serve/http/trace_context.hpp"

#include <algorithm>
#include <cstddef>

namespace flow {

namespace {

// version "-" trace-id "-" parent-id "-" flags
constexpr size_t kTraceAt = 3, kTraceDigits = 32;
constexpr size_t kParentAt = 36, kParentDigits = 16;
constexpr size_t kFlagsAt = 53;
constexpr size_t kSize = 55;
constexpr size_t kSizeMax = 512;  // of a later version

bool is_lower_hex(std::string_view text) {
  return std::ranges::all_of(
      text, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

bool is_zero(std::string_view text) {
  return text.find_first_not_of('0') == std::string_view::npos;
}

}  // namespace

bool is_traceparent(std::string_view value) {
  if (value.size() < kSize || value.size() > kSizeMax) return false;
  std::string_view version = value.substr(0, 2);
  std::string_view trace = value.substr(kTraceAt, kTraceDigits);
  std::string_view parent = value.substr(kParentAt, kParentDigits);
  for (size_t dash : {kTraceAt - 1, kParentAt - 1, kFlagsAt - 1})
    if (value[dash] != '-') return false;
  bool are_digits = is_lower_hex(version) && is_lower_hex(trace) && is_lower_hex(parent) &&
                    is_lower_hex(value.substr(kFlagsAt, 2));
  if (!are_digits || is_zero(trace) || is_zero(parent) || version == "ff") return false;
  if (value.size() == kSize) return true;
  bool is_printable_rest =
      std::ranges::all_of(value.substr(kSize), [](char c) { return c > ' ' && c < 127; });
  return version != "00" && value[kSize] == '-' && is_printable_rest;
}

std::string_view trace_id_of(std::string_view traceparent) {
  return traceparent.empty() ? traceparent : traceparent.substr(kTraceAt, kTraceDigits);
}

}  // namespace flow
