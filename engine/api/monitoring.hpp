// Metrics and traces of the process that writes a state.
#pragma once
#include <memory>
#include <string>

#include "engine/runtime/engine_loop.hpp"
#include "engine/telemetry/metrics_server.hpp"
#include "engine/telemetry/span_exporter.hpp"

namespace flow {

/// Null without an address in the options. The loop, whose options have `gpu_samples` then,
/// outlives the server.
Result<std::unique_ptr<MetricsServer>> open_metrics(const MetricsOptions& options,
                                                    EngineLoop& engine_loop);

/// Null if the environment names no collector. If its settings cannot be used, `warning` receives
/// why: a setting of another program must not stop runs.
std::shared_ptr<SpanExporter> open_span_exporter(std::string& warning,
                                                 SpanExporter::OnDrop on_drop);
/// To the standard error.
void print_lost_spans(const std::string& why);

}  // namespace flow
