#include "tests/sim/engine_endings.hpp"

#include <algorithm>
#include <optional>
#include <variant>

#include "engine/core/gangs.hpp"
#include "tests/sim/engine_durable.hpp"
#include "tests/sim/engine_world.hpp"

namespace flow::sim {

namespace {

/// The attempt that the event ends as its own report; null for another event.
const core::AttemptId* ended_by(const core::Event& event) {
  if (const auto* e = std::get_if<core::AttemptSucceeded>(&event)) return &e->id;
  if (const auto* e = std::get_if<core::AttemptFailed>(&event)) return &e->id;
  if (const auto* e = std::get_if<core::AttemptWaiting>(&event)) return &e->id;
  if (const auto* e = std::get_if<core::AttemptStopped>(&event)) return &e->id;
  if (const auto* e = std::get_if<core::AttemptRequeued>(&event)) return &e->id;
  return nullptr;
}

std::optional<core::WorkerId> worker_named(const core::State& state, const std::string& name) {
  for (size_t worker = 1; worker < state.workers.size(); worker++)
    if (state.workers[worker].info.name == name) return static_cast<core::WorkerId>(worker);
  return std::nullopt;
}

/// The worker whose attempts the event may end.
std::optional<core::WorkerId> worker_ended_by(const core::State& state, const core::Event& event) {
  if (std::holds_alternative<core::EngineStarted>(event)) return core::WorkerId{0};
  if (const auto* lost = std::get_if<core::WorkerLost>(&event)) return lost->worker;
  if (const auto* failed = std::get_if<core::GpuFailed>(&event)) return failed->worker;
  if (const auto* joined = std::get_if<core::WorkerJoined>(&event))
    return worker_named(state, joined->worker.name);
  return std::nullopt;
}

bool has_same_capacity(const core::WorkerInfo& a, const core::WorkerInfo& b) {
  return a.cpus_milli == b.cpus_milli && a.memory_bytes == b.memory_bytes && a.gpus == b.gpus &&
         a.custom_resources == b.custom_resources;
}

}  // namespace

void AttemptEndings::on_record(const core::State& before, const core::Record& record) {
  running_.clear();
  const core::AttemptId* ended = ended_by(record.event);
  std::optional<core::WorkerId> worker = worker_ended_by(before, record.event);
  const auto* joined = std::get_if<core::WorkerJoined>(&record.event);
  bool keeps_all =
      joined && worker && has_same_capacity(joined->worker, before.workers[*worker].info);
  for (const auto& [id, run] : before.runs) {
    if (run.phase_count(core::Phase::running) == 0) continue;
    for (core::UnitId unit = 0; unit < run.units.size(); unit++) {
      if (run.units[unit].phase != core::Phase::running) continue;
      Running attempt{core::current_attempt(run, unit)};
      bool is_there = worker && core::is_on(run.units[unit], *worker);
      attempt.may_end = is_there || (ended != nullptr && *ended == attempt.id);
      attempt.must_go_on = is_there && keeps_all &&
                           std::find(joined->attempts.begin(), joined->attempts.end(),
                                     attempt.id) != joined->attempts.end();
      running_.push_back(std::move(attempt));
    }
  }
}

std::vector<core::AttemptId> AttemptEndings::check(const core::State& after) const {
  std::vector<core::AttemptId> ended;
  for (const Running& attempt : running_) {
    if (is_running(after, attempt.id)) continue;
    if (attempt.must_go_on)
      throw BrokenPromise{"a worker rejoined with an attempt, which was not adopted: " +
                          text_of(attempt.id)};
    if (!attempt.may_end)
      throw BrokenPromise{"an attempt was given up that its worker may still run: " +
                          text_of(attempt.id)};
    ended.push_back(attempt.id);
  }
  return ended;
}

}  // namespace flow::sim
