#include "engine/runtime/run_event_feed.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <string_view>
#include <utility>

#include "engine/base/size_units.hpp"
#include "engine/core/gangs.hpp"
#include "engine/core/retry.hpp"
#include "engine/core/scaling.hpp"
#include "engine/core/workers.hpp"
#include "engine/runs/run_info.hpp"
#include "engine/sched/sched.hpp"

namespace flow {

namespace {

Event event_of(const char* type, const core::RunId& run, core::Time at) {
  Event event;
  event.type = type;
  event.run = run;
  event.at_ms = at;
  return event;
}

/// As Event::cause of a service: what serves.
std::string server_cause(const core::Run& run, core::UnitId unit) {
  return core::def_of(run, unit)->shell.command.empty() ? "" : "command";
}

/// The last line that is not empty, cut.
std::string_view last_line_of(std::string_view text) {
  constexpr size_t kLineMax = 500;  // bytes
  while (!text.empty() && std::strchr(" \t\r\n", text.back()) != nullptr) text.remove_suffix(1);
  size_t newline = text.rfind('\n');
  if (newline != std::string_view::npos) text.remove_prefix(newline + 1);
  return text.substr(0, kLineMax);
}

/// "a new attempt (2 of 3, in 1s), after: …". The number of attempts holds if all fail in this way.
std::string backoff_text(const core::Run& run, core::UnitId unit, core::Time now) {
  const core::UnitDetail& detail = *run.units[unit].detail;
  uint32_t next = run.units[unit].attempts + 1;
  std::string in = format_duration(std::max<core::Time>(detail.retry_at - now, 0));
  if (detail.was_ready)  // the death of a service, of which no number ends the run
    return fmt::format("a new attempt ({}, in {}), after: {}", next, in, detail.failure.message);
  const RetryPolicy& policy = core::def_of(run, unit)->retry;
  core::RetryBudget budget = core::budget_of(detail.failure.cause);
  auto left = [](uint32_t max, uint32_t spent) { return max - std::min(max, spent); };
  uint32_t retries = budget == core::RetryBudget::infrastructure
                         ? left(policy.infra, detail.infra)
                         : left(policy.max, detail.failures);
  if (budget == core::RetryBudget::memory) retries += left(policy.oom_max, detail.ooms);
  return fmt::format("a new attempt ({} of {}, in {}), after: {}", next, next + retries, in,
                     detail.failure.message);
}

}  // namespace

void RunEventFeed::warn(const core::RunId& run, std::string text) {
  if (active_runs_.listener_of(run) == nullptr) return;
  Event event = event_of("warning", run, clock_.now());
  event.text = std::move(text);
  open_.push_back(std::move(event));
}

void RunEventFeed::warn_of_budget(const core::RunId& run) {
  auto found = state_.runs.find(run);
  if (found == state_.runs.end() || !found->second.budget) return;
  std::string spent = spent_budget_text(found->second, &state_);
  if (!spent.empty()) return warn(run, "the run " + run + " is being stopped: " + spent);
  warn(run, fmt::format("the run {} has used {} of its budget; at 100% it is stopped", run,
                        budget_of(found->second, &state_)->text()));
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
  if (context == nullptr || !context->listener) return;
  auto found = state_.runs.find(log.attempt.run);
  if (found == state_.runs.end() || log.attempt.unit >= found->second.units.size()) return;
  if (found->second.units[log.attempt.unit].phase == core::Phase::running) keep_last_line(log);
  if (!context->publishes_logs) return;
  Event event = event_of("log", log.attempt.run, clock_.now());
  event.task = core::unit_name(found->second, log.attempt.unit);
  event.tag = core::tag_of(found->second, log.attempt.unit);
  event.attempt = log.attempt.attempt;
  event.rank = log.rank;
  event.status = log.stream == 1 ? "stdout" : log.stream == 2 ? "stderr" : "log";
  event.text = log.text;
  open_.push_back(std::move(event));
}

void RunEventFeed::keep_last_line(const AttemptLog& log) {
  std::string_view line = last_line_of(log.text);
  constexpr uint32_t kWarningStream = 3;  // of the executor's protocol
  if (line.empty() || log.stream == kWarningStream) return;
  last_lines_[{log.attempt.run, log.attempt.unit}] = line;
}

void RunEventFeed::add_failure(const core::Run& run, core::UnitId unit, Event& event) {
  const core::Unit& u = run.units[unit];
  event.cause = core::cause_name(u.detail->failure.cause);
  event.evidence = u.detail->failure.evidence;
  auto line = last_lines_.find({run.id, unit});
  if (line != last_lines_.end()) event.last_line = line->second;
}

void RunEventFeed::expect_units(const core::RunId& run, size_t count) {
  size_t needed = open_.size() + count;
  if (needed <= open_.capacity() || active_runs_.listener_of(run) == nullptr) return;
  open_.reserve(std::max(needed, 2 * open_.capacity()));
}

void RunEventFeed::notify_unit(const core::RunId& run, core::UnitId unit) {
  auto found = state_.runs.find(run);
  if (found == state_.runs.end() || active_runs_.listener_of(run) == nullptr) return;
  const core::Unit& u = found->second.units[unit];
  if (core::is_replica_set(found->second, unit) && u.phase == core::Phase::instances)
    return notify_replicas_ready(found->second, unit);
  bool is_spare = u.phase == core::Phase::parked && core::is_spare(found->second, unit);
  bool is_before = u.status == core::UnitStatus::pending || u.status == core::UnitStatus::ready;
  if (is_before && !is_spare) return;
  Event& event = open_.emplace_back();
  event.type = "task";
  event.run = run;
  event.at_ms = clock_.now();
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
      event.cause = server_cause(found->second, unit);
    }
    bool is_backoff = u.phase == core::Phase::backoff;
    if (is_backoff) event.text = backoff_text(found->second, unit, clock_.now());
    if (is_backoff || u.status == core::UnitStatus::failed) add_failure(found->second, unit, event);
    if (u.status == core::UnitStatus::waiting && !is_backoff) event.text = u.detail->waiting_for;
  }
  if (is_spare) event.text = core::explain_wait(state_, run, unit);
  if (!last_lines_.empty()) last_lines_.erase({run, unit});
}

