#include "engine/runtime/worker_membership.hpp"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <set>

#include "engine/core/gangs.hpp"
#include "engine/core/workers.hpp"

namespace flow {

namespace {

bool runs_on(const core::Run& run, core::WorkerId worker) {
  if (run.phase_count(core::Phase::running) == 0) return false;
  return std::any_of(run.units.begin(), run.units.end(), [worker](const core::Unit& unit) {
    return unit.phase == core::Phase::running && core::is_on(unit, worker);
  });
}

}  // namespace

std::optional<core::WorkerId> worker_id_of(const core::State& state, const std::string& name) {
  for (size_t worker = 1; worker < state.workers.size(); worker++)
    if (state.workers[worker].info.name == name) return static_cast<core::WorkerId>(worker);
  return std::nullopt;
}

std::vector<std::string> disconnected_workers(const core::State& state, bool at_work) {
  std::vector<std::string> names;
  for (size_t i = 0; i < state.workers.size(); i++) {
    if (!state.workers[i].is_disconnected) continue;
    bool is_at_work = std::any_of(state.runs.begin(), state.runs.end(), [i](const auto& entry) {
      return runs_on(entry.second, static_cast<core::WorkerId>(i));
    });
    if (!at_work || is_at_work) names.push_back(state.workers[i].info.name);
  }
  return names;
}

void WorkerMembership::post(std::function<void()> callback) {
  hooks_.post(
      {StateCallback{[callback = std::move(callback)](Batch&, core::State&) { callback(); }}});
}

void WorkerMembership::post_event(const std::string& name,
                                  std::function<core::Event(core::WorkerId)> event_of) {
  post([this, name, event_of = std::move(event_of)] {
    if (auto worker = worker_id_of(state_, name)) hooks_.record(event_of(*worker));
  });
}

// Its attempts that are to stop are stopped before the join is accepted: the others continue then.
void WorkerMembership::join(core::WorkerJoined event, Hardware machine,
                            std::function<void(bool)> decided) {
  auto is_admitted = std::make_shared<bool>(false);
  TurnInput input;
  input.what = StateCallback{[this, is_admitted, machine = std::move(machine),
                              event = std::move(event)](Batch&, core::State&) mutable {
    *is_admitted = record_join(std::move(event), std::move(machine));
  }};
  input.outcome = [this, is_admitted, decided = std::move(decided)](bool) {
    if (!*is_admitted) return decided(false);
    hooks_.after_effects([decided] { decided(true); });
  };
  hooks_.post(std::move(input));
}

void WorkerMembership::disconnect(const std::string& name, const std::string& why) {
  post_event(name, [why](core::WorkerId worker) { return core::WorkerDisconnected{worker, why}; });
}

void WorkerMembership::drain(const std::string& name, const std::string& why) {
  post_event(name, [why](core::WorkerId worker) { return core::WorkerDraining{worker, why}; });
}

void WorkerMembership::fail_gpu(const std::string& name, const std::string& uuid,
                                const std::string& fault, bool is_dead) {
  post_event(name, [this, name, uuid, fault, is_dead](core::WorkerId worker) {
    shared_machines_.gpu_failed(name, uuid, fault, is_dead);
    return core::GpuFailed{worker, uuid, fault, is_dead};
  });
}

void WorkerMembership::lose(const std::string& name, const std::string& why, bool has_died) {
  post([this, name, why, has_died] { handle_loss(name, why, has_died); });
}

void WorkerMembership::announce(uint32_t workers) {
  hooks_.post({PostedEvent{core::WorkersAnnounced{workers}}});
}

std::string WorkerMembership::note_of(const std::string& name) const {
  return has_notes_ ? shared_machines_.note_of(state_, name) : "";
}

void WorkerMembership::print_new_note(const std::string& name) {
  std::string note = note_of(name);
  std::string& printed = printed_notes_[name];
  bool is_new = !note.empty() && note != printed;
  printed = std::move(note);
  if (is_new) std::fprintf(stderr, "flow: worker `%s`: %s\n", name.c_str(), printed.c_str());
}

// The workers that offered the GPUs of a lost worker are still there.
void WorkerMembership::assign_orphaned_gpus() {
  for (core::GpusFound& found : shared_machines_.orphans(state_)) {
    std::string name = state_.workers[found.worker].info.name, uuids;
    for (const Gpu& gpu : found.gpus) uuids += (uuids.empty() ? "" : ", ") + gpu.uuid;
    hooks_.record(std::move(found));
    std::fprintf(stderr, "flow: worker `%s`: it has %s now: the worker that had it is gone\n",
                 name.c_str(), uuids.c_str());
  }
}

bool WorkerMembership::record_join(core::WorkerJoined event, Hardware machine) {
  const std::string name = event.worker.name;
  shared_machines_.add(state_, event.worker, std::move(machine));
  waiting_losses_.erase(name);
  std::vector<core::AttemptId> ended = gangs_missing_on(event);
  event.attempts.insert(event.attempts.end(), ended.begin(), ended.end());
  if (!core::admit(state_, event)) {
    shared_machines_.remove(name);
    return false;
  }
  core::Failure failure;
  if (!ended.empty()) {
    const core::WorkerState& worker = state_.workers[*worker_id_of(state_, name)];
    failure = core::loss_failure(worker, "came back without it");
  }
  bool is_restarted = event.is_restarted;
  hooks_.record(std::move(event));
  print_new_note(name);
  assign_orphaned_gpus();  // it may have come back with fewer GPUs
  core::WorkerId worker = *worker_id_of(state_, name);
  for (const core::AttemptId& id : ended)
    gangs_.note_failure(id, first_rank_on(state_, id, worker), failure, false, is_restarted);
  gangs_.kill_finalizing_on(worker);
  return true;
}

// Their ranks there have ended, and no living engine knows how. The core would count these attempts
// as lost at once, with what rank 0 is to keep.
std::vector<core::AttemptId> WorkerMembership::gangs_missing_on(
    const core::WorkerJoined& event) const {
  std::vector<core::AttemptId> ended;
  auto worker = worker_id_of(state_, event.worker.name);
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

// The core ends all attempts with a rank on a lost worker at once. Before that, rank 0 of a gang
// that runs elsewhere writes what it is to keep.
void WorkerMembership::handle_loss(const std::string& name, const std::string& why, bool has_died) {
  auto worker = worker_id_of(state_, name);
  if (!worker) return;
  core::Failure failure = core::loss_failure(state_.workers[*worker], "was lost: " + why);
  for (const core::AttemptId& id : gangs_.gangs_on(*worker))
    gangs_.note_failure(id, first_rank_on(state_, id, *worker), failure, false, has_died);
  if (!gangs_.has_finalizing_gang(*worker)) return record_loss(*worker, {why, has_died});
  waiting_losses_[name] = {why, has_died};
  hooks_.record(core::WorkerDisconnected{*worker, why});  // it gets no attempt meanwhile
}

void WorkerMembership::record_loss(core::WorkerId worker, const Loss& loss) {
  std::string name = state_.workers[worker].info.name;
  shared_machines_.remove(name);
  printed_notes_.erase(name);
  hooks_.record(core::WorkerLost{worker, loss.why, loss.has_died});
  assign_orphaned_gpus();
}

void WorkerMembership::lose_waiting() {
  for (auto each = waiting_losses_.begin(); each != waiting_losses_.end();) {
    const auto& [name, loss] = *each;
    auto worker = worker_id_of(state_, name);
    bool waits = worker && gangs_.has_finalizing_gang(*worker);
    if (worker && !waits) record_loss(*worker, loss);
    each = waits ? std::next(each) : waiting_losses_.erase(each);
  }
}

}  // namespace flow
