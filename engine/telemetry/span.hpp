// A span of a trace, as OpenTelemetry has it.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace flow {

using SpanAttribute = std::variant<std::string, int64_t>;
using SpanAttributes = std::vector<std::pair<std::string, SpanAttribute>>;

struct Span {
  std::string trace_id, id, parent_id;  // 16, 8 and 8 bytes; the parent is "" of a root
  std::string name;
  int64_t begin_us = 0, end_us = 0;  // since the Unix epoch
  SpanAttributes attributes;
  bool has_failed = false;
  std::string error = {};  // of a failed one
  uint32_t flags = 1;      // of the trace context: it is sampled
  bool operator==(const Span&) const = default;
};

}  // namespace flow
