#include "engine/runtime/run_event_feed.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "engine/core/gangs.hpp"
#include "engine/core/workers.hpp"

namespace flow {

namespace {

Event event_of(const char* type, const core::RunId& run, core::Time at) {
  Event event;
  event.type = type;
  event.run = run;
  event.at_ms = at;
  return event;
}

}  // namespace

void RunEventFeed::warn(const core::RunId& run, std::string text) {
  if (active_runs_.listener_of(run) == nullptr) return;
  Event event = event_of("warning", run, clock_.now());
  event.text = std::move(text);
  open_.push_back(std::move(event));
}

// When the run was submitted, other workers were still to join.
void RunEventFeed::warn_of_small_share(const core::Assigned& assigned) {
  if (!state_.leads_workers || assigned.share == core::Share{}) return;
  const core::Run& run = state_.runs.at(assigned.id.run);
  int32_t requested = core::resources_of(run, assigned.id.unit).cpus_milli;
  bool is_of_jobs = run.jobs > 0 && run.jobs < state_.capacity.cpus_milli / 1000;
  if (assigned.share.cpus_milli >= requested || is_of_jobs) return;
  std::string workers;
  for (core::WorkerId worker : core::workers_of(run.units[assigned.id.unit]))
    workers += (workers.empty() ? "" : ", ") + core::worker_text(state_, worker);
  warn(run.id,
       fmt::format("`{}` asks for cpus = {} for each of its {} ranks, and the workers have "
                   "fewer CPUs: each gets {}, on {}. If more workers will join, `flow head "
                   "--expect-workers N` (with Slurm, `--nodes N`) makes the gang wait for "
                   "them",
                   core::shown_name(run, assigned.id.unit), requested / 1000.0,
                   assigned.others.size() + 1, assigned.share.cpus_milli / 1000.0, workers));
}

void RunEventFeed::publish_progress(const Report& report) {
  const auto& progress = std::get<ProgressReported>(report.body);
  auto event = event_of_attempt("progress", report.id);
  if (!event) return;
  event->fraction = progress.fraction;
  auto metrics = decode_value(progress.metrics);
  if (metrics.ok()) event->data = std::move(*metrics);
  open_.push_back(std::move(*event));
}

void RunEventFeed::publish_metric(const AttemptMetric& metric) {
  auto event = event_of_attempt("metric", metric.attempt);
  if (!event) return;
  event->fraction = metric.value;
  event->data =
      Value::map({{Value(metric.name), Value(metric.value)}, {Value("step"), Value(metric.step)}});
  open_.push_back(std::move(*event));
}

std::optional<Event> RunEventFeed::event_of_attempt(const char* type, const core::AttemptId& id) {
  auto found = state_.runs.find(id.run);
  bool has_listener = active_runs_.listener_of(id.run) != nullptr;
  if (found == state_.runs.end() || !has_listener) return std::nullopt;
  Event event = event_of(type, id.run, clock_.now());
  event.task = core::unit_name(found->second, id.unit);
  event.tag = core::tag_of(found->second, id.unit);
  event.attempt = id.attempt;
  return event;
}

void RunEventFeed::publish_log(const AttemptLog& log) {
  const RunContext* context = active_runs_.find(log.attempt.run);
  if (context == nullptr || !context->publishes_logs || !context->listener) return;
  auto found = state_.runs.find(log.attempt.run);
  if (found == state_.runs.end() || log.attempt.unit >= found->second.units.size()) return;
  Event event = event_of("log", log.attempt.run, clock_.now());
  event.task = core::unit_name(found->second, log.attempt.unit);
  event.tag = core::tag_of(found->second, log.attempt.unit);
  event.attempt = log.attempt.attempt;
  event.rank = log.rank;
  event.status = log.stream == 1 ? "stdout" : log.stream == 2 ? "stderr" : "log";
  event.text = log.text;
  open_.push_back(std::move(event));
}

void RunEventFeed::notify_unit(const core::RunId& run, core::UnitId unit) {
  auto found = state_.runs.find(run);
  if (found == state_.runs.end() || active_runs_.listener_of(run) == nullptr) return;
  const core::Unit& u = found->second.units[unit];
  if (u.status == core::UnitStatus::pending || u.status == core::UnitStatus::ready) return;
  Event event = event_of("task", run, clock_.now());
  event.task = core::unit_name(found->second, unit);
  event.tag = core::tag_of(found->second, unit);
  event.attempt = u.attempts;
  event.status = core::status_name(u.status);
  event.cached = u.cached;
  event.ignored = core::is_ignored(u);
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
  open_.push_back(std::move(event));
}

void RunEventFeed::notify_run(const core::RunId& run) {
  auto found = state_.runs.find(run);
  if (found == state_.runs.end() || active_runs_.listener_of(run) == nullptr) return;
  Event event = event_of("run", run, clock_.now());
  event.status = core::status_name(found->second.status);
  open_.push_back(std::move(event));
}

void RunEventFeed::deliver(std::vector<Event> events) {
  while (!events.empty()) {
    core::RunId run = events.front().run;
    auto others = std::stable_partition(events.begin(), events.end(),
                                        [&](const Event& event) { return event.run == run; });
    std::vector<Event> rest(std::make_move_iterator(others), std::make_move_iterator(events.end()));
    events.erase(others, events.end());
    if (RunListener* listener = active_runs_.listener_of(run))
      listener->on_events(std::move(events));
    events = std::move(rest);
  }
}

}  // namespace flow