// One event for the service, which has one URL.
void RunEventFeed::notify_replicas_ready(const core::Run& run, core::UnitId set) {
  std::string url = url_of_replicas(run, set);
  if (url.empty()) return;  // ended since
  Event event = event_of("serving", run.id, clock_.now());
  event.task = core::unit_name(run, set);
  event.tag = core::tag_of(run, set);
  event.status = core::status_name(core::UnitStatus::running);
  event.text = std::move(url);
  event.cause = server_cause(run, set);
  open_.push_back(std::move(event));
}

void RunEventFeed::notify_run(const core::RunId& run) {
  auto found = state_.runs.find(run);
  if (found == state_.runs.end() || active_runs_.listener_of(run) == nullptr) return;
  Event event = event_of("run", run, clock_.now());
  event.status = core::status_name(found->second.status);
  if (core::is_final(found->second.status) || found->second.status == core::RunStatus::interrupted)
    event.counts = counts_by_task(found->second);
  open_.push_back(std::move(event));
}

void RunEventFeed::deliver(std::vector<Event> events) {
  while (!events.empty()) {
    core::RunId run = events.front().run;
    auto is_of_run = [&](const Event& event) { return event.run == run; };
    std::vector<Event> rest;
    if (!std::all_of(events.begin(), events.end(), is_of_run)) {  // partitioning moves all events
      auto others = std::stable_partition(events.begin(), events.end(), is_of_run);
      rest.assign(std::make_move_iterator(others), std::make_move_iterator(events.end()));
      events.erase(others, events.end());
    }
    if (RunListener* listener = active_runs_.listener_of(run))
      listener->on_events(std::move(events));
    events = std::move(rest);
  }
}

}  // namespace flow
