// Clients that try again until the state shows what they asked for, and what they must find.
#include "tests/sim/simulation.hpp"

namespace flow::sim {

using namespace core;

namespace {

/// One that succeeded, whose result somebody removed.
std::vector<UnitId> lost_of(const Run& run) {
  for (UnitId unit = 0; unit < run.units.size(); unit++) {
    const Unit& u = run.units[unit];
    bool may_be = !u.dropped && u.status == UnitStatus::succeeded && !is_service(run, unit) &&
                  run.node(u.node).kind != NodeKind::when && unit % 3 == run.units.size() % 3;
    if (may_be) return {unit};
  }
  return {};
}

}  // namespace

// True if the head took a turn for one of them.
bool Simulation::clients_act() {
  for (auto& [id, client] : clients_) {
    if (outcomes_.contains(id)) continue;
    auto found = state_.runs.find(id);
    if (found == state_.runs.end()) {
      if (now_ < client.starts) continue;
      RunSubmitted e;
      e.run = id;
      e.plan = client.plan;
      e.jobs = client.jobs;
      e.fail_fast = client.fail_fast;
      e.fresh = client.fresh;
      turn({e});
      if (crashed_) recover();
      return true;
    }
    const Run& run = found->second;
    bool waits_for_workers = run.stopping && !run.cancelling && !run.ending && random_.one_in(3);
    if (run.status == RunStatus::interrupted || waits_for_workers) {
      RetryRequested again{id, false, 0};
      if (run.status == RunStatus::interrupted && meddling_left_ > 0) again.lost = lost_of(run);
      network_.emplace(now_, Message{std::move(again), ""});
    } else if (run.status == RunStatus::serving && !run.ending) {
      network_.emplace(now_ + 5, Message{ServeEnded{id}, ""});
    } else if (run.status == RunStatus::waiting && !run.signals.contains(kSignal)) {
      network_.emplace(now_ + 5, Message{SignalReceived{id, kSignal, sha256("go")}, ""});
    }
    if (client.cancels && run.counts.succeeded > 2 && random_.one_in(4)) {
      network_.emplace(now_, Message{CancelRequested{id}, ""});
    }
    if (is_final(run.status)) {
      bool again = meddling_left_ > 0 && !client.retried_once && run.status == RunStatus::succeeded;
      client.retried_once = true;
      if (again)
        network_.emplace(
            now_, Message{RetryRequested{id, true, random_.below(uint32_t(run.units.size()))}, ""});
      if (!again && network_.empty()) {
        check_outcomes();
        return true;
      }
    } else if (meddling_left_ > 0 && random_.one_in(30)) {
      meddling_left_--;
      network_.emplace(now_, Message{StopRequested{id}, ""});
    }
  }
  return false;
}

bool Simulation::all_done() const { return outcomes_.size() == clients_.size(); }

void Simulation::check_outcomes() {
  std::vector<RunId> ended;
  for (const auto& [id, run] : state_.runs) {
    if (!is_final(run.status)) continue;
    Outcome& outcome = outcomes_[id];
    outcome.status = run.status;
    outcome.result = run.result;
    for (UnitId unit = 0; unit < run.units.size(); unit++) {
      const Unit& u = run.units[unit];
      if (!u.dropped) outcome.units[unit_name(run, unit)] = {u.status, u.result};
    }
    const Client& client = clients_.at(id);
    bool depends_on_order = client.fail_fast || client.cancels;
    if (depends_on_order) outcome = Outcome{};
    ended.push_back(id);
  }
  for (const RunId& id : ended) {
    turn({RunDeleted{id}});
    if (crashed_) return recover();
  }
}

// What anybody saw is in the journal.
void Simulation::check_seen() {
  std::set<AttemptId> assigned, ended;
  std::set<std::pair<AttemptId, std::string>> saved;
  for (const Record& record : journal_) {
    if (const auto* e = std::get_if<Assigned>(&record.event)) {
      if (!assigned.insert(e->id).second) return broken("an attempt was assigned twice");
    }
    if (const auto* e = std::get_if<StepSaved>(&record.event)) saved.insert({e->id, e->name});
    if (const auto* e = std::get_if<CheckpointSaved>(&record.event)) saved.insert({e->id, ""});
    if (const AttemptId* id = end_of(record.event); id && !ended.insert(*id).second)
      return broken("an attempt's end was committed twice");
  }
  for (const AttemptId& id : seen_starts_) {
    if (!assigned.contains(id)) return broken("an attempt started that the journal does not know");
  }
  for (const auto& ack : seen_acks_) {
    if (!saved.contains(ack))
      return broken("a step was called durable that the journal does not have");
  }
}

}  // namespace flow::sim
