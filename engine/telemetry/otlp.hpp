// Requests of OpenTelemetry's protocol.
#pragma once
#include <string>
#include <vector>

#include "engine/telemetry/span.hpp"

namespace flow {

/// An ExportTraceServiceRequest in binary form. `resource`: attributes of the process.
std::string encode_spans(const std::vector<Span>& spans, const SpanAttributes& resource);

}  // namespace flow
