// Attempts in the head's executors and in workers: what they say, and what becomes of it.
#include "engine/core/gangs.hpp"
#include "tests/sim/simulation.hpp"

namespace flow::sim {

using namespace core;

// True if rank 0, which speaks for the attempt, was there.
bool Simulation::drop_ranks(const AttemptId& id, const std::string& worker) {
  Attempt& attempt = attempts_.at(id);
  bool is_speaker = attempt.workers.contains(worker) && attempt.worker == worker;
  attempt.is_mute = attempt.is_mute || is_speaker;
  attempt.workers.erase(worker);
  if (attempt.workers.empty()) attempts_.erase(id);
  return is_speaker;
}

void Simulation::send_report(Event event, Time delay, const std::string& from) {
  if (weather_.bad_network) {
    delay += random_.below(10);
    if (random_.one_in(10)) delay += random_.below(200);  // late
    if (random_.one_in(10))                               // twice
      network_.emplace(now_ + delay + random_.below(100), Message{event, from});
  }
  network_.emplace(now_ + delay, Message{std::move(event), from});
}

Simulation::Attempt Simulation::make_attempt(const Run& run, UnitId unit) const {
  const Unit& u = run.units[unit];
  Attempt attempt;
  attempt.id = current_attempt(run, unit);
  attempt.key = u.key;
  attempt.worker = state_.workers[u.worker].info.name;
  for (WorkerId worker : workers_of(u)) attempt.workers.insert(state_.workers[worker].info.name);
  attempt.is_service = is_service(run, unit);
  attempt.has_signal = run.signals.contains(kSignal);
  if (u.detail) {
    for (const auto& [name, wait] : u.detail->waits)
      attempt.expired = attempt.expired || wait.second;
  }
  attempt.steps_left = behaviour_of(u.key).steps;
  bool is_elastic = def_of(run, unit)->resources.ranks_max > def_of(run, unit)->resources.ranks;
  if (is_elastic) attempt.steps_left += 10;
  return attempt;
}

void Simulation::start_attempt(const AttemptId& id) {
  const Run& run = state_.runs.at(id.run);
  const Unit& u = run.units[id.unit];
  if (u.phase != Phase::running || current_attempt(run, id.unit) != id) return;
  check_started_once(id);
  Attempt attempt = make_attempt(run, id.unit);
  std::erase_if(attempt.workers, [&](const std::string& worker) {
    return !worker.empty() && !is_connected(worker);  // the order is lost
  });
  if (attempt.workers.empty()) return;
  remote_ += u.worker > 0;
  gangs_ += attempt.workers.size() > 1;
  attempt.is_mute = !attempt.workers.contains(attempt.worker);
  attempts_[id] = attempt;
  if (attempt.is_mute) return;
  if (meddling_left_ > 0 && random_.one_in(12)) {
    meddling_left_--;
    if (random_.one_in(2)) return end_attempt(id, AttemptRequeued{id}, 1);
    Cause cause = id.attempt % 2 == 0 ? Cause::preempted : Cause::staging;
    return end_attempt(id, AttemptFailed{id, {cause, "meddled with", "", 0}},
                       1 + random_.below(20));
  }
  if (rank_breaks(attempt)) {
    send_report(AttemptFailed{id, {Cause::preempted, "rank 1 of it broke", "", 0}},
                1 + random_.below(40), *attempt.workers.rbegin());
  }
  go_on(id);
}

/// Another rank than the one that speaks.
bool Simulation::rank_breaks(const Attempt& attempt) {
  bool may = meddling_left_ > 0 && attempt.workers.size() > 1 && random_.one_in(4);
  meddling_left_ -= may;
  return may;
}

// A worker keeps what it has yet to hand over; on the head's machine it is gone with the process.
void Simulation::end_attempt(const AttemptId& id, Event report, Time delay) {
  Attempt& attempt = attempts_.at(id);
  std::string worker = attempt.worker;
  attempt.has_ended = true;
  attempt.unacknowledged = report;
  if (worker.empty()) drop_ranks(id, "");
  send_report(std::move(report), delay, worker);
}

void Simulation::ack(const AckSaved& saved) {
  seen_acks_.insert({saved.id, saved.name});
  auto found = attempts_.find(saved.id);
  if (found == attempts_.end() || !found->second.waits_for_ack) return;
  Attempt& attempt = found->second;
  if (attempt.is_mute || (!attempt.worker.empty() && !is_connected(attempt.worker))) return;
  attempt.waits_for_ack = false;
  attempt.unacknowledged.reset();
  go_on(saved.id);
}

void Simulation::go_on(const AttemptId& id) {
  Attempt& attempt = attempts_.at(id);
  const Run& run = state_.runs.at(id.run);
  Behaviour b = behaviour_of(attempt.key);
  Time takes = 1 + random_.below(uint32_t(b.takes));
  if (attempt.is_service) {
    attempt.steps_left = 0;
    return send_report(ServiceReady{id, "http://" + std::to_string(id.attempt)}, takes);
  }
  if (attempt.steps_left > 0) {
    attempt.steps_left--;
    attempt.waits_for_ack = true;
    if (attempt.steps_left % 2 == 0) {
      attempt.unacknowledged =
          StepSaved{id, "step " + std::to_string(attempt.steps_left), sha256("step")};
    } else {
      attempt.unacknowledged = CheckpointSaved{id, sha256("state")};
    }
    return send_report(*attempt.unacknowledged, takes, attempt.worker);
  }
  Digest key = attempt.key;
  bool waits = (b.kind == Behaviour::Kind::waits_for_signal && !attempt.has_signal) ||
               (b.kind == Behaviour::Kind::waits_for_deadline && !attempt.expired);
  if (waits) {
    bool by_signal = b.kind == Behaviour::Kind::waits_for_signal;
    return end_attempt(
        id,
        AttemptWaiting{id, by_signal ? kSignal : "never", "wait", by_signal ? 0 : now_ + kDeadline},
        takes);
  }
  uint32_t& failures = own_failures_[{id.run, key}];
  if (b.kind == Behaviour::Kind::fails || failures < b.failures) {
    failures++;
    return end_attempt(id, AttemptFailed{id, {Cause::user_error, "it fails", "", 1}}, takes);
  }
  AttemptSucceeded e{id, result_of(key), nullptr, {}, int64_t{random_.below(9000)}};
  if (is_contest()) e.duration_us = takes * 1000;
  if (def_of(run, id.unit)->kind == TaskKind::dynamic) e.fragment = calls_of(*run.plan, key);
  e.waited = random_.one_in(8);
  end_attempt(id, std::move(e), takes);
}

void Simulation::stop_attempt(const StopAttempt& stop) {
  auto found = attempts_.find(stop.id);
  if (found == attempts_.end()) return;  // its last report is on its way
  Attempt& attempt = found->second;
  const std::string worker = state_.workers[stop.worker].info.name;
  if (!worker.empty() && !is_connected(worker)) return;  // the order is lost
  if (stop.kill) {
    if (drop_ranks(stop.id, worker)) send_late_reports(stop.id);
    return;
  }
  bool is_speaker = attempt.worker == worker && attempt.workers.contains(worker);
  bool has_pending_report = is_speaker && attempt.has_ended;
  if (attempt.is_over && !has_pending_report) {  // after a success: the others are at their own end
    drop_ranks(stop.id, worker);
    return;
  }
  if (attempt.has_ended || !is_speaker) return;
  if (random_.one_in(2))
    return end_attempt(stop.id, AttemptStopped{stop.id}, 1 + random_.below(10));
  end_attempt(stop.id, AttemptFailed{stop.id, {Cause::stopped, "stopped", "", 15}},
              1 + random_.below(10));
}

// The journal says that the attempt is over: what is left of it, on every machine that hears so,
// was told to end. A speaker may have its last report to hand over.
void Simulation::check_ranks_ended() {
  for (const auto& [id, attempt] : attempts_) {
    if (!attempt.is_over) continue;
    for (const std::string& worker : attempt.workers) {
      bool has_pending_report = worker == attempt.worker && attempt.has_ended;
      if (is_connected(worker) && !has_pending_report)
        broken("a rank runs on, of an attempt that is over");
    }
  }
}

// What an attempt says whose process, or whose host, is believed dead.
void Simulation::send_late_reports(const AttemptId& id) {
  if (!weather_.bad_network || random_.one_in(2)) return;
  AttemptSucceeded straggler{id, sha256("what a straggler says"), nullptr, {}, 1};
  if (random_.one_in(2)) {
    send_report(straggler, 1 + random_.below(80));
  } else {
    send_report(AttemptFailed{id, {Cause::preempted, "late", "", 0}}, 1 + random_.below(80));
  }
}

}  // namespace flow::sim
