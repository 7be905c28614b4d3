#include "engine/runtime/event_log.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "engine/base/log.hpp"
#include "engine/core/rollover.hpp"
#include "engine/core/scaling.hpp"
#include "engine/plan/service_keys.hpp"
#include "engine/runs/run_info.hpp"
#include "engine/value/utf8.hpp"

namespace flow {

namespace {

constexpr size_t kReasonBytesMax = 500;

std::string worker_name(const core::State& state, core::WorkerId worker) {
  const std::string& name = state.workers[worker].info.name;
  return name.empty() ? kHeadWorkerName : name;
}

/// The first line of a failure's text. It is redacted before it is cut, so that no part of a secret
/// is left.
std::string reason_of(core::Cause cause, const std::string& message) {
  std::string line = log::redacted(message.substr(0, message.find('\n')));
  return fmt::format("{}: {}", core::cause_name(cause), cut_text(line, kReasonBytesMax));
}

/// Makes the lines of one record from the state after it.
class LineWriter {
 public:
  LineWriter(const core::State& state, EngineLogLines& lines) : state_(state), lines_(lines) {}

  void add(LogLevel level, const char* message, std::string detail = "") {
    if (log::is_on(level)) push(level, message, std::move(detail));
  }
  void add_run(LogLevel level, const char* message, const core::RunId& run,
               std::string detail = "") {
    if (log::is_on(level)) push(level, message, std::move(detail)).run = run;
  }
  void add_worker(LogLevel level, const char* message, const std::string& worker,
                  std::string detail = "") {
    if (log::is_on(level)) push(level, message, std::move(detail)).worker = worker;
  }
  void add_attempt(LogLevel level, const char* message, const core::AttemptId& id,
                   std::string detail = "") {
    if (!log::is_on(level)) return;
    EngineLogLine& line = push(level, message, std::move(detail));
    line.run = id.run;
    line.attempt = id.attempt;
    auto run = state_.runs.find(id.run);
    if (run == state_.runs.end() || id.unit >= run->second.units.size()) return;
    line.task = core::shown_name(run->second, id.unit);
    line.worker = worker_of(run->second.units[id.unit], id.attempt);
  }
  /// An attempt that ended without a result: whether its task runs again is known by now.
  void add_failure(const core::AttemptId& id, const char* retried, std::string detail) {
    auto status = state_.runs.at(id.run).units[id.unit].status;
    if (!core::is_final(status)) return add_attempt(LogLevel::info, retried, id, std::move(detail));
    bool has_failed = status == core::UnitStatus::failed;
    add_attempt(has_failed ? LogLevel::warning : LogLevel::info,
                has_failed ? "task failed" : "task cancelled", id, std::move(detail));
  }
  /// Attempts that the record itself ended, because their worker or GPU is gone.
  void add_losses(std::span<const core::Command> commands) {
    std::set<std::pair<core::RunId, core::UnitId>> units;
    for (const core::Command& command : commands)
      if (const auto* changed = std::get_if<core::UnitChanged>(&command))
        units.insert({changed->run, changed->unit});
    for (const auto& [run, unit] : units) {
      const core::Unit& u = state_.runs.at(run).units[unit];
      bool has_failed =
          u.detail && !u.detail->failed.empty() && u.detail->failed.back().attempt == u.attempts;
      if (!has_failed) continue;
      const core::FailedAttempt& failed = u.detail->failed.back();
      add_failure({run, unit, failed.attempt, 0}, "attempt lost, task is retried",
                  reason_of(failed.cause, u.detail->failure.message));
    }
  }
  void add_rollovers(std::span<const core::Command> commands) {
    for (const core::Command& command : commands) {
      if (const auto* shift = std::get_if<core::ShiftTraffic>(&command)) add_shift(*shift);
      const auto* changed = std::get_if<core::RunChanged>(&command);
      auto run = changed == nullptr ? state_.runs.end() : state_.runs.find(changed->run);
      if (run == state_.runs.end()) continue;
      const core::Rollover& rollover = run->second.rollover;
      bool replaces = rollover.phase == core::RolloverPhase::waiting &&
                      !rollover.previous.empty() && !core::has_step_to_continue(run->second);
      if (replaces)
        add_run(LogLevel::warning, "rollover stops the version before first", changed->run,
                fmt::format("{}; `{}` is not served until this run's services are ready",
                            rollover.previous, run->second.name));
      bool is_done = rollover.phase == core::RolloverPhase::done && !rollover.previous.empty();
      if (is_done && run->second.status == core::RunStatus::serving)
        add_run(LogLevel::info, "rollover done", changed->run,
                "100% of the traffic; before: " + rollover.previous);
    }
  }
  void add_run_ends(std::span<const core::Command> commands) {
    for (const core::Command& command : commands) {
      const auto* ended = std::get_if<core::RunEnded>(&command);
      const auto* changed = std::get_if<core::RunChanged>(&command);
      if (ended == nullptr && changed == nullptr) continue;
      const core::RunId& id = ended != nullptr ? ended->run : changed->run;
      auto run = state_.runs.find(id);
      if (run == state_.runs.end()) continue;
      core::RunStatus status = run->second.status;
      if (ended != nullptr) {
        add_run(LogLevel::info, "run ended", id, core::status_name(status));
      } else if (status == core::RunStatus::interrupted) {
        add_run(LogLevel::info, "run interrupted", id);
      }
    }
  }

