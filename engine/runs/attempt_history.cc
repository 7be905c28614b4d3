#include "engine/runs/attempt_history.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include "engine/core/gpu_accounting.hpp"
#include "engine/runs/run_info.hpp"
#include "engine/store/row_keys.hpp"

namespace flow {

namespace {

constexpr double kUsPerSecond = 1e6;

int64_t us_of(float seconds) {
  return seconds < 0 ? -1 : static_cast<int64_t>(static_cast<double>(seconds) * kUsPerSecond);
}

void put_row(const core::RunId& run, core::UnitId unit, const AttemptRow& row, Batch& batch) {
  batch.put(Family::kv, attempt_key(run, unit, row.attempt), encode_attempt(row));
  if (row.attempt > kAttemptRowsMax)
    batch.erase(Family::kv, attempt_key(run, unit, row.attempt - kAttemptRowsMax));
}

void put_end(const core::State& state, const core::AttemptId& id, core::Time at,
             const char* outcome, core::Cause cause, Batch& batch) {
  AttemptRow row = newest_attempt(state, state.runs.at(id.run), id.unit);
  row.attempt = id.attempt;
  row.ended = at;
  row.outcome = outcome;
  row.cause = cause == core::Cause::none ? "" : core::cause_name(cause);
  put_row(id.run, id.unit, row, batch);
}

// Attempts that the record itself ended, because their worker or GPU is gone.
void put_losses(const core::State& state, core::Time at, std::span<const core::Command> commands,
                Batch& batch) {
  std::set<std::pair<core::RunId, core::UnitId>> units;
  for (const core::Command& command : commands)
    if (const auto* changed = std::get_if<core::UnitChanged>(&command))
      units.insert({changed->run, changed->unit});
  for (const auto& [run, unit] : units) {
    const core::Unit& u = state.runs.at(run).units[unit];
    if (!u.detail || u.detail->failed.empty()) continue;
    const core::FailedAttempt& failed = u.detail->failed.back();
    if (failed.attempt == u.attempts)
      put_end(state, {run, unit, failed.attempt, 0}, at, "failed", failed.cause, batch);
  }
}

}  // namespace

AttemptRow newest_attempt(const core::State& state, const core::Run& run, core::UnitId unit) {
  const core::Unit& u = run.units[unit];
  core::AttemptTimes times = core::times_of(run, unit);
  AttemptRow row;
  row.attempt = u.attempts;
  row.assigned = u.started;  // a snapshot keeps `assigned` of running tasks only
  row.ended = std::max(u.finished, u.started);
  row.queue_us = us_of(times.queue_s);
  row.stage_us = us_of(times.stage_s);
  row.commit_us = us_of(times.commit_s);
  if (u.worker < state.workers.size()) row.worker = state.workers[u.worker].info.name;
  if (row.worker.empty()) row.worker = kHeadWorkerName;
  row.outcome = u.phase == core::Phase::running ? "running" : core::status_name(u.status);
  row.gpus = core::gpus_of(u);
  if (u.detail) row.ranks = static_cast<uint32_t>(u.detail->others.size() + 1);
  return row;
}

// A resume may run again what has succeeded, and the start of an engine ends what ran.
AttemptHistory::AttemptHistory(const core::State& state, const core::Record& record) {
  if (const auto* resumed = std::get_if<core::RetryRequested>(&record.event)) {
    add_candidates(state, state.runs.at(resumed->run));
  } else if (std::holds_alternative<core::EngineStarted>(record.event)) {
    for (const auto& [id, run] : state.runs)
      if (run.phase_count(core::Phase::running) > 0) add_candidates(state, run);
  }
}

void AttemptHistory::add_candidates(const core::State& state, const core::Run& run) {
  for (core::UnitId unit = 0; unit < run.units.size(); unit++) {
    const core::Unit& u = run.units[unit];
    bool has_result = u.status == core::UnitStatus::succeeded && !u.cached;
    if (u.attempts == 0 || (!has_result && u.phase != core::Phase::running)) continue;
    AttemptRow row = newest_attempt(state, run, unit);
    if (u.phase == core::Phase::running) row.ended = std::max(row.assigned, state.at);
    candidates_.push_back({run.id, unit, u.phase, std::move(row)});
  }
}

void AttemptHistory::add_rows(const core::State& state, const core::Record& record,
                              std::span<const core::Command> commands, Batch& batch) const {
  const core::Event& event = record.event;
  if (const auto* failed = std::get_if<core::AttemptFailed>(&event)) {
    put_end(state, failed->id, record.at, "failed", failed->failure.cause, batch);
  } else if (const auto* waiting = std::get_if<core::AttemptWaiting>(&event)) {
    put_end(state, waiting->id, record.at, "waiting", core::Cause::none, batch);
  } else if (const auto* stopped = std::get_if<core::AttemptStopped>(&event)) {
    put_end(state, stopped->id, record.at, "stopped", core::Cause::none, batch);
  } else if (std::holds_alternative<core::WorkerLost>(event) ||
             std::holds_alternative<core::WorkerJoined>(event) ||
             std::holds_alternative<core::GpuFailed>(event)) {
    put_losses(state, record.at, commands, batch);
  }
  for (const Candidate& candidate : candidates_) {
    auto run = state.runs.find(candidate.run);
    if (run == state.runs.end()) continue;
    const core::Unit& u = run->second.units[candidate.unit];
    if (u.phase == candidate.phase) continue;
    AttemptRow row = candidate.row;
    bool has_run = candidate.phase == core::Phase::running;
    if (has_run) row.outcome = "stopped";  // by the death of its engine, after the last record
    put_row(candidate.run, candidate.unit, row, batch);
  }
}

Result<AttemptsByUnit> attempt_rows_of(const Store& store, const core::Run& run) {
  AttemptsByUnit attempts;
  const std::string prefix = attempt_prefix(run.id);
  Status damage;
  Status scanned =
      store.scan(Family::kv, prefix, prefix, [&](std::string_view key, std::string_view value) {
        auto unit = unit_of_attempt_key(prefix, key);
        auto row = decode_attempt(value);
        if (!row.ok()) damage = row.error();
        if (unit && *unit < run.units.size() && row.ok())
          attempts[*unit].push_back(std::move(*row));
        return row.ok();
      });
  FLOW_TRY(scanned);
  FLOW_TRY(damage);
  return attempts;
}

Result<AttemptsByUnit> attempts_of(const Store& store, const core::State& state,
                                   const core::Run& run) {
  auto rows = attempt_rows_of(store, run);
  FLOW_TRY(rows);
  AttemptsByUnit attempts = std::move(*rows);
  for (core::UnitId unit = 0; unit < run.units.size(); unit++) {
    const core::Unit& u = run.units[unit];
    if (u.attempts == 0 || u.cached) continue;
    std::vector<AttemptRow>& all = attempts[unit];
    bool is_stored = !all.empty() && all.back().attempt >= u.attempts;
    if (!is_stored) all.push_back(newest_attempt(state, run, unit));
  }
  return attempts;
}

}  // namespace flow
