// What workers and native tasks report, as inputs of a turn. On their threads.
#include <algorithm>

#include "engine/runtime/engine_loop.hpp"
#include "engine/store/row_keys.hpp"

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

}  // namespace

// On the worker's thread or a native task's: hashing and decoding happen here, not in the turn.
void EngineLoop::on_reports(std::vector<Report> reports) {
  std::vector<Input> inputs;
  inputs.reserve(reports.size());
  for (Report& report : reports) inputs.push_back(input_of(std::move(report), ""));
  post_or_turn(std::move(inputs));
}

EngineLoop::Input EngineLoop::input_of(Report report, const std::string& worker) {
  Input input;
  if (auto* lines = report.as<LogLines>()) {
    input.has_event = false;
    input.is_log = true;
    input.attempt = std::move(report.id);
    input.log_rank = report.rank;
    input.stream = lines->stream;
    input.at = report.at;
    input.text = std::move(lines->text);
    input.log_cost = lines->cost;
  } else if (auto* finished = report.as<TaskFinished>()) {
    input.attempt = report.id;
    input.at = report.at == 0 ? 0 : clock_.at_wall(report.at);
    input.ended_rank = report.rank;
    if (report.rank > 0) {
      finish_rank(report, *finished, input);
    } else {
      finish(report, *finished, input);
    }
  } else if (auto* checkpoint = report.as<CheckpointReported>()) {
    Digest digest = sha256(checkpoint->value);
    input.event = core::CheckpointSaved{report.id, digest};
    input.blobs = std::move(checkpoint->blobs);
    save(report.id, "", std::move(checkpoint->value), worker, input);
  } else if (auto* step = report.as<StepReported>()) {
    input.event = core::StepSaved{report.id, step->name, sha256(step->value)};
    input.blobs = std::move(step->blobs);
    save(report.id, std::move(step->name), std::move(step->value), worker, input);
  } else if (report.is<TaskRequeued>()) {
    input.event = core::AttemptRequeued{std::move(report.id)};
  } else if (auto* service = report.as<ServiceReported>()) {
    input.event = core::ServiceReady{std::move(report.id), std::move(service->url)};
  } else if (report.is<ProgressReported>() || report.is<MetricReported>()) {
    input.only(
        [this, report = std::move(report)](Batch&, core::State&) { publish_progress(report); });
  } else {
    input.only(
        [this, report = std::move(report)](Batch&, core::State&) { note_gang_report(report); });
  }
  return input;
}

void EngineLoop::note_gang_report(const Report& report) {
  if (const auto* address = report.as<RankAddressReported>()) {
    gangs_.note_rank_address(report.id, report.rank, address->address);
  } else if (const auto* failure = report.as<PeerFailureReported>()) {
    gangs_.note_peer_failure(report.id, report.rank, failure->text);
  } else {
    gangs_.note_rank_progress(report.id, report.rank,
                              std::get<RankProgressReported>(report.body).progress);
  }
}

void EngineLoop::save(const core::AttemptId& id, std::string name, std::string value,
                      const std::string& worker, Input& input) {
  // The rows are keyed by the unit's name and key, which only a turn may look up.
  input.reads_store = false;
  input.control = [event = input.event, id, name, value = std::move(value)](
                      Batch& batch, core::State& state) mutable {
    if (!core::admit(state, event)) return;  // then its blobs are not kept either
    const core::Run& run = state.runs.at(id.run);
    const core::Unit& unit = run.units[id.unit];
    std::string task = InputResolver::unit_name(run, id.unit);
    if (name.empty()) {
      batch.put(Family::kv, checkpoint_key(id.run, task, unit.key), std::move(value));
    } else {
      batch.put(Family::kv, step_prefix(id.run, task, unit.key) + name, std::move(value));
    }
  };
  input.done = [this, worker, id, name = std::move(name)](bool admitted) {
    if (!admitted) worker_registry_.ack_saved(worker, id, name, false);
  };
}

void EngineLoop::report_rank_failure(const Report& report, TaskFinished& finished, Input& input) {
  bool is_timeout = is_own_timeout(finished);
  input.only([this, id = report.id, rank = report.rank, failure = std::move(finished.failure),
              is_timeout](Batch&, core::State&) mutable {
    gangs_.note_failure(id, rank, std::move(failure), is_timeout);
  });
}

void EngineLoop::finish_rank(const Report& report, TaskFinished& finished, Input& input) {
  if (finished.outcome == TaskFinished::Outcome::failed)
    return report_rank_failure(report, finished, input);
  input.has_event = false;
  input.reads_store = false;
  if (finished.outcome != TaskFinished::Outcome::stopped) return;
  input.control = [this, id = report.id, rank = report.rank](Batch&, core::State&) {
    gangs_.note_rank_stopped(id, rank);
  };
}

void EngineLoop::finish(Report& report, TaskFinished& finished, Input& input) {
  input.blobs = std::move(finished.blobs);
  switch (finished.outcome) {
    case TaskFinished::Outcome::succeeded: {
      core::AttemptSucceeded event;
      event.id = report.id;
      event.duration_us = finished.duration_us;
      event.waited = finished.waited;
      if (!finished.fragment.empty()) {
        auto decoded = decode_fragment(finished.fragment);
        if (!decoded.ok()) {
          core::Failure failure;
          failure.cause = core::Cause::internal;
          failure.message =
              "the list of calls of a dynamic task is damaged: " + decoded.error().message;
          input.event = core::AttemptFailed{report.id, std::move(failure)};
          return;
        }
        event.fragment_digest = sha256(finished.fragment);
        event.fragment = std::make_shared<const PlanFragment>(std::move(*decoded));
        input.blobs.emplace_back(event.fragment_digest, std::move(finished.fragment));
      }
      event.result = sha256(finished.value);
      input.blobs.emplace_back(event.result, std::move(finished.value));
      input.event = std::move(event);
      return;
    }
    case TaskFinished::Outcome::failed:
      if (needs_gang_context(finished)) return report_rank_failure(report, finished, input);
      input.event = core::AttemptFailed{report.id, std::move(finished.failure), report.rank};
      return;
    case TaskFinished::Outcome::waiting: {
      core::AttemptWaiting event;
      event.id = report.id;
      event.signal = finished.signal;
      event.wait_name = finished.wait_name;
      core::Time now = clock_.now();
      core::Time began = report.at == 0 ? now : std::min(clock_.at_wall(report.at), now);
      event.deadline = finished.wait_timeout_ms < 0 ? 0 : began + finished.wait_timeout_ms;
      input.event = std::move(event);
      return;
    }
    case TaskFinished::Outcome::stopped:
      input.event = core::AttemptStopped{report.id};
      return;
  }
}

void EngineLoop::post_failure(const core::AttemptId& id, core::Cause cause, std::string message) {
  core::AttemptFailed event;
  event.id = id;
  event.failure.cause = cause;
  event.failure.message = std::move(message);
  Input input;
  input.event = std::move(event);
  post(std::move(input));
}

}  // namespace flow
