// Telemetry of an engine: counters, and the spans of its runs.
#pragma once
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/telemetry/engine_counters.hpp"
#include "engine/telemetry/run_traces.hpp"
#include "engine/telemetry/span_exporter.hpp"

namespace flow {

/// Used by the turn's thread.
class EngineTelemetry {
 public:
  /// `exporter`: null if no spans are made.
  EngineTelemetry(std::shared_ptr<SpanExporter> exporter, RunTraces::ParentOf parent_of)
      : exporter_(std::move(exporter)) {
    if (exporter_) traces_.emplace(std::move(parent_of));
  }

  /// After the record was applied. `spans` receives those of what it ended, for its commit.
  void add(const core::State& state, const core::Record& record,
           std::span<const core::Command> commands, std::vector<Span>& spans) {
    counters_.count(state, record, commands);
    if (traces_) traces_->add(state, record, commands, spans);
  }
  /// After the commit.
  void export_spans(std::vector<Span> spans) {
    if (exporter_ && !spans.empty()) exporter_->add(std::move(spans));
  }
  void count_commit(size_t records, int64_t us) { counters_.count_commit(records, us); }
  /// As RunTraces::traceparent; "" if no spans are made.
  std::string traceparent(const core::State& state, const core::AttemptId& id) {
    return traces_ ? traces_->traceparent(state, id) : "";
  }
  void add_metrics(MetricText& out) const;

 private:
  EngineCounters counters_;
  const std::shared_ptr<SpanExporter> exporter_;
  std::optional<RunTraces> traces_;
};

inline void EngineTelemetry::add_metrics(MetricText& out) const {
  counters_.add_to(out);
  if (!exporter_) return;
  out.counter("flow_spans_exported_total", "Spans that the collector has taken.");
  out.add(exporter_->exported());
  out.counter("flow_spans_dropped_total", "Spans that were dropped.");
  out.add(exporter_->dropped());
}

}  // namespace flow
