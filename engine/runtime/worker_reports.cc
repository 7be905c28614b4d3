// What workers and native tasks report, as inputs of a turn. On their threads.
#include <algorithm>

#include "engine/runtime/engine_loop.hpp"
#include "engine/store/row_keys.hpp"

namespace flow {

// On the worker's thread or a native task's: hashing and decoding happen here, not in the turn.
void EngineLoop::on_reports(std::vector<Report> reports) {
  std::vector<Input> inputs;
  inputs.reserve(reports.size());
  for (Report& report : reports) inputs.push_back(input_of(std::move(report), ""));
  post_or_turn(std::move(inputs));
}

EngineLoop::Input EngineLoop::input_of(Report report, const std::string& worker) {
  Input input;
  switch (report.kind) {
    case Report::Kind::log:
      input.has_event = false;
      input.is_log = true;
      input.attempt = report.id;
      input.log_rank = report.rank;
      input.stream = report.stream;
      input.at = report.at;
      input.text = std::move(report.text);
      input.log_cost = report.cost;
      break;
    case Report::Kind::progress:
    case Report::Kind::metric:
      input.only(
          [this, report = std::move(report)](Batch&, core::State&) { publish_progress(report); });
      break;
    case Report::Kind::saved:
      save(std::move(report), worker, input);
      break;
    case Report::Kind::rank_address:
      input.only(
          [this, report = std::move(report)](Batch&, core::State&) { note_rank_address(report); });
      break;
    case Report::Kind::peer_failure:
      input.only(
          [this, report = std::move(report)](Batch&, core::State&) { note_peer_failure(report); });
      break;
    case Report::Kind::rank_progress:
      input.only(
          [this, report = std::move(report)](Batch&, core::State&) { note_rank_progress(report); });
      break;
    case Report::Kind::requeued:
      input.event = core::AttemptRequeued{report.id};
      break;
    case Report::Kind::ready:
      input.event = core::ServiceReady{report.id, report.text};
      break;
    case Report::Kind::finished:
      input.attempt = report.id;
      input.at = report.at == 0 ? 0 : clock_.at_wall(report.at);
      input.ended_rank = report.rank;
      if (report.rank > 0) {
        finish_rank(std::move(report), input);
      } else {
        finish(std::move(report), input);
      }
      break;
  }
  return input;
}

void EngineLoop::save(Report report, const std::string& worker, Input& input) {
  Digest digest = sha256(report.value);
  if (report.text.empty()) {
    input.event = core::CheckpointSaved{report.id, digest};
  } else {
    input.event = core::StepSaved{report.id, report.text, digest};
  }
  input.blobs = std::move(report.blobs);
  // The rows are keyed by the unit's name and key, which only a turn may look up.
  input.reads_store = false;
  input.control = [event = input.event, id = report.id, name = report.text,
                   value = std::move(report.value)](Batch& batch, core::State& state) mutable {
    if (!core::admit(state, event)) return;  // nor is its content kept
    const core::Run& run = state.runs.at(id.run);
    const core::Unit& unit = run.units[id.unit];
    std::string task = InputResolver::unit_name(run, id.unit);
    if (name.empty()) {
      batch.put(Family::kv, checkpoint_key(id.run, task, unit.key), std::move(value));
    } else {
      batch.put(Family::kv, step_prefix(id.run, task, unit.key) + name, std::move(value));
    }
  };
  input.done = [this, worker, id = report.id, name = report.text](bool admitted) {
    if (!admitted) worker_registry_.ack_saved(worker, id, name, false);
  };
}

void EngineLoop::finish(Report report, Input& input) {
  input.blobs = std::move(report.blobs);
  switch (report.outcome) {
    case Report::Outcome::succeeded: {
      core::AttemptSucceeded event;
      event.id = report.id;
      event.duration_us = report.duration_us;
      event.waited = report.waited;
      if (!report.fragment.empty()) {
        auto decoded = decode_fragment(report.fragment);
        if (!decoded.ok()) {
          core::Failure failure;
          failure.cause = core::Cause::internal;
          failure.message =
              "the list of calls of a dynamic task is damaged: " + decoded.error().message;
          input.event = core::AttemptFailed{report.id, std::move(failure)};
          return;
        }
        event.fragment_digest = sha256(report.fragment);
        event.fragment = std::make_shared<const PlanFragment>(std::move(*decoded));
        input.blobs.emplace_back(event.fragment_digest, std::move(report.fragment));
      }
      event.result = sha256(report.value);
      input.blobs.emplace_back(event.result, std::move(report.value));
      input.event = std::move(event);
      return;
    }
    case Report::Outcome::failed:
      if (needs_gang_context(report)) return report_rank_failure(std::move(report), input);
      input.event = core::AttemptFailed{report.id, std::move(report.failure), report.rank};
      return;
    case Report::Outcome::waiting: {
      core::AttemptWaiting event;
      event.id = report.id;
      event.signal = report.signal;
      event.wait_name = report.wait_name;
      core::Time now = clock_.now();
      core::Time began = report.at == 0 ? now : std::min(clock_.at_wall(report.at), now);
      event.deadline = report.wait_timeout_ms < 0 ? 0 : began + report.wait_timeout_ms;
      input.event = std::move(event);
      return;
    }
    case Report::Outcome::stopped:
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
