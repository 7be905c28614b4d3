// Workers that outlive the head, keep what they have to say while their line is cut, and come back;
// and what must hold of them.
#include <algorithm>

#include "engine/core/gangs.hpp"
#include "tests/core/dump.hpp"
#include "tests/sim/simulation.hpp"

namespace flow::sim {

using namespace core;

namespace {

constexpr Time kLease = 50;

bool is_current_on(const State& state, const AttemptId& id, WorkerId worker_id) {
  return is_current(state, id) && is_on(state.runs.at(id.run).units[id.unit], worker_id);
}

bool is_same(const WorkerInfo& a, const WorkerInfo& b) {
  return a.cpus_milli == b.cpus_milli && a.memory_bytes == b.memory_bytes && a.gpus == b.gpus &&
         a.custom_resources == b.custom_resources;
}

}  // namespace

bool is_current(const State& state, const AttemptId& id) {
  auto found = state.runs.find(id.run);
  if (found == state.runs.end() || id.unit >= found->second.units.size()) return false;
  const Unit& u = found->second.units[id.unit];
  return u.phase == Phase::running && current_attempt(found->second, id.unit) == id;
}

const AttemptId* end_of(const Event& event) {
  if (const auto* e = std::get_if<AttemptSucceeded>(&event)) return &e->id;
  if (const auto* e = std::get_if<AttemptFailed>(&event)) return &e->id;
  if (const auto* e = std::get_if<AttemptWaiting>(&event)) return &e->id;
  if (const auto* e = std::get_if<AttemptStopped>(&event)) return &e->id;
  if (const auto* e = std::get_if<AttemptRequeued>(&event)) return &e->id;
  return nullptr;
}

WorkerId Simulation::worker_id_of(const std::string& worker) const {
  for (size_t i = 0; i < state_.workers.size(); i++)
    if (state_.workers[i].info.name == worker) return WorkerId(i);
  return WorkerId(kWorkersMax);
}

bool Simulation::is_connected(const std::string& worker) const {
  WorkerId worker_id = worker_id_of(worker);
  return worker_id < state_.workers.size() && state_.workers[worker_id].is_up;
}

/// A task is set aside when too many of those who ran it are lost: another outcome.
bool Simulation::may_lose(WorkerId worker_id) const {
  for (const auto& [id, run] : state_.runs) {
    for (const Unit& u : run.units) {
      if (u.phase == Phase::running && is_on(u, worker_id) && u.detail &&
          u.detail->deaths.size() >= 2)
        return false;
    }
  }
  return true;
}

std::vector<AttemptId> Simulation::die(const std::string& worker) {
  workers_[worker].is_alive = false;
  std::vector<AttemptId> gone;
  for (const auto& [id, attempt] : attempts_)
    if (attempt.workers.contains(worker)) gone.push_back(id);
  for (const AttemptId& id : gone) drop_ranks(id, worker);
  return gone;
}

// True if the head took a turn for one of them.
bool Simulation::workers_act() {
  if (joins_left_ == 0 || !random_.one_in(12)) return false;
  joins_left_--;
  std::string name = "w" + std::to_string(1 + random_.below(is_contest() ? kContestants : 3));
  if (!is_connected(name)) {
    bool is_known = workers_.contains(name) && workers_[name].is_alive;
    WorkerId worker_id = worker_id_of(name);
    if (is_known || (worker_id < state_.workers.size() && !may_lose(worker_id))) return false;
    WorkerInfo info{name, int32_t(random_.below(4)) * 1000, random_.below(1500), {}};
    if (random_.one_in(2)) info.gpus = machine_gpus();
    if (name != "w3") info.custom_resources = {{"licence", name == "w1" ? 2000 : 500}};
    workers_[name] = {info, true};
    returns_.emplace(now_ + random_.below(20), name);
    return false;
  }
  WorkerId worker_id = worker_id_of(name);
  if (!state_.workers[worker_id].takes_attempts()) return false;
  if (random_.one_in(3)) return drain(name);
  bool dies = may_lose(worker_id) && random_.one_in(2);
  bool is_reported = dies && random_.one_in(2);  // it said goodbye
  return leave(name, dies, is_reported);
}

bool Simulation::drain(const std::string& name) {
  drains_++;
  turn({WorkerDraining{worker_id_of(name), "it is to leave"}});
  departures_.emplace(now_ + random_.below(60), name);
  if (crashed_) recover();
  return true;
}

// Those that drain go when their time has come.
bool Simulation::depart() {
  if (departures_.empty() || departures_.begin()->first > now_) return false;
  std::string name = departures_.begin()->second;
  departures_.erase(departures_.begin());
  bool is_there = is_connected(name) && state_.workers[worker_id_of(name)].is_draining;
  if (!is_there) return false;
  bool dies = may_lose(worker_id_of(name));
  return leave(name, dies, dies);
}

// A worker that dies takes what it runs with it; one that is cut off comes back.
bool Simulation::leave(const std::string& name, bool dies, bool is_reported) {
  WorkerId worker_id = worker_id_of(name);
  std::vector<AttemptId> gone;
  if (dies) gone = die(name);
  losses_ += dies;
  if (dies && is_contest()) workers_[name].is_alive = true;  // another process of that name
  if (workers_[name].is_alive) returns_.emplace(now_ + random_.below(100), name);
  if (is_reported) {
    turn({WorkerLost{worker_id, "killed", true}});
  } else {
    turn({WorkerDisconnected{worker_id, "silent"}});
  }
  if (crashed_) recover();
  for (const AttemptId& id : gone)
    if (!is_current_on(state_, id, worker_id)) send_late_reports(id);
  return true;
}

// True if the head took a turn for a lease that ended, or a worker that left or came back.
bool Simulation::lines_act() {
  if (depart()) return true;
  if (!leases_.empty() && leases_.begin()->first <= now_) {
    std::string name = leases_.begin()->second;
    leases_.erase(leases_.begin());
    WorkerId worker_id = worker_id_of(name);
    if (worker_id == kWorkersMax || !state_.workers[worker_id].is_disconnected) return false;
    if (!may_lose(worker_id)) {
      if (!workers_[name].is_alive) workers_[name].is_alive = true;
      returns_.emplace(now_ + 1, name);
      leases_.emplace(now_ + kLease, name);
      return false;
    }
    losses_++;
    turn({WorkerLost{worker_id, "its lease ended", true}});
    if (crashed_) recover();
    return true;
  }
  if (returns_.empty() || returns_.begin()->first > now_) return false;
  std::string name = returns_.begin()->second;
  returns_.erase(returns_.begin());
  if (is_connected(name) || !workers_[name].is_alive) return false;
  rejoin(name);
  return true;
}

void Simulation::rejoin(const std::string& name) {
  WorkerInfo& info = workers_[name].info;
  WorkerId worker_id = worker_id_of(name);
  bool is_known = worker_id < state_.workers.size();
  bool changes = !is_contest() && random_.one_in(8);
  if (changes && (!is_known || may_lose(worker_id))) {
    info.cpus_milli = int32_t(random_.below(4)) * 1000;
    info.memory_bytes = random_.below(1500);
    for (auto& [resource, milli] : info.custom_resources) milli = milli == 500 ? 2000 : 500;
  } else if (is_known && !may_lose(worker_id)) {
    info = state_.workers[worker_id].info;
  }
  turn({WorkerJoined{info, held_by(name)}});
  if (crashed_) {
    returns_.emplace(now_ + random_.below(100), name);
    return recover();
  }
  resend_reports(name);
}

std::vector<AttemptId> Simulation::held_by(const std::string& worker) {
  // An order that was lost on its way would be one loss too many of these.
  WorkerId worker_id = worker_id_of(worker);
  for (const auto& [id, run] : state_.runs) {
    for (UnitId unit = 0; unit < run.units.size(); unit++) {
      const Unit& u = run.units[unit];
      AttemptId attempt = current_attempt(run, unit);
      if (u.phase != Phase::running || !is_on(u, worker_id) || !u.detail ||
          u.detail->deaths.size() < 2)
        continue;
      auto found = attempts_.find(attempt);
      if (found != attempts_.end() && found->second.workers.contains(worker)) continue;
      if (found == attempts_.end()) {
        attempts_[attempt] = make_attempt(run, unit);
        go_on(attempt);
      } else {
        found->second.workers.insert(worker);
        if (found->second.worker != worker) continue;
        found->second.is_mute = false;
        if (!found->second.has_ended) go_on(attempt);
      }
    }
  }
  std::vector<AttemptId> held;
  for (const auto& [id, attempt] : attempts_)
    if (attempt.workers.contains(worker)) held.push_back(id);
  return held;
}

void Simulation::resend_reports(const std::string& worker) {
  for (const auto& [id, attempt] : attempts_)
    if (attempt.worker == worker && attempt.unacknowledged && !attempt.is_mute)
      send_report(*attempt.unacknowledged, 1, worker);
}

// What the journal now says of workers and of what they have.
void Simulation::note_ends() {
  for (const Record& record : batch_) {
    bool is_start = std::holds_alternative<EngineStarted>(record.event);
    if (is_start || std::holds_alternative<WorkerDisconnected>(record.event)) {
      for (const WorkerState& worker : state_.workers)
        if (worker.is_disconnected) leases_.emplace(now_ + kLease, worker.info.name);
    }
    if (const AttemptId* id = end_of(record.event)) {
      auto found = attempts_.find(*id);
      if (found == attempts_.end()) continue;
      found->second.is_over = true;
      std::string worker = found->second.worker;
      bool is_received = is_connected(worker) && !random_.one_in(4);
      if (is_received) drop_ranks(*id, worker);
    }
  }
  for (const Record& record : batch_) {
    bool is_decided = std::holds_alternative<WorkerLost>(record.event) ||
                      std::holds_alternative<WorkerJoined>(record.event);
    if (!is_decided) continue;
    for (auto& [id, attempt] : attempts_)
      if (!is_current(state_, id)) attempt.is_over = true;
  }
}

void Simulation::check_adopted(const WorkerJoined& event, const State& before) {
  WorkerId worker_id = worker_id_of(event.worker.name);
  for (const AttemptId& id : event.attempts) {
    bool was = is_current_on(before, id, worker_id);
    bool is = is_current_on(state_, id, worker_id);
    adopted_ += is;
    if (was && !is && is_same(event.worker, before.workers[worker_id].info))
      broken("a worker came back with an attempt, which was not adopted");
  }
}

void Simulation::check_started_once(const AttemptId& id) {
  for (const auto& [other, attempt] : attempts_) {
    bool is_of_unit = other.run == id.run && other.unit == id.unit && other != id;
    if (is_of_unit && !attempt.is_mute && !attempt.is_over)
      broken("an attempt that a worker still has was started a second time");
  }
}

}  // namespace flow::sim
