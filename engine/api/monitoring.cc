#include "engine/api/monitoring.hpp"

#include <cstdio>
#include <utility>
#include <vector>

#include "engine/base/log.hpp"
#include "engine/telemetry/process_metrics.hpp"

namespace flow {

namespace {

/// In the text format of Prometheus; docs/operations.md lists the names. Blocks for a turn.
std::string metrics_text(EngineLoop& engine_loop) {
  MetricText out;
  EngineComponents& parts = engine_loop.parts();
  std::vector<std::string> connected;
  // Unlike inspect(), it does not wait until earlier turns are durable.
  parts.inbox.post_and_wait({StateCallback{[&](Batch&, core::State& state) {
    parts.telemetry.add_metrics(out);
    add_state_metrics(state, out);
    for (const core::WorkerState& worker : state.workers)
      if (worker.is_up && !worker.info.name.empty()) connected.push_back(worker.info.name);
  }}});
  out.counter("flow_worker_blob_bytes_total",
              "Bytes of blobs that a connected worker received or sent since it started.");
  for (const std::string& name : connected) {
    cluster::Traffic traffic = parts.blob_directory->traffic_of(name);
    out.add({{"worker", name}, {"way", "from_head"}}, traffic.from_head.bytes);
    out.add({{"worker", name}, {"way", "from_workers"}}, traffic.from_workers.bytes);
    out.add({{"worker", name}, {"way", "to_workers"}}, traffic.to_workers.bytes);
  }
  add_gpu_metrics(parts.options.gpu_samples->all(), out);
  add_process_metrics(out);
  return out.text();
}

}  // namespace

Result<std::unique_ptr<MetricsServer>> open_metrics(const MetricsOptions& options,
                                                    EngineLoop& engine_loop) {
  if (options.listen.empty()) return std::unique_ptr<MetricsServer>();
  return MetricsServer::open(options, [&engine_loop] { return metrics_text(engine_loop); });
}

std::shared_ptr<SpanExporter> open_span_exporter(std::string& warning,
                                                 SpanExporter::OnDrop on_drop) {
  auto target = span_target(trace_variables());
  if (!target.ok()) {
    warning = "traces are not sent: " + target.error().message;
    log::warning("no spans are sent", {.detail = target.error().message});
    return nullptr;
  }
  if (!target->is_on) return nullptr;
  auto exporter = std::make_shared<SpanExporter>(std::move(*target));
  exporter->set_on_drop(std::move(on_drop));
  return exporter;
}

void print_lost_spans(const std::string& why) { std::fprintf(stderr, "flow: %s\n", why.c_str()); }

}  // namespace flow