 private:
  void add_shift(const core::ShiftTraffic& shift) {
    if (shift.previous.empty()) return;  // no other version has traffic
    if (shift.percent > 0)
      return add_run(LogLevel::info, "rollover step", shift.run,
                     fmt::format("{}% of the traffic", shift.percent));
    auto run = state_.runs.find(shift.run);
    std::string reason = run == state_.runs.end() ? "" : run->second.rollover.reason;
    add_run(LogLevel::warning, "rolled back", shift.run,
            reason.empty()
                ? "the run ends; the version before, " + shift.previous + ", has all traffic again"
                : reason);
  }
  /// The worker of the unit's attempt; "" if the state does not know it any more, or it has none.
  std::string worker_of(const core::Unit& unit, uint32_t attempt) const {
    if (attempt == 0) return "";
    // A requeued attempt gives its number back.
    if (attempt >= unit.attempts) return worker_name(state_, unit.worker);
    if (!unit.detail) return "";
    for (const core::FailedAttempt& failed : unit.detail->failed)
      if (failed.attempt == attempt) return worker_name(state_, failed.worker);
    return "";
  }
  // Does not read the level, which another engine of the process may change meanwhile.
  EngineLogLine& push(LogLevel level, const char* message, std::string detail) {
    EngineLogLine& line = lines_.emplace_back();
    line.level = level;
    line.message = message;
    line.detail = std::move(detail);
    return line;
  }

