#include "engine/runtime/worker_membership.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <set>

#include "engine/core/gangs.hpp"
#include "engine/core/workers.hpp"

namespace flow {

namespace {

bool is_current(const core::State& state, const core::AttemptId& id) {
  auto run = state.runs.find(id.run);
  bool is_unit = run != state.runs.end() && id.unit < run->second.units.size();
  return is_unit && run->second.units[id.unit].phase == core::Phase::running &&
         core::current_attempt(run->second, id.unit) == id;
}

/// Calls `visit(attempt, unit)` for each unit that has a rank on the worker.
template <typename Visit>
void for_each_running_on(const core::State& state, core::WorkerId worker, Visit visit) {
  for (const auto& [id, run] : state.runs) {
    if (run.phase_count(core::Phase::running) == 0) continue;
    for (core::UnitId unit = 0; unit < run.units.size(); unit++) {
      const core::Unit& u = run.units[unit];
      if (u.phase == core::Phase::running && core::is_on(u, worker))
        visit(core::current_attempt(run, unit), u);
    }
  }
}

/// The first rank of the unit on the worker that is not `there`.
template <typename There>
std::optional<uint32_t> first_missing_rank(const core::Unit& unit, core::WorkerId worker,
                                           There there) {
  std::optional<uint32_t> missing;
  uint32_t rank = 0;
  core::for_each_rank(unit, [&](core::WorkerId at, const auto&) {
    if (at == worker && !missing && !there(rank)) missing = rank;
    rank++;
  });
  return missing;
}

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
void WorkerMembership::join(WorkerJoin join, std::function<void(bool)> decided) {
  auto is_admitted = std::make_shared<bool>(false);
  TurnInput input;
  input.what =
      StateCallback{[this, is_admitted, join = std::move(join)](Batch&, core::State&) mutable {
        *is_admitted = record_join(std::move(join));
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

bool WorkerMembership::record_join(WorkerJoin join) {
  const std::string name = join.worker.name;
  shared_machines_.add(state_, join.worker, std::move(join.machine));
  waiting_losses_.erase(name);
  Offer offer = compare_offer(join);
  bool is_restarted = join.is_restarted;
  core::WorkerJoined event{std::move(join.worker), std::move(offer.attempts), is_restarted};
  if (!core::admit(state_, event)) {
    shared_machines_.remove(name);
    return false;
  }
  std::vector<core::Failure> failures;  // of the worker as it was
  for (const MissingRank& missing : offer.missing)
    failures.push_back(
        core::loss_failure(state_.workers[*worker_id_of(state_, name)], missing.how));
  hooks_.record(std::move(event));
  print_new_note(name);
  assign_orphaned_gpus();  // it may have come back with fewer GPUs
  for (size_t i = 0; i < failures.size(); i++) {
    const RankId& rank = offer.missing[i].rank;
    gangs_.note_failure(rank.attempt, rank.rank, std::move(failures[i]), false, is_restarted);
  }
  gangs_.kill_finalizing_on(*worker_id_of(state_, name));
  return true;
}

// A gang continues only with all its ranks. A rank may be missing because it died with an earlier
// process of the worker or because the connection broke before its order was sent: the other ranks
// would wait for it until their rendezvous times out. The core would count the attempt as lost at
// once, with what rank 0 is to keep.
WorkerMembership::Offer WorkerMembership::compare_offer(const WorkerJoin& join) const {
  std::map<RankId, bool> offered;  // whether it has ended
  for (const RankOffer& each : join.ranks) offered[each.rank] = each.has_ended;
  std::set<core::AttemptId> attempts;
  for (const auto& [rank, has_ended] : offered)
    if (!has_ended || is_current(state_, rank.attempt)) attempts.insert(rank.attempt);
  Offer offer;
  auto worker = worker_id_of(state_, join.worker.name);
  auto compare = [&](const core::AttemptId& id, const core::Unit& unit) {
    bool is_gang = unit.detail && !unit.detail->others.empty();
    if (!is_gang) return;
    auto missing = first_missing_rank(unit, *worker, [&](uint32_t rank) {
      return offered.contains({id, rank}) || gangs_.has_rank_ended(id, rank);
    });
    auto rank0 = offered.find({id, 0});
    bool will_end = rank0 != offered.end() && rank0->second;  // rank 0's report ends the attempt
    bool is_part = attempts.contains(id);
    if (missing && !is_part && unit.worker == *worker) return;  // the core counts it as lost
    attempts.insert(id);
    if (missing && !will_end)
      offer.missing.push_back({{id, *missing},
                               is_part ? fmt::format("came back without its rank {}", *missing)
                                       : "came back without it"});
  };
  if (worker) for_each_running_on(state_, *worker, compare);
  offer.attempts.assign(attempts.begin(), attempts.end());
  return offer;
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
