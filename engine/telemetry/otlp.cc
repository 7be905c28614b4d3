#include "engine/telemetry/otlp.hpp"

#include "engine/telemetry/otlp.pb.h"
#include "engine/value/utf8.hpp"
#include "flow/flow.hpp"

namespace flow {

namespace {

constexpr uint64_t kNsPerUs = 1000;
constexpr uint32_t kInternal = 1, kError = 2;

template <typename Fields>
void put_attributes(const SpanAttributes& attributes, Fields& out) {
  for (const auto& [key, value] : attributes) {
    otlp::KeyValue& field = *out.Add();
    field.set_key(to_utf8(key));
    if (const auto* text = std::get_if<std::string>(&value))
      field.mutable_value()->set_string_value(to_utf8(*text));
    if (const auto* number = std::get_if<int64_t>(&value))
      field.mutable_value()->set_int_value(*number);
  }
}

}  // namespace

std::string encode_spans(const std::vector<Span>& spans, const SpanAttributes& resource) {
  otlp::ExportTraceServiceRequest request;
  otlp::ResourceSpans& all = *request.add_resource_spans();
  put_attributes(resource, *all.mutable_resource()->mutable_attributes());
  otlp::ScopeSpans& scope = *all.add_scope_spans();
  scope.mutable_scope()->set_name("flow");
  scope.mutable_scope()->set_version(version());
  for (const Span& span : spans) {
    otlp::Span& out = *scope.add_spans();
    out.set_trace_id(span.trace_id);
    out.set_span_id(span.id);
    out.set_parent_span_id(span.parent_id);
    out.set_name(to_utf8(span.name));
    out.set_kind(kInternal);
    out.set_start_time_unix_nano(static_cast<uint64_t>(span.begin_us) * kNsPerUs);
    out.set_end_time_unix_nano(static_cast<uint64_t>(span.end_us) * kNsPerUs);
    put_attributes(span.attributes, *out.mutable_attributes());
    out.set_flags(span.flags);
    if (!span.has_failed) continue;
    out.mutable_status()->set_code(kError);
    out.mutable_status()->set_message(to_utf8(span.error));
  }
  return request.SerializeAsString();
}

}  // namespace flow
