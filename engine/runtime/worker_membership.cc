// Workers of other machines, as turns see them.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <set>
#include <utility>

#include "engine/core/gangs.hpp"
#include "engine/core/workers.hpp"
#include "engine/runtime/engine_loop.hpp"

namespace flow {

std::string EngineLoop::worker_name(core::WorkerId worker) const {
  return worker < state_.workers.size() ? state_.workers[worker].info.name : "";
}

namespace {

bool runs_on(const core::Run& run, core::WorkerId worker) {
  if (run.phase_count(core::Phase::running) == 0) return false;
  return std::any_of(run.units.begin(), run.units.end(), [worker](const core::Unit& unit) {
    return unit.phase == core::Phase::running && core::is_on(unit, worker);
  });
}

}  // namespace

std::optional<core::WorkerId> EngineLoop::worker_id_of(const std::string& name) const {
  for (size_t worker = 1; worker < state_.workers.size(); worker++)
    if (state_.workers[worker].info.name == name) return static_cast<core::WorkerId>(worker);
  return std::nullopt;
}

std::vector<std::string> EngineLoop::disconnected_workers() {
  std::vector<std::string> names;
  inspect([&](const core::State& state, InputResolver&) {
    for (const core::WorkerState& worker : state.workers)
      if (worker.is_disconnected) names.push_back(worker.info.name);
  });
  return names;
}

std::vector<std::string> EngineLoop::disconnected_workers_at_work() {
  std::vector<std::string> names;
  inspect([&](const core::State& state, InputResolver&) {
    for (size_t i = 1; i < state.workers.size(); i++) {
      bool is_at_work = state.workers[i].is_disconnected &&
                        std::any_of(state.runs.begin(), state.runs.end(), [i](const auto& entry) {
                          return runs_on(entry.second, static_cast<core::WorkerId>(i));
                        });
      if (is_at_work) names.push_back(state.workers[i].info.name);
    }
  });
  return names;
}

// What it brought that it is to stop is told so before it is welcome: the rest of it goes on then.
void EngineLoop::worker_joined(core::WorkerJoined event, Hardware machine,
                               std::function<void(bool)> decided) {
  auto is_admitted = std::make_shared<bool>(false);
  Input input;
  input.only([this, is_admitted, machine = std::move(machine), event = std::move(event)](
                 Batch&, core::State&) mutable {
    *is_admitted = join(std::move(event), std::move(machine));
  });
  input.done = [this, is_admitted, decided = std::move(decided)](bool) {
    if (!*is_admitted) return decided(false);
    after_effects_.push_back([decided] { decided(true); });
  };
  post(std::move(input));
}

void EngineLoop::announce(uint32_t workers) {
  Input input;
  input.event = core::WorkersAnnounced{workers};
  post(std::move(input));
}

std::string EngineLoop::worker_note(const std::string& name) const {
  // Local workers get their shares from this process, which may offer more slots than there are.
  return options_.is_closed ? "" : shared_machines_.note_of(state_, name);
}

void EngineLoop::report_worker_note(const std::string& name) {
  std::string note = worker_note(name);
  std::string& reported = reported_worker_notes_[name];
  bool is_new = !note.empty() && note != reported;
  reported = std::move(note);
  if (is_new) std::fprintf(stderr, "flow: worker `%s`: %s\n", name.c_str(), reported.c_str());
}

// The workers that offered the GPUs of one that is lost are still there.
void EngineLoop::assign_orphaned_gpus() {
  for (core::GpusFound& found : shared_machines_.orphans(state_)) {
    std::string name = worker_name(found.worker), uuids;
    for (const Gpu& gpu : found.gpus) uuids += (uuids.empty() ? "" : ", ") + gpu.uuid;
    record_if_admitted(std::move(found), clock_.now());
    std::fprintf(stderr, "flow: worker `%s`: it has %s now: the worker that had it is gone\n",
                 name.c_str(), uuids.c_str());
  }
}

bool EngineLoop::join(core::WorkerJoined event, Hardware machine) {
  const std::string name = event.worker.name;
  shared_machines_.add(state_, event.worker, std::move(machine));
  lost_workers_.erase(name);
  std::vector<core::AttemptId> ended = gangs_missing_on(event);
  event.attempts.insert(event.attempts.end(), ended.begin(), ended.end());
  if (!core::admit(state_, event)) {
    shared_machines_.remove(name);
    return false;
  }
  core::Failure failure;
  if (!ended.empty())
    failure = core::loss_failure(state_.workers[*worker_id_of(name)], "came back without it");
  bool is_restarted = event.is_restarted;
  record(std::move(event), clock_.now());
  report_worker_note(name);
  assign_orphaned_gpus();  // it may have come back with fewer than it had
  for (const core::AttemptId& id : ended)
    gangs_.note_failure(id, first_rank_on(state_, id, *worker_id_of(name)), failure, false,
                        is_restarted);
  gangs_.kill_finalizing_on(*worker_id_of(name));
  return true;
}

// Their ranks there have ended, and no engine that lives knows how. For the core they would be lost
// at once, with what rank 0 is to keep.
std::vector<core::AttemptId> EngineLoop::gangs_missing_on(const core::WorkerJoined& event) const {
  std::vector<core::AttemptId> ended;
  auto worker = worker_id_of(event.worker.name);
  if (!worker) return ended;
  std::set<core::AttemptId> offered(event.attempts.begin(), event.attempts.end());
  for (const auto& [id, run] : state_.runs) {
    if (run.phase_count(core::Phase::running) == 0) continue;
    for (core::UnitId unit = 0; unit < run.units.size(); unit++) {
      const core::Unit& u = run.units[unit];
      bool has_rank =
          u.phase == core::Phase::running && u.worker != *worker && core::is_on(u, *worker);
      core::AttemptId attempt = core::current_attempt(run, unit);
      if (has_rank && !offered.contains(attempt)) ended.push_back(attempt);
    }
  }
  return ended;
}

void EngineLoop::worker_disconnected(const std::string& name, std::string why) {
  record_of_worker(name, [why](core::WorkerId worker) {
    return core::WorkerDisconnected{worker, why};
  });
}

void EngineLoop::worker_draining(const std::string& name, std::string why) {
  record_of_worker(name, [why](core::WorkerId worker) {
    return core::WorkerDraining{worker, why};
  });
}

void EngineLoop::gpu_failed(const std::string& name, const std::string& uuid,
                            const std::string& fault, bool is_dead) {
  record_of_worker(name, [this, name, uuid, fault, is_dead](core::WorkerId worker) {
    shared_machines_.gpu_failed(name, uuid, fault, is_dead);
    return core::GpuFailed{worker, uuid, fault, is_dead};
  });
}

void EngineLoop::worker_lost(const std::string& name, std::string why, bool has_died) {
  Input input;
  input.only([this, name, why = std::move(why), has_died](Batch&, core::State&) {
    handle_lost_worker(name, why, has_died);
  });
  post(std::move(input));
}

// With a host goes at once, for the core, all that has a part there. What rank 0 of a gang is to
// keep, where that is elsewhere, comes before.
void EngineLoop::handle_lost_worker(const std::string& name, const std::string& why,
                                    bool has_died) {
  auto worker = worker_id_of(name);
  if (!worker) return;
  core::Failure failure = core::loss_failure(state_.workers[*worker], "was lost: " + why);
  for (const core::AttemptId& id : gangs_.gangs_on(*worker))
    gangs_.note_failure(id, first_rank_on(state_, id, *worker), failure, false, has_died);
  if (!gangs_.has_finalizing_gang(*worker)) return record_lost(*worker, why, has_died);
  lost_workers_[name] = {why, has_died};
  record_if_admitted(core::WorkerDisconnected{*worker, why},
                     clock_.now());  // it is given nothing meanwhile
}

void EngineLoop::record_lost(core::WorkerId worker, const std::string& why, bool has_died) {
  std::string name = worker_name(worker);
  shared_machines_.remove(name);
  reported_worker_notes_.erase(name);
  record_if_admitted(core::WorkerLost{worker, why, has_died}, clock_.now());
  assign_orphaned_gpus();
}

void EngineLoop::lose_waiting_workers() {
  for (auto each = lost_workers_.begin(); each != lost_workers_.end();) {
    const auto& [name, how] = *each;
    auto worker = worker_id_of(name);
    bool waits = worker && gangs_.has_finalizing_gang(*worker);
    if (worker && !waits) record_lost(*worker, how.first, how.second);
    each = waits ? std::next(each) : lost_workers_.erase(each);
  }
}

// Its number is found in the turn: what made it known may be just before in the inbox.
void EngineLoop::record_of_worker(const std::string& name,
                                  const std::function<core::Event(core::WorkerId)>& event_of) {
  Input input;
  input.only([this, name, event_of](Batch&, core::State&) {
    if (auto worker = worker_id_of(name)) record_if_admitted(event_of(*worker), clock_.now());
  });
  post(std::move(input));
}

void EngineLoop::put_metadata(std::string key, std::string value) {
  Input input;
  input.only([key = std::move(key), value = std::move(value)](Batch& batch, core::State&) {
    if (value.empty()) return batch.erase(Family::kv, key);
    batch.put(Family::kv, key, value);
  });
  post(std::move(input));
}

}  // namespace flow
