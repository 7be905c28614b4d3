#include "engine/runtime/worker_reports.hpp"

#include <algorithm>

#include "engine/base/clock.hpp"

namespace flow {

namespace {

/// Of the task's `timeout`, not of a collective's.
bool is_own_timeout(const TaskFinished& finished) {
  return finished.failure.cause == core::Cause::timeout && !finished.of_gang;
}

/// Failures to which the supervisor adds the reports of other ranks, the calls in which they were,
/// or the workers on which they ran.
bool needs_gang_context(const TaskFinished& finished) {
  core::Cause cause = finished.failure.cause;
  return cause == core::Cause::signal || cause == core::Cause::lost || is_own_timeout(finished);
}

/// The event of an attempt that succeeded. Its blobs are appended to `blobs`.
core::Event success_of(const core::AttemptId& id, TaskFinished& finished, NamedBlobs& blobs) {
  core::AttemptSucceeded event;
  event.id = id;
  event.duration_us = finished.duration_us;
  event.waited = finished.waited;
  event.usage = finished.usage;
  if (!finished.fragment.empty()) {
    auto decoded = decode_fragment(finished.fragment);
    if (!decoded.ok()) {
      core::Failure failure;
      failure.cause = core::Cause::internal;
      failure.message =
          "the list of calls of a dynamic task is damaged: " + decoded.error().message;
      return core::AttemptFailed{id, std::move(failure), 0, false, finished.usage};
    }
    event.fragment_digest = sha256(finished.fragment);
    event.fragment = std::make_shared<const PlanFragment>(std::move(*decoded));
    blobs.emplace_back(event.fragment_digest, std::move(finished.fragment));
  }
  event.result = sha256(finished.value);
  blobs.emplace_back(event.result, std::move(finished.value));
  return event;
}

}  // namespace

TurnInput WorkerReports::input_of(Report&& report, const std::string& worker) const {
  if (auto* lines = report.as<LogLines>())
    return {AttemptLog{std::move(report.id), report.rank, lines->stream, report.at,
                       std::move(lines->text), lines->cost}};
  if (auto* finished = report.as<TaskFinished>())
    return report.rank > 0 ? input_of_rank_end(report, *finished) : input_of_end(report, *finished);
  if (auto* saved = report.as<CheckpointReported>())
    return input_of_save({core::CheckpointSaved{report.id, sha256(saved->value)}, report.id, "",
                          std::move(saved->value), std::move(saved->blobs)},
                         worker);
  if (auto* step = report.as<StepReported>())
    return input_of_save({core::StepSaved{report.id, step->name, sha256(step->value)}, report.id,
                          step->name, std::move(step->value), std::move(step->blobs)},
                         worker);
  if (report.is<TaskRequeued>()) return {PostedEvent{core::AttemptRequeued{std::move(report.id)}}};
  if (auto* service = report.as<ServiceReported>())
    return {PostedEvent{core::ServiceReady{std::move(report.id), std::move(service->url)}}};
  if (auto* metric = report.as<MetricReported>())
    return {AttemptMetric{std::move(report.id), report.at == 0 ? clock_.now() : report.at,
                          std::move(metric->name), metric->value, metric->step, metric->cost}};
  if (report.is<ProgressReported>())
    return {StateCallback{
        [this, report = std::move(report)](Batch&, core::State&) { publish_(report); }}};
  return input_of_gang_report(std::move(report));
}

TurnInput WorkerReports::input_of_save(SavedProgress saved, const std::string& worker) const {
  OnAdmission acknowledge = [this, worker, id = saved.attempt, name = saved.step](bool admitted) {
    if (is_rejected(admitted)) workers_.ack_saved(worker, id, name, false);
  };
  return {std::move(saved), std::move(acknowledge)};
}

TurnInput WorkerReports::input_of_end(const Report& report, TaskFinished& finished) const {
  if (finished.outcome == TaskFinished::Outcome::failed && needs_gang_context(finished))
    return input_of_rank_end(report, finished);
  TurnInput input{PostedEvent{}};
  PostedEvent& posted = std::get<PostedEvent>(input.what);
  fill_end(report, finished, posted);
  if (report.at != 0) {
    posted.attempt = report.id;
    posted.reported_at = clock_.at_wall(report.at);
  }
  return input;
}

void WorkerReports::fill_end(const Report& report, TaskFinished& finished,
                             PostedEvent& posted) const {
  posted.blobs = std::move(finished.blobs);
  posted.received_us = finished.received_us;
  switch (finished.outcome) {
    case TaskFinished::Outcome::succeeded:
      posted.event = success_of(report.id, finished, posted.blobs);
      break;
    case TaskFinished::Outcome::failed:
      posted.event = core::AttemptFailed{report.id, std::move(finished.failure), report.rank, false,
                                         finished.usage};
      break;
    case TaskFinished::Outcome::waiting: {
      core::AttemptWaiting event;
      event.id = report.id;
      event.signal = std::move(finished.signal);
      event.wait_name = std::move(finished.wait_name);
      core::Time now = clock_.now();
      core::Time began = report.at == 0 ? now : std::min(clock_.at_wall(report.at), now);
      event.deadline = finished.wait_timeout_ms < 0 ? 0 : began + finished.wait_timeout_ms;
      event.usage = finished.usage;
      posted.event = std::move(event);
      break;
    }
    case TaskFinished::Outcome::stopped:
      posted.event = core::AttemptStopped{report.id, finished.usage};
      break;
  }
}

// Rank 0 reports the result. The other ranks' ends matter if they fail or stop.
TurnInput WorkerReports::input_of_rank_end(const Report& report, TaskFinished& finished) const {
  bool is_timeout = is_own_timeout(finished);
  return {
      StateCallback{[this, id = report.id, rank = report.rank, outcome = finished.outcome,
                     failure = std::move(finished.failure), usage = finished.usage,
                     received_us = finished.received_us, is_timeout](Batch&, core::State&) mutable {
        if (usage.commit_us >= 0 && received_us > 0)
          usage.commit_us += monotonic_us() - received_us;
        if (rank > 0) gangs_.note_rank_end(id, rank, usage);
        if (outcome == TaskFinished::Outcome::failed)
          gangs_.note_failure(id, rank, std::move(failure), is_timeout, false, usage);
        if (outcome == TaskFinished::Outcome::stopped) gangs_.note_rank_stopped(id, rank);
      }}};
}

TurnInput WorkerReports::input_of_gang_report(Report report) const {
  return {StateCallback{[this, report = std::move(report)](Batch&, core::State&) {
    if (const auto* address = report.as<RankAddressReported>()) {
      gangs_.note_rank_address(report.id, report.rank, address->address);
    } else if (const auto* failure = report.as<PeerFailureReported>()) {
      gangs_.note_peer_failure(report.id, report.rank, failure->text);
    } else if (const auto* progress = report.as<RankProgressReported>()) {
      gangs_.note_rank_progress(report.id, report.rank, progress->progress);
    }
  }}};
}

std::vector<TurnInput> WorkerReports::inputs_of(Report report, const std::string& worker,
                                                std::pair<std::string, std::string> row,
                                                OnAdmission decided,
                                                std::function<void()> durable) const {
  std::vector<TurnInput> inputs;
  inputs.push_back(input_of(std::move(report), worker));
  if (auto* posted = std::get_if<PostedEvent>(&inputs.back().what)) posted->reporter = worker;
  if (auto* saved = std::get_if<SavedProgress>(&inputs.back().what)) saved->reporter = worker;
  inputs.back().outcome = [this, acknowledge = std::move(inputs.back().outcome),
                           decided = std::move(decided)](bool admitted) {
    if (acknowledge) acknowledge(admitted);
    if (admitted || is_rejected(admitted)) decided(admitted);
  };
  inputs.push_back({StateCallback{[row = std::move(row)](Batch& batch, core::State&) {
                      batch.put(Family::kv, row.first, row.second);
                    }},
                    [durable = std::move(durable)](bool admitted) {
                      if (admitted) durable();
                    }});
  return inputs;
}

}  // namespace flow
