// What a run's listener hears, once a turn.
#include <utility>

#include "engine/base/clock.hpp"
#include "engine/driver/driver.hpp"

namespace flow {

// Listeners are told once a turn: whoever waits for events wakes for many of them.
void Driver::keep_to_tell(RunMeta& run_meta, Event event) {
  if (run_meta.untold.empty()) untold_.push_back(event.run);
  run_meta.untold.push_back(std::move(event));
}

void Driver::warn(const RunId& run, std::string text) {
  RunMeta* run_meta = meta(run);
  if (run_meta == nullptr || !run_meta->listener) return;
  Event event;
  event.type = "warning";
  event.run = run;
  event.text = std::move(text);
  event.at_ms = now_ms();
  keep_to_tell(*run_meta, std::move(event));
}

void Driver::tell() {
  for (const RunId& run : untold_) {
    RunMeta* run_meta = meta(run);
    if (run_meta == nullptr) continue;
    std::vector<Event> events = std::exchange(run_meta->untold, {});
    if (run_meta->listener) run_meta->listener->on_events(std::move(events));
  }
  untold_.clear();
}

void Driver::observe(const Report& report) {
  auto found = state_.runs.find(report.id.run);
  RunMeta* run_meta = meta(report.id.run);
  if (found == state_.runs.end() || run_meta == nullptr || !run_meta->listener) return;
  Event event;
  event.type = report.kind == Report::Kind::progress ? "progress" : "metric";
  event.run = report.id.run;
  event.task = Resolver::unit_name(found->second, report.id.unit);
  event.attempt = report.id.attempt;
  event.fraction = report.number;
  event.at_ms = now_ms();
  if (report.kind == Report::Kind::progress) {
    auto metrics = decode_value(report.value);
    if (metrics.ok()) event.data = std::move(*metrics);
  } else {
    event.data = Value::map(
        {{Value(report.text), Value(report.number)}, {Value("step"), Value(report.step)}});
  }
  keep_to_tell(*run_meta, std::move(event));
}

void Driver::notify_unit(const RunId& run, core::UnitId unit) {
  auto found = state_.runs.find(run);
  RunMeta* run_meta = meta(run);
  if (found == state_.runs.end() || run_meta == nullptr || !run_meta->listener) return;
  const core::Unit& u = found->second.units[unit];
  if (u.status == core::UnitStatus::pending || u.status == core::UnitStatus::ready) return;
  Event event;
  event.type = "task";
  event.run = run;
  event.task = Resolver::unit_name(found->second, unit);
  event.attempt = u.attempts;
  event.status = core::status_name(u.status);
  event.cached = u.cached;
  event.at_ms = now_ms();
  if (u.extra) {
    event.text = u.extra->failure.message;
    if (u.status == core::UnitStatus::running && !u.extra->url.empty()) {
      event.type = "serving";
      event.text = u.extra->url;
    }
    bool is_backoff = u.phase == core::Phase::backoff;
    if (is_backoff) event.text = "a new attempt, after: " + u.extra->failure.message;
    if (u.status == core::UnitStatus::waiting && !is_backoff) event.text = u.extra->waiting_for;
  }
  keep_to_tell(*run_meta, std::move(event));
}

void Driver::notify_run(const RunId& run) {
  auto found = state_.runs.find(run);
  RunMeta* run_meta = meta(run);
  if (found == state_.runs.end() || run_meta == nullptr) return;
  core::RunStatus status = found->second.status;
  if (status == core::RunStatus::serving && run_meta->serve_for_ms >= 0) {
    serve_ends_.emplace(now_ms() + run_meta->serve_for_ms, run);
    run_meta->serve_for_ms = -1;
  }
  if (!run_meta->listener) return;
  Event event;
  event.type = "run";
  event.run = run;
  event.status = core::status_name(status);
  event.at_ms = now_ms();
  keep_to_tell(*run_meta, std::move(event));
  if (status == core::RunStatus::interrupted) {
    tell();
    run_meta->listener->on_end();
    run_meta->listener.reset();
  }
}

}  // namespace flow
