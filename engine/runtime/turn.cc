#include "engine/runtime/turn.hpp"

#include <algorithm>
#include <tuple>
#include <utility>

#include "engine/base/clock.hpp"
#include "engine/runtime/data_locality.hpp"
#include "engine/runtime/event_log.hpp"
#include "engine/sched/sched.hpp"
#include "engine/store/row_keys.hpp"

namespace flow {

namespace {

constexpr size_t kQueriesMax = 16'384;  // resolved per turn; the next turn resolves the rest
constexpr size_t kProposalsMax = 4'096;

bool is_beyond_budget(const core::State& state, const core::Event& proposal) {
  const auto* assigned = std::get_if<core::Assigned>(&proposal);
  if (assigned == nullptr) return false;
  const core::Run& run = state.runs.at(assigned->id.run);
  return run.budget && (run.budget->is_spent || !core::may_spend(state, run, *assigned));
}

/// By index in `effects` from `from` on: whether it changes a unit that a later effect changes
/// again.
std::vector<bool> superseded(const std::vector<core::Command>& effects, size_t from) {
  std::vector<size_t> changes;
  for (size_t i = from; i < effects.size(); i++) {
    if (std::holds_alternative<core::UnitChanged>(effects[i])) changes.push_back(i);
  }
  auto unit_of = [&](size_t effect) {
    const auto& change = std::get<core::UnitChanged>(effects[effect]);
    return std::tie(change.run, change.unit);
  };
  if (!std::ranges::is_sorted(changes, {}, unit_of)) std::ranges::stable_sort(changes, {}, unit_of);
  std::vector<bool> found(effects.size() - from);
  for (size_t i = 1; i < changes.size(); i++)
    found[changes[i - 1] - from] = unit_of(changes[i - 1]) == unit_of(changes[i]);
  return found;
}

struct AttemptEnd {
  const core::AttemptId* id = nullptr;
  core::AttemptUsage* usage = nullptr;
};

/// Nulls for an event that is not the end of an attempt.
AttemptEnd end_of(core::Event& event) {
  auto of = [](auto& end) { return AttemptEnd{&end.id, &end.usage}; };
  if (auto* succeeded = std::get_if<core::AttemptSucceeded>(&event)) return of(*succeeded);
  if (auto* failed = std::get_if<core::AttemptFailed>(&event)) return of(*failed);
  if (auto* waiting = std::get_if<core::AttemptWaiting>(&event)) return of(*waiting);
  auto* stopped = std::get_if<core::AttemptStopped>(&event);
  return stopped == nullptr ? AttemptEnd{} : of(*stopped);
}

/// Adds the time that the report took from its worker to this turn.
void add_commit_time(const PostedEvent& posted, core::Time now, core::AttemptUsage& usage) {
  constexpr int64_t kUsPerMs = 1000;
  if (usage.commit_us < 0) return;
  if (posted.received_us > 0)
    usage.commit_us += std::max<int64_t>(0, monotonic_us() - posted.received_us);
  if (posted.reported_at > 0)
    usage.commit_us += std::max<int64_t>(0, now - posted.reported_at) * kUsPerMs;
}

}  // namespace

void Turn::run(std::vector<TurnInput> inputs, bool may_defer) {
  bool is_alone = std::any_of(inputs.begin(), inputs.end(), [](const TurnInput& input) {
    return std::holds_alternative<StoreCallback>(input.what);
  });
  if (is_alone) group_commit_.commit(false);
  decide(std::move(inputs));
  group_commit_.commit(may_defer && !is_alone);
}

void Turn::decide(std::vector<TurnInput> inputs) {
  if (state_.runs.empty()) clock_.catch_up();
  core::Time now = clock_.now();
  recorder_.begin_turn(now);
  size_t effects_before = open_.effects.size();
  for (TurnInput& input : inputs) {
    bool admitted = std::visit([&](auto& what) { return handle(what, now); }, input.what);
    if (input.outcome) open_.outcomes.emplace_back(std::move(input.outcome), admitted);
  }
  workers_.lose_waiting();
  scheduling_.run_until_stable(now, open_.effects);
  if (active_runs_.has_waiting_calls()) active_runs_.end_waiting_calls(open_.outcomes);
  if (!open_.records.empty()) saved_clock_.save(open_.batch);
  open_.is_durable = open_.is_durable || !open_.records.empty();
  orders_.take_early_starts(open_.effects, effects_before);
  updates_.add(open_, effects_before);
}

bool Turn::handle(PostedEvent& posted, core::Time now) {
  bool has_use_of_ranks = gangs_.replace_by_first_failure(posted.event);
  if (!core::admit(state_, posted.event)) {
    log_rejected_report(state_, posted.event, posted.reporter);
    return false;
  }
  if (const auto* success = std::get_if<core::AttemptSucceeded>(&posted.event))
    gangs_.expect_rank_ends(success->id);
  for (auto& [digest, bytes] : posted.blobs) blobs_.stage(digest, std::move(bytes));
  for (auto& [key, value] : posted.metadata)
    open_.batch.put(Family::kv, std::move(key), std::move(value));
  core::Time at = time_of(posted, now);
  if (AttemptEnd end = end_of(posted.event); end.usage != nullptr) {
    add_commit_time(posted, now, *end.usage);
    if (!has_use_of_ranks) gangs_.add_use_of_ranks(*end.id, *end.usage);
  }
  recorder_.record(std::move(posted.event), at);
  return true;
}

// The row is keyed by the name and the key of the task instance, which only a turn may look up.
bool Turn::handle(SavedProgress& saved, core::Time now) {
  if (!core::admit(state_, saved.event)) {
    log_rejected_report(state_, saved.event, saved.reporter);
    return false;
  }
  const core::AttemptId& id = saved.attempt;
  const core::Run& run = state_.runs.at(id.run);
  const Digest& key = run.units[id.unit].key;
  std::string task = core::unit_name(run, id.unit);
  std::string row = saved.step.empty() ? checkpoint_key(id.run, task, key)
                                       : step_prefix(id.run, task, key) + saved.step;
  open_.batch.put(Family::kv, std::move(row), std::move(saved.value));
  for (auto& [digest, bytes] : saved.blobs) blobs_.stage(digest, std::move(bytes));
  recorder_.record(std::move(saved.event), now);
  return true;
}

bool Turn::handle(AttemptLog& log, core::Time) {
  open_.log_cost += log.cost;
  updates_.add_log(log);
  logs_.add(std::move(log), open_.batch);
  return true;
}

bool Turn::handle(AttemptMetric& metric, core::Time) {
  open_.log_cost += metric.cost;
  updates_.add_metric(metric);
  metrics_.add(metric, open_.batch);
  return true;
}

bool Turn::handle(StateCallback& callback, core::Time) {
  callback.run(open_.batch, state_);
  return true;
}

bool Turn::handle(StoreCallback& callback, core::Time) {
  callback.run(open_.batch, state_);
  open_.is_durable = true;
  return true;
}

// An end may be reported late, because the worker was not connected when the attempt ended.
core::Time Turn::time_of(const PostedEvent& posted, core::Time now) const {
  if (posted.reported_at == 0) return now;
  const core::AttemptId& id = posted.attempt;
  core::Time assigned = state_.runs.at(id.run).units[id.unit].assigned;
  return std::clamp(posted.reported_at, std::min(assigned, now), now);
}

void Scheduling::run_until_stable(core::Time now, std::vector<core::Command>& effects) {
  size_t resolved_count = 0;
  InputLocality inputs(state_, resolver_, blob_directory_);
  while (true) {
    recorder_.drain_commands([&](core::Command&& command) {
      if (is_query(command)) {
        queries_.push(std::move(command));
      } else {
        effects.push_back(std::move(command));
      }
    });
    if (!queries_.empty()) {
      if (resolved_count >= kQueriesMax) return;
      resolved_count += queries_.resolve_some(now);
      continue;
    }
    std::vector<core::Event> proposals = core::schedule(state_, kProposalsMax, &inputs);
    if (proposals.empty()) proposals = next_resize();
    if (proposals.empty()) return;
    for (core::Event& proposal : proposals) {
      // The first one has moved the state's time to `now`, until when running attempts cost more.
      if (&proposal != proposals.data() && is_beyond_budget(state_, proposal)) break;
      // A rejected one would be proposed again and again: the turn would not end.
      bool is_admitted = recorder_.record_if_admitted(std::move(proposal), now);
      FLOW_CHECK(is_admitted);
    }
  }
}

// Only when all that is ready has been placed. A gang that has just saved a checkpoint loses least.
std::vector<core::Event> Scheduling::next_resize() {
  while (auto attempt = recorder_.take_checkpointed()) {
    auto resize = core::elastic_scale_up(state_, *attempt, grow_after_);
    if (resize) return {*resize};
  }
  return {};
}

// Usually all effects are of one run.
void RunUpdates::expect_units(const Commit& open, size_t from,
                              const std::vector<bool>& is_superseded) {
  const core::RunId* run = nullptr;
  size_t count = 0;
  for (size_t i = from; i < open.effects.size(); i++) {
    const auto* unit = std::get_if<core::UnitChanged>(&open.effects[i]);
    if (unit == nullptr || is_superseded[i - from]) continue;
    run = &unit->run;
    count++;
  }
  if (run != nullptr) feed_.expect_units(*run, count);
}

// Listeners learn what the turn made of a unit, not the steps in between.
void RunUpdates::add(Commit& open, size_t from) {
  std::vector<bool> is_superseded = superseded(open.effects, from);
  expect_units(open, from, is_superseded);
  for (size_t i = from; i < open.effects.size(); i++) {
    const core::Command& effect = open.effects[i];
    if (const auto* unit = std::get_if<core::UnitChanged>(&effect)) {
      if (!is_superseded[i - from]) feed_.notify_unit(unit->run, unit->unit);
    } else if (const auto* run = std::get_if<core::RunChanged>(&effect)) {
      run_changed(run->run, open.batch);
    } else if (const auto* budget = std::get_if<core::WarnOfBudget>(&effect)) {
      feed_.warn_of_budget(budget->run);
    } else if (const auto* ended = std::get_if<core::RunEnded>(&effect)) {
      run_ended(ended->run, open.batch);
    }
  }
}

void RunUpdates::run_changed(const core::RunId& run, Batch& batch) {
  stored_runs_.put_record(run, batch);
  if (auto end = active_runs_.take_serve_end(run, clock_.now(), batch))
    timers_.end_serving(run, *end);
  feed_.notify_run(run);
}

void RunUpdates::run_ended(const core::RunId& run, Batch& batch) {
  stored_runs_.archive(run, batch);
  logs_.forget(run);
  metrics_.forget(run);
  gangs_.forget(run);
}

}  // namespace flow