  const core::State& state_;
  EngineLogLines& lines_;
};

template <typename... F>
struct Overloaded : F... {
  using F::operator()...;
};
template <typename... F>
Overloaded(F...) -> Overloaded<F...>;

/// "by ann@node1", or "" for the engine itself.
std::string by_clause(const std::string& by) { return by.empty() ? "" : "by " + by; }

/// The attempt that a report is about, or null.
const core::AttemptId* attempt_of(const core::Event& event) {
  return std::visit(Overloaded{
                        [](const core::AttemptRequeued& e) { return &e.id; },
                        [](const core::AttemptSucceeded& e) { return &e.id; },
                        [](const core::AttemptFailed& e) { return &e.id; },
                        [](const core::AttemptWaiting& e) { return &e.id; },
                        [](const core::AttemptStopped& e) { return &e.id; },
                        [](const core::ServiceReady& e) { return &e.id; },
                        [](const core::StepSaved& e) { return &e.id; },
                        [](const core::CheckpointSaved& e) { return &e.id; },
                        [](const auto&) -> const core::AttemptId* { return nullptr; },
                    },
                    event);
}

}  // namespace

RecordLog::RecordLog(const core::State& state, const core::Record& record) {
  if (!log::is_on(LogLevel::warning)) return;
  if (const auto* joined = std::get_if<core::WorkerJoined>(&record.event))
    was_known_ = std::ranges::any_of(state.workers, [&](const core::WorkerState& worker) {
      return worker.info.name == joined->worker.name;
    });
  if (const auto* lost = std::get_if<core::WorkerLost>(&record.event))
    was_draining_ = state.workers[lost->worker].is_draining;
  if (const auto* scaled = std::get_if<core::ReplicasScaled>(&record.event))
    replicas_before_ = core::replicas_in_use(state.runs.at(scaled->run), scaled->unit);
}

void RecordLog::add_lines(const core::State& state, const core::Record& record,
                          std::span<const core::Command> commands, EngineLogLines& lines) const {
  if (!log::is_on(LogLevel::warning)) return;
  LineWriter out(state, lines);
  std::visit(
      Overloaded{
          [&](const core::EngineStarted& e) {
            out.add(LogLevel::info, "engine started",
                    fmt::format("epoch {}, {} CPU slots", e.epoch, e.cpus_milli / 1000));
          },
          [&](const core::RunSubmitted& e) {
            out.add_run(LogLevel::info, "run submitted", e.run, e.name);
          },
          [&](const core::RetryRequested& e) {
            std::string what =
                e.has_unit ? "retry of " + core::unit_name(state.runs.at(e.run), e.unit) : "";
            std::string by = by_clause(e.by);
            out.add_run(LogLevel::info, "run resumed", e.run,
                        what.empty() || by.empty() ? what + by : what + " " + by);
          },
          [&](const core::CancelRequested& e) {
            out.add_run(LogLevel::info, "run cancel requested", e.run, by_clause(e.by));
          },
          [&](const core::StopRequested& e) {
            out.add_run(LogLevel::info, "run interrupt requested", e.run, by_clause(e.by));
          },
          [&](const core::ServeEnded& e) {
            out.add_run(LogLevel::info, "run serving end requested", e.run, by_clause(e.by));
          },
          [&](const core::SignalReceived& e) {
            std::string by = by_clause(e.by);
            out.add_run(LogLevel::info, "run signalled", e.run,
                        "`" + e.name + "`" + (by.empty() ? "" : " " + by));
          },
          [&](const core::InputsFailed& e) {
            if (e.unit >= state.runs.at(e.run).units.size()) return;
            out.add_attempt(LogLevel::warning, "task failed", {e.run, e.unit, 0, 0},
                            reason_of(e.failure.cause, e.failure.message));
          },
          [&](const core::Assigned& e) {
            out.add_attempt(LogLevel::debug, "attempt assigned", e.id);
          },
          [&](const core::AttemptRequeued& e) {
            out.add_attempt(LogLevel::info, "attempt requeued", e.id);
          },
          [&](const core::AttemptSucceeded& e) {
            out.add_attempt(LogLevel::debug, "attempt succeeded", e.id);
          },
          [&](const core::AttemptFailed& e) {
            out.add_failure(e.id, "attempt failed, task is retried",
                            reason_of(e.failure.cause, e.failure.message));
          },
          [&](const core::AttemptStopped& e) {
            out.add_attempt(LogLevel::info, "attempt stopped", e.id);
          },
          [&](const core::ServiceReady& e) {
            out.add_attempt(LogLevel::info, "service ready", e.id, e.url);
          },
          [&](const core::TrafficMeasured& e) {
            out.add_run(LogLevel::info, "rollover measured", e.run,
                        e.error.empty()
                            ? fmt::format("{} requests, {} errors, p99 {:g} ms", e.requests,
                                          e.errors, static_cast<double>(e.p99_us) / 1000)
                            : e.error);
          },
          [&](const core::ReplicasScaled& e) {
            out.add_run(LogLevel::info, "replicas scaled", e.run,
                        fmt::format("`{}` has {} replica{}, by its load; before: {}",
                                    core::shown_name(state.runs.at(e.run), e.unit), e.replicas,
                                    e.replicas == 1 ? "" : "s", replicas_before_));
          },
          [&](const core::GateCalled& e) {
            out.add_run(LogLevel::info, "rollover gate called", e.run,
                        e.fragment->nodes.front().name);
          },
          [&](const core::GateAnswered& e) {
            out.add_run(LogLevel::info, "rollover gate answered", e.run,
                        e.passes ? "it passes" : e.why);
          },
          [&](const core::ResizeRequested& e) {
            out.add_attempt(LogLevel::info, "gang resize requested", e.id,
                            fmt::format("{} ranks", e.ranks));
          },
          [&](const core::WorkerJoined& e) {
            out.add_worker(LogLevel::info, was_known_ ? "worker rejoined" : "worker joined",
                           e.worker.name,
                           fmt::format("{} CPU slots, {} GPUs", e.worker.cpus_milli / 1000,
                                       e.worker.gpus.size()));
            out.add_losses(commands);
          },
          [&](const core::WorkerDisconnected& e) {
            out.add_worker(LogLevel::warning, "worker disconnected", worker_name(state, e.worker),
                           e.why);
          },
          [&](const core::WorkerLost& e) {
            out.add_worker(was_draining_ ? LogLevel::info : LogLevel::warning,
                           was_draining_ ? "worker left" : "worker lost",
                           worker_name(state, e.worker), e.why);
            out.add_losses(commands);
          },
          [&](const core::WorkerDraining& e) {
            out.add_worker(LogLevel::info, "worker draining", worker_name(state, e.worker), e.why);
          },
          [&](const core::GpuFailed& e) {
            out.add_worker(LogLevel::warning, "GPU failed", worker_name(state, e.worker),
                           e.uuid + " " + e.fault);
            out.add_losses(commands);
          },
          [](const auto&) {},
      },
      record.event);
  bool is_start = std::holds_alternative<core::EngineStarted>(record.event);
  if (is_start) return;
  out.add_rollovers(commands);
  out.add_run_ends(commands);
}

void write_lines(const EngineLogLines& lines) {
  for (const EngineLogLine& line : lines) log::write(line);
}

void hide_secrets(const Plan& plan, const EnvironmentVariables& environment) {
  std::vector<std::string> values;
  for (const TaskDef& def : plan.defs) {
    for (const auto& [name, value] : environment) {
      for (const EnvEntry& entry : def.env)
        if (entry.from_submitter && name == entry.value) values.push_back(value);
      if (name != def.service.keys.variable) continue;
      for (std::string& secret : secrets_of_key_list(value)) values.push_back(std::move(secret));
    }
  }
  log::hide(values);
}

void log_rejected_report(const core::State& state, const core::Event& event,
                         const std::string& reporter) {
  const core::AttemptId* id = attempt_of(event);
  if (id == nullptr || !log::is_on(LogLevel::info)) return;
  EngineLogLines lines;
  LineWriter(state, lines)
      .add_attempt(LogLevel::info, "report rejected", *id,
                   "the attempt is not the current one, or has reported this");
  // Another engine of this process may have changed the level meanwhile.
  if (!reporter.empty() && !lines.empty()) lines.back().worker = reporter;
  write_lines(lines);
}

void add_snapshot_line(uint64_t sequence, uint64_t bytes, EngineLogLines& lines) {
  if (!log::is_on(LogLevel::info)) return;
  EngineLogLine& line = lines.emplace_back();
  line.message = "snapshot written";
  line.detail = fmt::format("{} bytes, up to record {}", bytes, sequence);
}

void log_collection(const Result<uint64_t>& freed_bytes, uint32_t keep) {
  if (!log::is_on(LogLevel::warning)) return;
  if (!freed_bytes.ok())
    return log::warning("garbage collection failed", {.detail = freed_bytes.error().message});
  log::info("garbage collected",
            {.detail = fmt::format("{} bytes freed, the newest {} finished runs kept", *freed_bytes,
                                   keep)});
}

void log_engine_failure(const Error& error) {
  log::error("commit failed, the engine stops", {.detail = error.message});
}

void log_engine_stop() { log::info("engine stopped"); }

}  // namespace flow
