// What a run's listener hears: what a turn decided, as it was then, when that is committed.
#include <algorithm>
#include <iterator>
#include <utility>

#include "engine/runtime/engine_loop.hpp"

namespace flow {

namespace {

Event event_of(const char* type, const RunId& run, core::Time at) {
  Event event;
  event.type = type;
  event.run = run;
  event.at_ms = at;
  return event;
}

}  // namespace

void EngineLoop::warn(const RunId& run, std::string text) {
  RunContext* context = context_of(run);
  if (context == nullptr || !context->listener) return;
  Event event = event_of("warning", run, clock_.now());
  event.text = std::move(text);
  open_batch_.events.push_back(std::move(event));
}

// Once a commit: whoever waits for events wakes for many of them.
void EngineLoop::notify_listeners(std::vector<Event> events) {
  while (!events.empty()) {
    RunId run = events.front().run;
    auto others = std::stable_partition(events.begin(), events.end(),
                                        [&](const Event& event) { return event.run == run; });
    std::vector<Event> rest(std::make_move_iterator(others), std::make_move_iterator(events.end()));
    events.erase(others, events.end());
    RunContext* context = context_of(run);
    if (context != nullptr && context->listener) context->listener->on_events(std::move(events));
    events = std::move(rest);
  }
}

void EngineLoop::publish_progress(const Report& report) {
  auto found = state_.runs.find(report.id.run);
  RunContext* context = context_of(report.id.run);
  if (found == state_.runs.end() || context == nullptr || !context->listener) return;
  const auto* progress = report.as<ProgressReported>();
  Event event = event_of(progress != nullptr ? "progress" : "metric", report.id.run, clock_.now());
  event.task = InputResolver::unit_name(found->second, report.id.unit);
  event.attempt = report.id.attempt;
  if (progress != nullptr) {
    event.fraction = progress->fraction;
    auto metrics = decode_value(progress->metrics);
    if (metrics.ok()) event.data = std::move(*metrics);
  } else {
    const auto& metric = std::get<MetricReported>(report.body);
    event.fraction = metric.value;
    event.data = Value::map(
        {{Value(metric.name), Value(metric.value)}, {Value("step"), Value(metric.step)}});
  }
  open_batch_.events.push_back(std::move(event));
}

void EngineLoop::notify_unit(const RunId& run, core::UnitId unit) {
  auto found = state_.runs.find(run);
  RunContext* context = context_of(run);
  if (found == state_.runs.end() || context == nullptr || !context->listener) return;
  const core::Unit& u = found->second.units[unit];
  if (u.status == core::UnitStatus::pending || u.status == core::UnitStatus::ready) return;
  Event event = event_of("task", run, clock_.now());
  event.task = InputResolver::unit_name(found->second, unit);
  event.attempt = u.attempts;
  event.status = core::status_name(u.status);
  event.cached = u.cached;
  if (u.phase == core::Phase::done) event.at_ms = u.finished;
  if (u.detail) {
    if (u.status != core::UnitStatus::succeeded) event.text = u.detail->failure.message;
    if (u.status == core::UnitStatus::running && !u.detail->url.empty()) {
      event.type = "serving";
      event.text = u.detail->url;
    }
    bool is_backoff = u.phase == core::Phase::backoff;
    if (is_backoff) event.text = "a new attempt, after: " + u.detail->failure.message;
    if (u.status == core::UnitStatus::waiting && !is_backoff) event.text = u.detail->waiting_for;
  }
  open_batch_.events.push_back(std::move(event));
}

void EngineLoop::notify_run(const RunId& run) {
  auto found = state_.runs.find(run);
  RunContext* context = context_of(run);
  if (found == state_.runs.end() || context == nullptr) return;
  core::RunStatus status = found->second.status;
  if (status == core::RunStatus::serving && context->serve_for_ms >= 0) {
    serve_ends_.emplace(clock_.now() + context->serve_for_ms, run);
    context->serve_for_ms = -1;
  }
  if (!context->listener) return;
  Event event = event_of("run", run, clock_.now());
  event.status = core::status_name(status);
  open_batch_.events.push_back(std::move(event));
}

void EngineLoop::end_if_interrupted(const RunId& run) {
  auto found = state_.runs.find(run);
  RunContext* context = context_of(run);
  if (found == state_.runs.end() || context == nullptr || !context->listener) return;
  if (found->second.status != core::RunStatus::interrupted) return;
  context->listener->on_end();
  context->listener.reset();
}

}  // namespace flow
