#include "engine/telemetry/run_traces.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <set>
#include <utility>

#include "engine/base/log.hpp"
#include "engine/core/gpu_accounting.hpp"
#include "engine/runs/run_info.hpp"
#include "engine/serve/http/trace_context.hpp"
#include "engine/value/utf8.hpp"
#include "flow/digest.hpp"

namespace flow {

namespace {

constexpr int64_t kUsPerMs = 1000;
constexpr double kUsPerSecond = 1e6;
constexpr size_t kTraceBytes = 16, kSpanBytes = 8;
constexpr size_t kErrorBytesMax = 500;
constexpr size_t kParentAt = 36, kFlagsAt = 53;  // in a traceparent

/// The first `size` bytes of a hash of the parts.
std::string derived_id(std::string_view what, std::string_view run, uint64_t a, uint64_t b,
                       uint64_t c, size_t size) {
  Digest digest = sha256(fmt::format("flow {} {} {} {} {}", what, run, a, b, c));
  return std::string(digest.view().substr(0, size));
}

std::string hex_of(std::string_view bytes) {
  std::string text;
  for (char byte : bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return text;
}

std::string bytes_of(std::string_view hex) {
  std::string bytes;
  for (size_t at = 0; at + 1 < hex.size(); at += 2) {
    unsigned byte = 0;
    std::from_chars(hex.data() + at, hex.data() + at + 2, byte, 16);
    bytes += static_cast<char>(byte);
  }
  return bytes;
}

std::string attempt_span_id(const core::AttemptId& id) {
  return derived_id("attempt", id.run, id.unit, id.attempt, id.epoch, kSpanBytes);
}

std::string worker_name(const core::State& state, core::WorkerId worker) {
  const std::string& name = state.workers[worker].info.name;
  return name.empty() ? kHeadWorkerName : name;
}

int64_t us_of(float seconds) {
  return static_cast<int64_t>(static_cast<double>(seconds) * kUsPerSecond);
}

/// The phases of a unit's newest attempt, in µs since the Unix epoch. Unknown ones are empty.
struct AttemptPhases {
  int64_t ready, assigned, staged, ended, committed;

  AttemptPhases(const core::Run& run, core::UnitId unit, core::Time at) {
    core::AttemptTimes times = core::times_of(run, unit);
    assigned = run.units[unit].assigned * kUsPerMs;
    committed = std::max(at * kUsPerMs, assigned);
    ready = assigned - std::max<int64_t>(us_of(times.queue_s), 0);
    staged = std::min(assigned + std::max<int64_t>(us_of(times.stage_s), 0), committed);
    ended = std::max(committed - std::max<int64_t>(us_of(times.commit_s), 0), staged);
  }
};

}  // namespace

RunTraces::Trace& RunTraces::trace_of(const core::State& state, const core::RunId& run) {
  auto [found, is_new] = traces_.try_emplace(run);
  Trace& trace = found->second;
  if (!is_new) return trace;
  auto began = began_.find(run);
  trace.began = began == began_.end() ? state.runs.at(run).submitted : began->second;
  if (began != began_.end()) began_.erase(began);
  std::string parent = parent_of_(run);
  if (is_traceparent(parent)) {
    trace.id = bytes_of(trace_id_of(parent));
    trace.parent_id = bytes_of(std::string_view(parent).substr(kParentAt, 2 * kSpanBytes));
    std::from_chars(parent.data() + kFlagsAt, parent.data() + kFlagsAt + 2, trace.flags, 16);
  } else {
    trace.id = derived_id("trace", run, 0, 0, 0, kTraceBytes);
  }
  // A run that is resumed has a further root.
  trace.root_id =
      derived_id("run", run, static_cast<uint64_t>(trace.began), state.epoch, 0, kSpanBytes);
  return trace;
}

std::string RunTraces::traceparent(const core::State& state, const core::AttemptId& id) {
  const Trace& trace = trace_of(state, id.run);
  return fmt::format("00-{}-{}-{:02x}", hex_of(trace.id), hex_of(attempt_span_id(id)),
                     trace.flags & 1);
}

void RunTraces::add(const core::State& state, const core::Record& record,
                    std::span<const core::Command> commands, std::vector<Span>& out) {
  const core::Event& event = record.event;
  if (const auto* submitted = std::get_if<core::RunSubmitted>(&event)) {
    began_[submitted->run] = record.at;
  } else if (const auto* resumed = std::get_if<core::RetryRequested>(&event)) {
    if (!traces_.contains(resumed->run)) began_[resumed->run] = record.at;
  } else if (const auto* succeeded = std::get_if<core::AttemptSucceeded>(&event)) {
    add_attempt(state, succeeded->id, record.at, "succeeded", nullptr, out);
  } else if (const auto* failed = std::get_if<core::AttemptFailed>(&event)) {
    add_attempt(state, failed->id, record.at, "failed", &failed->failure, out);
  } else if (const auto* waiting = std::get_if<core::AttemptWaiting>(&event)) {
    add_attempt(state, waiting->id, record.at, "waiting", nullptr, out);
  } else if (const auto* stopped = std::get_if<core::AttemptStopped>(&event)) {
    add_attempt(state, stopped->id, record.at, "stopped", nullptr, out);
  } else if (std::holds_alternative<core::WorkerLost>(event) ||
             std::holds_alternative<core::WorkerJoined>(event) ||
             std::holds_alternative<core::GpuFailed>(event)) {
    add_losses(state, record.at, commands, out);
  }
  add_run_ends(state, record.at, commands, out);
}

// Attempts that the record itself ended, because their worker or GPU is gone.
void RunTraces::add_losses(const core::State& state, core::Time at,
                           std::span<const core::Command> commands, std::vector<Span>& out) {
  std::set<std::pair<core::RunId, core::UnitId>> units;
  for (const core::Command& command : commands)
    if (const auto* changed = std::get_if<core::UnitChanged>(&command))
      units.insert({changed->run, changed->unit});
  for (const auto& [run, unit] : units) {
    const core::Unit& u = state.runs.at(run).units[unit];
    bool has_failed =
        u.detail && !u.detail->failed.empty() && u.detail->failed.back().attempt == u.attempts;
    if (!has_failed) continue;
    core::AttemptId id{run, unit, u.attempts, u.epoch};
    add_attempt(state, id, at, "failed", &u.detail->failure, out);
  }
}

void RunTraces::add_attempt(const core::State& state, const core::AttemptId& id, core::Time at,
                            std::string_view outcome, const core::Failure* failure,
                            std::vector<Span>& out) {
  const Trace& trace = trace_of(state, id.run);
  if (!trace.is_sampled()) return;
  const core::Run& run = state.runs.at(id.run);
  const core::Unit& unit = run.units[id.unit];
  const TaskDef* def = core::def_of(run, id.unit);
  const AttemptPhases phases(run, id.unit, at);
  Span attempt;
  attempt.trace_id = trace.id;
  attempt.id = attempt_span_id(id);
  attempt.parent_id = trace.root_id;
  attempt.flags = trace.flags;
  attempt.name = def == nullptr ? core::shown_name(run, id.unit) : def->name;
  attempt.begin_us = phases.ready;
  attempt.end_us = phases.committed;
  attempt.attributes = {{"flow.run", id.run},
                        {"flow.task", core::shown_name(run, id.unit)},
                        {"flow.attempt", int64_t{id.attempt}},
                        {"flow.outcome", std::string(outcome)},
                        {"flow.worker", worker_name(state, unit.worker)}};
  std::string gpus;
  for (const std::string& gpu : core::gpus_of(unit)) gpus += (gpus.empty() ? "" : ",") + gpu;
  if (!gpus.empty()) attempt.attributes.emplace_back("flow.gpu", gpus);
  if (unit.detail && !unit.detail->others.empty())
    attempt.attributes.emplace_back("flow.ranks",
                                    static_cast<int64_t>(unit.detail->others.size() + 1));
  if (failure != nullptr) {
    attempt.has_failed = true;
    attempt.error = cut_text(log::redacted(failure->message), kErrorBytesMax);
    attempt.attributes.emplace_back("flow.cause", core::cause_name(failure->cause));
  }
  auto add_phase = [&](const char* name, int64_t begin_us, int64_t end_us) {
    Span phase;
    phase.trace_id = trace.id;
    phase.id = derived_id(name, hex_of(attempt.id), 0, 0, 0, kSpanBytes);
    phase.parent_id = attempt.id;
    phase.flags = trace.flags;
    phase.name = name;
    phase.begin_us = begin_us;
    phase.end_us = end_us;
    phase.attributes = {{"flow.attempt", int64_t{id.attempt}}};
    out.push_back(std::move(phase));
  };
  add_phase("queue", phases.ready, phases.assigned);
  add_phase("stage", phases.assigned, phases.staged);
  add_phase("run", phases.staged, phases.ended);
  add_phase("commit", phases.ended, phases.committed);
  out.push_back(std::move(attempt));
}

void RunTraces::add_run_ends(const core::State& state, core::Time at,
                             std::span<const core::Command> commands, std::vector<Span>& out) {
  for (const core::Command& command : commands) {
    const auto* ended = std::get_if<core::RunEnded>(&command);
    const auto* changed = std::get_if<core::RunChanged>(&command);
    if (ended == nullptr && changed == nullptr) continue;
    const core::RunId& id = ended != nullptr ? ended->run : changed->run;
    auto found = state.runs.find(id);
    if (found == state.runs.end()) continue;
    const core::Run& run = found->second;
    bool was_interrupted = ended == nullptr && run.status == core::RunStatus::interrupted;
    if (ended == nullptr && !was_interrupted) continue;
    bool is_known = traces_.contains(id) || began_.contains(id);
    if (!is_known && was_interrupted) continue;  // its root was sent when it was interrupted
    const Trace& trace = trace_of(state, id);
    if (trace.is_sampled()) {
      Span root;
      root.trace_id = trace.id;
      root.id = trace.root_id;
      root.parent_id = trace.parent_id;
      root.flags = trace.flags;
      root.name = run.plan->pipeline;
      root.begin_us = trace.began * kUsPerMs;
      root.end_us = std::max(at, trace.began) * kUsPerMs;
      root.attributes = {{"flow.run", id},
                         {"flow.pipeline", run.plan->pipeline},
                         {"flow.status", core::status_name(run.status)}};
      if (!run.name.empty()) root.attributes.emplace_back("flow.run.name", run.name);
      if (!run.user.empty()) root.attributes.emplace_back("flow.user", run.user);
      root.has_failed = run.status == core::RunStatus::failed;
      out.push_back(std::move(root));
    }
    traces_.erase(id);
    began_.erase(id);
  }
}

}  // namespace flow
