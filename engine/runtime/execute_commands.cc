// Acts: orders leave before their commit is made, everything else happens after it.
#include <algorithm>

#include "engine/base/clock.hpp"
#include "engine/core/gangs.hpp"
#include "engine/runs/run_archive.hpp"
#include "engine/runs/run_info.hpp"
#include "engine/runs/run_rows.hpp"
#include "engine/runtime/engine_loop.hpp"
#include "engine/store/row_keys.hpp"

namespace flow {

// What earlier attempts left may be in this very turn's batch: a later attempt's order is made
// after the commit. So is that of a native task, which starts on the spot.
bool EngineLoop::can_prefetch(const core::AttemptId& id) const {
  auto run = state_.runs.find(id.run);
  if (run == state_.runs.end() || id.unit >= run->second.units.size()) return false;
  const core::Unit& unit = run->second.units[id.unit];
  return unit.attempts == 1 && !(unit.detail && !unit.detail->waits.empty()) &&
         InputResolver::def_of(run->second, id.unit)->kind != TaskKind::native;
}

void EngineLoop::defer_starts(size_t effects_before) {
  if (!worker_registry_.has_own()) return;
  auto is_deferred = [this](const core::Command& effect) {
    const auto* start = std::get_if<core::StartAttempt>(&effect);
    if (start == nullptr || !can_prefetch(start->id)) return false;
    deferred_starts_.push_back(start->id);
    TaskKind kind = InputResolver::def_of(state_.runs.at(start->id.run), start->id.unit)->kind;
    has_speculative_start_ |= kind == TaskKind::lua || kind == TaskKind::dynamic;
    return true;
  };
  std::vector<core::Command>& effects = open_batch_.effects;
  auto first = effects.begin() + static_cast<std::ptrdiff_t>(effects_before);
  effects.erase(std::remove_if(first, effects.end(), is_deferred), effects.end());
}

void EngineLoop::prefetch_orders(uint64_t commit) {
  std::vector<AttemptOrder> orders;
  orders.reserve(deferred_starts_.size());
  for (const core::AttemptId& id : deferred_starts_) {
    add_orders(id, orders);
  }
  deferred_starts_.clear();
  has_speculative_start_ = false;
  if (!orders.empty()) worker_registry_.stage(std::move(orders), commit);
}

/// Attempts of an interrupted run, and of a gang with a rank on a worker that is to leave, may come
/// to a point where they can be taken up again; a cancelled run's, and those that only a service's
/// end is asked of, are told to end.
bool EngineLoop::is_interrupted(const core::StopAttempt& stop) const {
  auto run = state_.runs.find(stop.id.run);
  if (stop.kill || run == state_.runs.end() || stop.id.unit >= run->second.units.size())
    return false;
  const core::Unit& unit = run->second.units[stop.id.unit];
  bool grows = unit.detail && unit.detail->is_resizing;
  auto workers = core::workers_of(unit);
  bool is_leaving = std::any_of(workers.begin(), workers.end(), [&](core::WorkerId worker) {
    return state_.workers[worker].is_draining;
  });
  return (run->second.stopping || is_leaving || grows) && !run->second.cancelling &&
         InputResolver::def_of(run->second, stop.id.unit)->kind != TaskKind::service;
}

void EngineLoop::stop(const core::StopAttempt& stop) {
  std::string worker = worker_name(stop.worker);
  if (worker.empty()) native_.stop(stop.id);
  if (is_interrupted(stop)) {
    worker_registry_.interrupt(worker, stop.id);
  } else {
    worker_registry_.stop(worker, stop.id, stop.kill);
  }
}

void EngineLoop::execute(const std::vector<core::Command>& effects) {
  std::vector<AttemptOrder> orders;
  std::vector<RunId> ended;
  for (const core::Command& effect : effects) {
    if (const auto* start = std::get_if<core::StartAttempt>(&effect)) {
      add_orders(start->id, orders);
    } else if (const auto* stopped = std::get_if<core::StopAttempt>(&effect)) {
      stop(*stopped);
    } else if (const auto* saved = std::get_if<core::AckSaved>(&effect)) {
      auto run = state_.runs.find(saved->id.run);
      if (run == state_.runs.end() || saved->id.unit >= run->second.units.size()) continue;
      const core::Unit& unit = run->second.units[saved->id.unit];
      worker_registry_.ack_saved(worker_name(unit.worker), saved->id, saved->name, true);
      if (saved->name.empty()) replicate(saved->id, unit);
    } else if (const auto* timer = std::get_if<core::SetTimer>(&effect)) {
      timers_.emplace(timer->at, *timer);
    } else if (const auto* run = std::get_if<core::RunChanged>(&effect)) {
      end_if_interrupted(run->run);
    } else if (const auto* end = std::get_if<core::RunEnded>(&effect)) {
      ended.push_back(end->run);
      worker_registry_.forget(end->run);
    }
  }
  std::vector<AttemptOrder> native;
  auto is_native = [](const AttemptOrder& order) { return order.kind == TaskKind::native; };
  for (AttemptOrder& order : orders) {
    if (is_native(order)) native_.start(order, order.task_name);
  }
  std::erase_if(orders, is_native);
  if (!orders.empty()) worker_registry_.stage(std::move(orders), 0);
  if (!ended.empty()) {
    auto is_of_ended = [&](const RunId& run) {
      return std::find(ended.begin(), ended.end(), run) != ended.end();
    };
    std::erase_if(timers_, [&](const auto& each) { return is_of_ended(each.second.run); });
    std::erase_if(serve_ends_, [&](const auto& each) { return is_of_ended(each.second); });
  }
  for (const RunId& run : ended) {
    // Its rows and its frozen form are committed: it leaves the state, and its watchers may go.
    Input drop;
    drop.event = core::RunDeleted{run};
    std::shared_ptr<RunListener> listener;
    if (RunContext* found = context_of(run)) listener = found->listener;
    drop.done = [this, run, listener](bool) {
      contexts_.erase(run);
      if (listener) listener->on_end();
    };
    post(std::move(drop));
  }
}

std::vector<EngineLoop::Input> EngineLoop::due_timers(core::Time now) {
  std::vector<Input> due;
  while (!timers_.empty() && timers_.begin()->first <= now) {
    const core::SetTimer& timer = timers_.begin()->second;
    Input input;
    input.event = core::TimerFired{timer.run, timer.unit, timer.serial};
    due.push_back(std::move(input));
    timers_.erase(timers_.begin());
  }
  while (!serve_ends_.empty() && serve_ends_.begin()->first <= now) {
    Input input;
    input.event = core::ServeEnded{serve_ends_.begin()->second};
    due.push_back(std::move(input));
    serve_ends_.erase(serve_ends_.begin());
  }
  for (core::AttemptId& id : gangs_.take_due(now)) {
    Input input;
    input.only([this, id = std::move(id)](Batch&, core::State&) { gangs_.report_due_failure(id); });
    due.push_back(std::move(input));
  }
  return due;
}

void EngineLoop::write_run_record(const RunId& run) {
  auto found = state_.runs.find(run);
  if (found == state_.runs.end()) return;
  RunRecord record;
  if (RunContext* context = context_of(run)) {
    record = context->record;
  } else {
    auto old = record_of(*store_, run);
    if (!old) return;
    record = std::move(*old);
  }
  update_record(found->second, record);
  if (RunContext* context = context_of(run)) context->record = record;
  open_batch_.batch.put(Family::runs, run_key(run), encode_run_record(record));
}

void EngineLoop::archive(const RunId& run) {
  auto found = state_.runs.find(run);
  if (found == state_.runs.end()) return;
  write_run_record(run);
  auto archived = archive_run(state_, found->second, blobs_, open_batch_.batch);
  if (!archived.ok()) return fail(archived.error());
  open_batch_.batch.put(Family::kv, archive_key(run), std::move(*archived));
  log_counts_.erase(log_counts_.lower_bound({run, 0}), log_counts_.upper_bound({run, UINT32_MAX}));
  gangs_.forget(run);
}

}  // namespace flow
