// The simulated head, workers and clients.
#include "tests/sim/simulation.hpp"

#include <algorithm>

#include "engine/core/gangs.hpp"
#include "engine/sched/sched.hpp"
#include "tests/core/dump.hpp"

namespace flow::sim {

using namespace core;

namespace {

constexpr size_t kTurnsMax = 20'000;
constexpr size_t kInboxMax = 8;

bool is_question(const Command& command) { return command.index() <= 3; }

const AttemptId* attempt_of(const Event& event) {
  return std::visit(
      [](const auto& e) -> const AttemptId* {
        if constexpr (requires { e.id; }) {
          return &e.id;
        } else {
          return nullptr;
        }
      },
      event);
}

}  // namespace

Simulation::Simulation(uint64_t seed, const Weather& weather) : random_(seed), weather_(weather) {
  // What is submitted depends on the seed alone, not on the weather.
  Random plans(seed * 7919 + 1);
  uint32_t runs = 1 + plans.below(3);
  for (uint32_t i = 0; i < runs; i++) {
    Client client;
    client.plan = random_plan(plans.next());
    client.fail_fast = plans.one_in(8);
    client.fresh = plans.one_in(6);
    client.cancels = plans.one_in(10);
    client.jobs = int32_t(plans.below(3));
    client.starts = now_ + plans.below(60);
    clients_["run-" + std::to_string(i)] = client;
  }
  crashes_left_ = weather.crashes ? 6 : 0;
  meddling_left_ = weather.meddling ? 12 : 0;
  comings_left_ = weather.workers ? 12 : 0;
}

std::string Simulation::run() {
  recover();
  for (size_t turns = 0; problem_.empty() && !all_done(); turns++) {
    if (turns == kTurnsMax) {
      broken("it does not end");
      break;
    }
    if (clients_act() || workers_act() || lines_act()) continue;
    Time next = INT64_MAX;
    if (!network_.empty()) next = network_.begin()->first;
    if (!timers_.empty()) next = std::min(next, timers_.begin()->first);
    if (!leases_.empty()) next = std::min(next, leases_.begin()->first);
    if (!returns_.empty()) next = std::min(next, returns_.begin()->first);
    for (const auto& [id, client] : clients_) {
      if (!state_.runs.contains(id) && !outcomes_.contains(id)) {
        next = std::min(next, std::max(client.starts, now_));
      }
    }
    if (next == INT64_MAX && questions_.empty()) {
      broken("nothing can happen any more, but runs are open:\n" + dump(state_));
      break;
    }
    if (next != INT64_MAX) now_ = std::max(now_, next);
    std::vector<Event> inbox;
    while (!network_.empty() && network_.begin()->first <= now_ && inbox.size() < kInboxMax) {
      Message message = std::move(network_.begin()->second);
      network_.erase(network_.begin());
      bool is_cut = !message.from.empty() && !is_connected(message.from);
      if (is_cut && (!weather_.bad_network || random_.one_in(2))) continue;
      inbox.push_back(std::move(message.event));
    }
    while (!timers_.empty() && timers_.begin()->first <= now_) {
      inbox.push_back(timers_.begin()->second);
      timers_.erase(timers_.begin());
    }
    turn(std::move(inbox));
    if (crashed_) recover();
  }
  if (problem_.empty()) check_seen();
  return problem_;
}

// ---- the turn

void Simulation::turn(std::vector<Event> inbox) {
  for (Event& event : inbox) {
    if (admit(state_, event)) step(std::move(event));
  }
  size_t patience = random_.one_in(5) ? random_.below(6) : SIZE_MAX;  // the rest in the next turn
  for (size_t answered = 0; problem_.empty();) {
    for (Command& command : commands_) {
      (is_question(command) ? questions_ : acts_).push_back(std::move(command));
    }
    commands_.clear();
    if (!questions_.empty()) {
      if (answered++ >= patience) break;
      Command question = std::move(questions_.front());
      questions_.erase(questions_.begin());
      answer(question);
      continue;
    }
    std::vector<Event> proposals = schedule(state_, 1 + random_.below(16));
    if (proposals.empty()) break;
    for (Event& proposal : proposals) {
      if (!admit(state_, proposal)) return broken("a proposal of the scheduler was refused");
      step(std::move(proposal));
    }
  }
  if (!problem_.empty()) return;
  if (crash_here()) return crash();
#ifdef FLOW_MUTANT_PERFORM_BEFORE_COMMIT
  std::vector<Command> early = std::move(acts_);
  acts_.clear();
  for (const Command& act : early) {
    if (crash_here()) return crash();
    perform(act);
  }
  if (crash_here()) return crash();
  commit();
#else
  commit();
  if (crash_here()) return crash();
  std::vector<Command> acts = std::move(acts_);
  acts_.clear();
  for (const Command& act : acts) {
    perform(act);
    if (crash_here()) return crash();
  }
#endif
}

bool Simulation::step(Event event) {
  if (const AttemptId* id = attempt_of(event); id && !std::holds_alternative<Assigned>(event)) {
    const Run& run = state_.runs.at(id->run);
    if (current_attempt(run, id->unit) != *id) {
      broken("a straggler entered the journal");
      return false;
    }
  }
  Record record{state_.sequence + 1, now_, std::move(event)};
  if (const auto* joined = std::get_if<HostJoined>(&record.event)) {
    State before = state_;
    apply(state_, record, commands_);
    check_adopted(*joined, before);
  } else {
    apply(state_, record, commands_);
  }
  if (const auto* success = std::get_if<AttemptSucceeded>(&record.event)) {
    const Run& run = state_.runs.at(success->id.run);
    if (def_of(run, success->id.unit)->cache) {
      const Digest& key = run.units[success->id.unit].key;
      staged_cache_[key] = {success->result, success->fragment};
    }
  }
  batch_.push_back(std::move(record));
  std::string wrong = check_invariants(state_);
  if (!wrong.empty()) broken(wrong);
  return problem_.empty();
}

void Simulation::answer(const Command& question) {
  auto submit = [&](Event event) {
    if (admit(state_, event)) step(std::move(event));
  };
  if (const auto* q = std::get_if<ResolveInputs>(&question)) {
    auto found = state_.runs.find(q->run);
    if (found == state_.runs.end()) return;
    const Run& run = found->second;
    if (run.units[q->unit].phase != Phase::resolving) return;
    const TaskDef& def = *def_of(run, q->unit);
    InputsResolved e{q->run, q->unit, key_of(run, q->unit), false, {}, nullptr, {}};
    bool may_hit =
        def.cache && def.kind != TaskKind::service && !run.fresh && !run.units[q->unit].forced;
    for (const auto* cache : {&staged_cache_, &cache_}) {
      auto entry = cache->find(e.key);
      if (!may_hit || e.hit || entry == cache->end()) continue;
      e.hit = true;
      e.result = entry->second.first;
      e.fragment = entry->second.second;
    }
    return submit(std::move(e));
  }
  if (const auto* q = std::get_if<ExpandMap>(&question)) {
    auto found = state_.runs.find(q->run);
    if (found == state_.runs.end() || found->second.units[q->unit].phase != Phase::resolving)
      return;
    return submit(MapExpanded{q->run, q->unit, count_of(found->second, q->unit)});
  }
  if (const auto* q = std::get_if<ResolveWhen>(&question)) {
    auto found = state_.runs.find(q->run);
    if (found == state_.runs.end() || found->second.units[q->unit].phase != Phase::resolving)
      return;
    return submit(WhenResolved{q->run, q->unit, side_of(found->second, q->unit)});
  }
  const auto& q = std::get<GatherValue>(question);
  auto found = state_.runs.find(q.run);
  if (found == state_.runs.end()) return;
  if (q.unit != kNoNode && found->second.units[q.unit].phase != Phase::gathering) return;
  submit(ValueGathered{q.run, q.unit, gathered(found->second, q.unit)});
}

void Simulation::commit() {
  note_ends();
  for (Record& record : batch_) journal_.push_back(std::move(record));
  batch_.clear();
  for (auto& [key, entry] : staged_cache_) cache_[key] = entry;
  staged_cache_.clear();
  committed_dump_ = dump(state_);
  if (!random_.one_in(20)) return;
  snapshot_ = restored(state_);
  snapshot_records_ = journal_.size();
  if (dump(snapshot_) != committed_dump_) broken("a snapshot comes to another state");
}

void Simulation::perform(const Command& act) {
  if (const auto* c = std::get_if<StartAttempt>(&act)) {
    seen_starts_.insert(c->id);
    start_attempt(c->id);
  } else if (const auto* c = std::get_if<StopAttempt>(&act)) {
    stop_attempt(*c);
  } else if (const auto* c = std::get_if<AckSaved>(&act)) {
    ack(*c);
  } else if (const auto* c = std::get_if<SetTimer>(&act)) {
    timers_.emplace(c->at, TimerFired{c->run, c->unit, c->serial});
  }
}

bool Simulation::crash_here() {
  if (crashes_left_ == 0 || !random_.one_in(60)) return false;
  crashes_left_--;
  return true;
}

// The head's own executors die with it; what they had sent may still be on its way. Workers go on.
void Simulation::crash() {
  crash_count_++;
  crashed_ = true;
  if (!weather_.bad_network) network_.clear();
  std::vector<AttemptId> all;
  for (const auto& [id, attempt] : attempts_) all.push_back(id);
  for (const AttemptId& id : all)
    if (drop_ranks(id, "")) straggle(id);
  for (const auto& [name, worker] : workers_)
    if (worker.is_alive) returns_.emplace(now_ + random_.below(60), name);
}

// What an attempt says whose process, or whose host, is believed dead.
void Simulation::straggle(const AttemptId& id) {
  if (!weather_.bad_network || random_.one_in(2)) return;
  AttemptSucceeded straggler{id, sha256("what a straggler says"), nullptr, {}, 1};
  if (random_.one_in(2)) {
    say(straggler, 1 + random_.below(80));
  } else {
    say(AttemptFailed{id, {Cause::preempted, "late", "", 0}}, 1 + random_.below(80));
  }
}

void Simulation::recover() {
  crashed_ = false;
  batch_.clear();
  commands_.clear();
  questions_.clear();
  acts_.clear();
  timers_.clear();
  leases_.clear();
  staged_cache_.clear();
  State recovered;
  size_t from = 0;
  if (snapshot_records_ > 0 && random_.one_in(2)) {
    recovered = restored(snapshot_);
    from = snapshot_records_;
  }
  std::vector<Command> dropped;
  for (size_t i = from; i < journal_.size(); i++) apply(recovered, journal_[i], dropped);
  state_ = std::move(recovered);
  if (!journal_.empty() && dump(state_) != committed_dump_) {
    return broken("a replay comes to another state than the one that was committed");
  }
  check_seen();
  std::vector<Event> first;
  first.push_back(EngineStarted{state_.epoch + 1, int32_t(1000 * (1 + random_.below(4))), 1000});
  first.push_back(GpusFound{machine_gpus()});
  turn(std::move(first));
  if (crashed_) recover();
}

// ---- attempts

// True if rank 0, which speaks for the attempt, was there.
bool Simulation::drop_ranks(const AttemptId& id, const std::string& worker) {
  Attempt& attempt = attempts_.at(id);
  bool is_speaker = attempt.workers.contains(worker) && attempt.worker == worker;
  attempt.is_mute = attempt.is_mute || is_speaker;
  attempt.workers.erase(worker);
  if (attempt.workers.empty()) attempts_.erase(id);
  return is_speaker;
}

void Simulation::say(Event event, Time delay, const std::string& from) {
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
  attempt.worker = state_.hosts[u.host].info.name;
  for (HostId host : hosts_of(u)) attempt.workers.insert(state_.hosts[host].info.name);
  attempt.is_service = is_service(run, unit);
  attempt.has_signal = run.signals.contains(kSignal);
  if (u.extra) {
    for (const auto& [name, wait] : u.extra->waits)
      attempt.expired = attempt.expired || wait.second;
  }
  attempt.steps_left = behaviour_of(u.key).steps;
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
  away_ += u.host > 0;
  gangs_ += attempt.workers.size() > 1;
  attempt.is_mute = !attempt.workers.contains(attempt.worker);
  attempts_[id] = attempt;
  if (attempt.is_mute) return;
  if (meddling_left_ > 0 && random_.one_in(12)) {
    meddling_left_--;
    if (random_.one_in(2)) return end_attempt(id, AttemptReturned{id}, 1);
    return end_attempt(id, AttemptFailed{id, {Cause::preempted, "preempted", "", 0}},
                       1 + random_.below(20));
  }
  go_on(id);
}

// A worker keeps what it has yet to hand over; on the head's machine it is gone with the process.
void Simulation::end_attempt(const AttemptId& id, Event report, Time delay) {
  Attempt& attempt = attempts_.at(id);
  std::string worker = attempt.worker;
  attempt.has_ended = true;
  attempt.owed = report;
  if (worker.empty()) drop_ranks(id, "");
  say(std::move(report), delay, worker);
}

void Simulation::ack(const AckSaved& saved) {
  seen_acks_.insert({saved.id, saved.name});
  auto found = attempts_.find(saved.id);
  if (found == attempts_.end() || !found->second.waits_for_ack) return;
  Attempt& attempt = found->second;
  if (attempt.is_mute || (!attempt.worker.empty() && !is_connected(attempt.worker))) return;
  attempt.waits_for_ack = false;
  attempt.owed.reset();
  go_on(saved.id);
}

void Simulation::go_on(const AttemptId& id) {
  Attempt& attempt = attempts_.at(id);
  const Run& run = state_.runs.at(id.run);
  Behaviour b = behaviour_of(attempt.key);
  Time takes = 1 + random_.below(uint32_t(b.takes));
  if (attempt.is_service) {
    attempt.steps_left = 0;
    return say(ServiceReady{id, "http://" + std::to_string(id.attempt)}, takes);
  }
  if (attempt.steps_left > 0) {
    attempt.steps_left--;
    attempt.waits_for_ack = true;
    attempt.owed = StepSaved{id, "step " + std::to_string(attempt.steps_left), sha256("step")};
    return say(*attempt.owed, takes, attempt.worker);
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
  if (def_of(run, id.unit)->kind == TaskKind::dynamic) e.fragment = calls_of(*run.plan, key);
  e.waited = random_.one_in(8);
  end_attempt(id, std::move(e), takes);
}

void Simulation::stop_attempt(const StopAttempt& stop) {
  auto found = attempts_.find(stop.id);
  if (found == attempts_.end()) return;  // its last report is on its way
  Attempt& attempt = found->second;
  const std::string worker = state_.hosts[stop.host].info.name;
  if (!worker.empty() && !is_connected(worker)) return;  // the order is lost
  if (stop.kill) {
    if (drop_ranks(stop.id, worker)) straggle(stop.id);
    return;
  }
  bool is_speaker = attempt.worker == worker && attempt.workers.contains(worker);
  if (attempt.has_ended || !is_speaker) return;
  if (random_.one_in(2))
    return end_attempt(stop.id, AttemptStopped{stop.id}, 1 + random_.below(10));
  end_attempt(stop.id, AttemptFailed{stop.id, {Cause::stopped, "stopped", "", 15}},
              1 + random_.below(10));
}

// ---- clients: they try again until the state shows what they asked for

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
      network_.emplace(now_, Message{RetryRequested{id, false, 0}, ""});
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

void Simulation::broken(const std::string& promise) {
  if (problem_.empty()) problem_ = promise;
}

}  // namespace flow::sim
