// The simulated head's turn, its disk and its crashes.
#include "engine/sched/sched.hpp"
#include "tests/core/dump.hpp"
#include "tests/sim/simulation.hpp"

namespace flow::sim {

using namespace core;

namespace {

constexpr Time kGrowAfter = 3;

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

bool is_of_workers(const Event& event) {
  return std::holds_alternative<EngineStarted>(event) ||
         std::holds_alternative<WorkerJoined>(event) ||
         std::holds_alternative<WorkerDisconnected>(event) ||
         std::holds_alternative<WorkerDraining>(event) || std::holds_alternative<WorkerLost>(event);
}

}  // namespace

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
    if (proposals.empty()) proposals = next_resize();
    if (proposals.empty()) break;
    for (Event& proposal : proposals) {
      if (!admit(state_, proposal)) return broken("a proposal of the scheduler was refused");
      step(std::move(proposal));
    }
  }
  if (!problem_.empty()) return;
  if (crash_here()) return crash();
  commit();
  if (crash_here()) return crash();
  std::vector<Command> acts = std::move(acts_);
  acts_.clear();
  for (const Command& act : acts) {
    perform(act);
    if (crash_here()) return crash();
  }
  check_ranks_ended();
  watch_gangs();
}

std::vector<Event> Simulation::next_resize() {
  while (!saved_.empty()) {
    auto resize = core::elastic_scale_up(state_, saved_.back(), kGrowAfter);
    saved_.pop_back();
    if (!resize) continue;
    grown_++;
    return {*resize};
  }
  return {};
}

bool Simulation::step(Event event) {
  if (const AttemptId* id = attempt_of(event); id && !std::holds_alternative<Assigned>(event)) {
    const Run& run = state_.runs.at(id->run);
    if (current_attempt(run, id->unit) != *id) {
      broken("a straggler entered the journal");
      return false;
    }
  }
  if (const auto* assigned = std::get_if<Assigned>(&event)) note_overtaking(*assigned);
  if (is_of_workers(event)) waiting_.reset();
  Record record{state_.sequence + 1, now_, std::move(event)};
  if (const auto* joined = std::get_if<WorkerJoined>(&record.event)) {
    State before = state_;
    apply(state_, record, commands_);
    check_adopted(*joined, before);
  } else {
    apply(state_, record, commands_);
  }
  if (const auto* saved = std::get_if<CheckpointSaved>(&record.event)) saved_.push_back(saved->id);
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
    return submit(WhenResolved{q->run, q->unit, takes_then_branch(found->second, q->unit)});
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
    if (drop_ranks(id, "")) send_late_reports(id);
  for (const auto& [name, worker] : workers_)
    if (worker.is_alive) returns_.emplace(now_ + random_.below(60), name);
}

void Simulation::recover() {
  crashed_ = false;
  batch_.clear();
  commands_.clear();
  questions_.clear();
  saved_.clear();
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
  int32_t cpus_milli = is_contest() ? 0 : int32_t(1000 * (1 + random_.below(4)));
  first.push_back(EngineStarted{state_.epoch + 1, cpus_milli, 1000, {{"licence", 1000}}});
  if (!is_contest()) first.push_back(GpusFound{machine_gpus()});
  turn(std::move(first));
  if (crashed_) recover();
}

}  // namespace flow::sim
