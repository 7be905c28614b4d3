// Events of units and attempts.
#include <algorithm>
#include <set>

#include "engine/core/gangs.hpp"
#include "engine/core/gpu_faults.hpp"
#include "engine/core/retry.hpp"
#include "engine/core/rollover.hpp"
#include "engine/core/scaling.hpp"
#include "engine/core/transition.hpp"
#include "engine/core/workers.hpp"

namespace flow::core {

namespace {

constexpr const char* kWorkerLine = "\nworker: ";  // the last of a failure's message
constexpr int64_t kDurationMaxUs = int64_t{1} << 30;

std::shared_ptr<UnitDetail> copy_of(const Unit& u) {
  return u.detail ? std::make_shared<UnitDetail>(*u.detail) : std::make_shared<UnitDetail>();
}

// Updates the moving average by which the scheduler knows short tasks.
void learn_duration(Run& run, UnitId unit, int64_t duration_us) {
  if (duration_us <= 0) return;
  uint32_t def = run.node(run.units[unit].node).def;
  FLOW_CHECK(def < run.durations_us.size());
  int64_t last = std::min(duration_us, kDurationMaxUs);
  int64_t usual = run.durations_us[def];
  run.durations_us[def] = static_cast<uint32_t>(usual == 0 ? last : (3 * usual + last) / 4);
}

/// Why no worker can run an attempt with these resources, as a clause; "" if one may.
std::string unsatisfiable_reason(const State& state, const TaskDef& def,
                                 const Resources& requested) {
  bool is_head_only = core::is_head_only(def);
  std::string reason = gpu_unsatisfiable_reason(state, requested, is_head_only);
  if (reason.empty()) reason = selector_unsatisfiable_reason(state, requested);
  if (reason.empty()) reason = custom_resource_unsatisfiable_reason(state, requested, is_head_only);
  return reason.empty() ? gang_unsatisfiable_reason(state, requested) : reason;
}

}  // namespace

void apply(State& state, const Record& record, std::vector<Command>& out) {
  FLOW_CHECK(record.sequence == state.sequence + 1);
  state.sequence = record.sequence;
  // A starting engine without active runs adopts the clock's time, which may have been set back.
  bool may_set_back =
      std::holds_alternative<EngineStarted>(record.event) &&
      std::ranges::all_of(state.runs, [](const auto& run) { return is_final(run.second.status); });
  Time former_at = state.at;
  // A late report carries an earlier time.
  state.at = may_set_back ? record.at : std::max(state.at, record.at);
  Transition transition(state, record.at, former_at, out);
  std::visit([&](const auto& event) { transition.on(event); }, record.event);
  transition.propagate();
}

void Transition::on(const InputsResolved& event) {
  Run& r = run(event.run);
  Unit& u = r.units[event.unit];
  FLOW_CHECK(u.phase == Phase::resolving);
  touch(r);
  u.key = event.key;
  u.resolved = true;
  if (event.hit) {
    u.cached = true;
    if (event.fragment) return append_calls(r, event.unit, event.fragment, event.fragment_digest);
    return succeed(r, event.unit, event.result);
  }
  if (r.stopping || is_spare(r, event.unit)) return to_parked(r, event.unit);
  const TaskDef& def = *def_of(r, event.unit);
  std::string reason = unsatisfiable_reason(state_, def, def.resources);
  if (!reason.empty() && !is_further_replica(r, event.unit)) {
    reason = "`" + shown_name(r, event.unit) + "` " + reason;
    return fail(r, event.unit, {Cause::user_error, std::move(reason), "", 0});
  }
  if (acquire_key(r, event.unit)) return to_ready(r, event.unit);
  wait_for_duplicate(r, event.unit);
}

void Transition::on(const InputsFailed& event) {
  Run& r = run(event.run);
  touch(r);
  fail(r, event.unit, event.failure);
}

void Transition::on(const InputsMissing& event) {
  Run& r = run(event.run);
  touch(r);
  UnitDetail detail;
  detail.failure = {Cause::dependency, event.why, "", 0};
  end_missing(r, event.unit, UnitStatus::skipped,
              std::make_shared<const UnitDetail>(std::move(detail)));
}

void Transition::on(const MapExpanded& event) {
  Run& r = run(event.run);
  FLOW_CHECK(r.units[event.unit].phase == Phase::resolving);
  touch(r);
  if (!check_unit_limit(r, event.unit, event.count)) return;
  std::string conflict = tag_conflict(r, event.unit, event.tags);
  if (!conflict.empty())
    return fail(r, event.unit, {Cause::user_error, std::move(conflict), "", 0});
  append_instances(r, event.unit, event.count);
  if (event.count == 0) return complete_map(r, event.unit);
  UnitId end = static_cast<UnitId>(r.units.size());
  for (size_t i = 0; i < event.tags.size(); i++)
    r.tags[end - event.count + static_cast<UnitId>(i)] = event.tags[i];
  if (!event.tags.empty()) add_tagged(r, end - event.count);
  for (UnitId instance = end - event.count; instance < end; instance++) advance(r, instance);
}

// No worker may have what the functions returned: then the unit would wait forever.
void Transition::on(const ResourcesComputed& event) {
  Run& r = run(event.run);
  Unit& u = r.units[event.unit];
  FLOW_CHECK(u.phase == Phase::sizing);
  touch(r);
  const Resources& computed = event.computed.resources;
  std::string reason = too_large_reason(state_, *def_of(r, event.unit), computed);
  if (reason.empty()) reason = unsatisfiable_reason(state_, *def_of(r, event.unit), computed);
  if (!reason.empty()) {
    reason = "`" + shown_name(r, event.unit) + "` " + reason + " (its options are functions)";
    return fail(r, event.unit, {Cause::user_error, std::move(reason), "", 0});
  }
  auto detail = copy_of(u);
  detail->computed = std::make_shared<const AttemptResources>(event.computed);
  u.detail = std::move(detail);
  to_ready(r, event.unit);
}

void Transition::on(const WhenResolved& event) {
  Run& r = run(event.run);
  Unit& u = r.units[event.unit];
  FLOW_CHECK(u.phase == Phase::resolving);
  touch(r);
  u.branch = event.then_branch ? Branch::then_branch : Branch::else_branch;
  // The join first: the value of its branch may refer to units that the loop below releases.
  wait_for_result(r, event.unit);
  for_each_dependent(r, event.unit, [&](UnitId dependent, bool guard) {
    if (!guard || r.units[dependent].phase != Phase::waiting_for_dependencies) return;
    if (is_satisfied(r, dependent, {event.unit, true})) return satisfy(r, dependent);
    skips_.push_back({r.id, dependent, nullptr});
  });
}

void Transition::on(const ValueGathered& event) {
  Run& r = run(event.run);
  touch(r);
  if (event.unit == kNoNode) {
    r.gathering = false;
    r.has_result = true;
    r.result = event.result;
    return;
  }
  FLOW_CHECK(r.units[event.unit].phase == Phase::gathering);
  succeed(r, event.unit, event.result);
}

void Transition::on(const Assigned& event) {
  Run& r = run(event.id.run);
  UnitId unit = event.id.unit;
  FLOW_CHECK(r.units[unit].phase == Phase::ready);
  touch(r);
  leave(r, unit);
  Unit& u = r.units[unit];
  u.worker = event.worker;
  u.attempts = event.id.attempt;
  u.epoch = event.id.epoch;
  u.requeues = 0;
  u.started = at_;
  u.assigned = at_;
  begin_usage(r, unit);
  u.expected_us = expected_short_us(r, unit);
  bool runs_alone = is_suspect(u), was_alone = u.detail && u.detail->runs_alone;
  bool was_ready = u.detail && u.detail->was_ready;
  if (!event.gpus.empty() || resources_of(r, unit).is_gang() || runs_alone != was_alone ||
      was_ready) {
    auto detail = copy_of(u);
    bool grew = detail->is_resizing && event.others.size() > detail->others.size();
    detail->grew_from = grew ? static_cast<uint32_t>(detail->others.size() + 1) : 0;
    detail->is_resizing = false;
    detail->runs_alone = runs_alone;
    detail->gpus = event.gpus;
    detail->others = event.others;
    detail->share = event.share;
    detail->was_ready = false;
    detail->ready_at = 0;
    u.detail = std::move(detail);
  }
  r.cpus_used_milli += take_ranks(state_, r, unit);
  if (r.budget) r.budget->running.insert(unit);
  note_change(r, unit);
  if (UnitId map = limited_map_of(r, unit); map != kNoNode) r.map_running[map]++;
  move(r, unit, Phase::running, UnitStatus::running);
  emit(StartAttempt{event.id});
}

void Transition::on(const AttemptRequeued& event) {
  Run& r = run(event.id.run);
  Unit& u = r.units[event.id.unit];
  if (!end_attempt(r, event.id.unit, std::nullopt)) return;
  // The token has no number left for one more return: this attempt keeps its number, and the next
  // attempt's number makes its id unique.
  constexpr uint64_t kRequeuesMax = (uint64_t{1} << kRequeuesBits) - 1;
  uint64_t requeues = u.epoch & kRequeuesMax;
  bool is_last = requeues == kRequeuesMax;
  if (!is_last) u.attempts--;
  u.requeues = is_last ? 0 : static_cast<uint16_t>(requeues + 1);
  if (r.ending && is_service(r, event.id.unit)) return end_service(r, event.id.unit);
  Time ready = u.ready;  // it waits since then
  to_ready(r, event.id.unit);
  u.ready = ready;
}

void Transition::on(const AttemptSucceeded& event) {
  Run& r = run(event.id.run);
  note_usage(event.id, event.usage);
  UnitId unit = event.id.unit;
  bool service = is_service(r, unit);
  if (service && !r.ending && !is_winding_down(r)) {
    Failure failure{
        Cause::user_error,
        "the service `" + shown_name(r, unit) + "` ended by itself: its function returned", "", 0};
    WorkerId at = r.units[unit].worker;
    if (!end_attempt(r, unit, AttemptEnding::failed)) return;
    return retry_or_fail(r, unit, failure, {at});
  }
  if (!end_attempt(r, unit, AttemptEnding::succeeded, false)) return;
  clear(r.units[unit]);
  if (service) return end_service(r, unit);
  learn_duration(r, unit, event.duration_us);
  if (event.waited) restrict_key_to_run(r, unit);
  if (!event.fragment) return succeed(r, unit, event.result);
  if (is_winding_down(r)) return to_ready(r, unit);  // its calls would start
  append_calls(r, unit, event.fragment, event.fragment_digest);
  publish_result(r, unit);
}

void Transition::on(const AttemptFailed& event) {
  Run& r = run(event.id.run);
  note_usage(event.id, event.usage);
  UnitId unit = event.id.unit;
  Failure failure = cause_on_gpu(state_, r.units[unit], event.failure);
  Ending ending{worker_of_rank(r.units[unit], event.rank)};
  ending.is_gpu = failure.cause == Cause::gpu_fault;
  ending.is_death = event.worker_died || ending.is_gpu;
  if (ending.is_death) ending.co_located = co_located(ending.worker, r, unit);
  bool names_worker = event.worker_died || ending.is_gpu || ending.worker == 0 ||
                      budget_of(failure.cause) == RetryBudget::none;
  if (!names_worker) failure.message += kWorkerLine + state_.workers[ending.worker].info.name;
  if (!is_lasting(failure)) record_worker_failure(ending.worker, r, unit, failure.cause);
  fail_attempt(r, unit, failure, ending);
}

void Transition::on(const AttemptWaiting& event) {
  Run& r = run(event.id.run);
  note_usage(event.id, event.usage);
  UnitId unit = event.id.unit;
  if (!end_attempt(r, unit, AttemptEnding::succeeded)) return;
  Unit& u = r.units[unit];
  auto detail = copy_of(u);
  // A wait that an earlier attempt began keeps its deadline.
  Time deadline =
      detail->waits.try_emplace(event.wait_name, event.deadline, false).first->second.first;
  bool answered = r.signals.contains(event.signal);
  if (!answered) {
    detail->waiting_for = event.signal;
    detail->wait_name = event.wait_name;
  }
  u.detail = std::move(detail);
  restrict_key_to_run(r, unit);
  if (answered || is_winding_down(r)) return to_ready(r, unit);
  move(r, unit, Phase::signal, UnitStatus::waiting);
  r.signal_waiters[event.signal].insert(unit);
  if (deadline != 0) start_timer(r, unit, deadline);
}

void Transition::on(const AttemptStopped& event) {
  Run& r = run(event.id.run);
  note_usage(event.id, event.usage);
  if (!end_attempt(r, event.id.unit, AttemptEnding::stopped)) return;
  if (r.ending && is_service(r, event.id.unit)) return end_service(r, event.id.unit);
  to_ready(r, event.id.unit);
}

void Transition::on(const ServiceReady& event) {
  Run& r = run(event.id.run);
  Unit& u = r.units[event.id.unit];
  touch(r);
  UnitId own = r.unit_of(u.node);  // of a replica: its set
  bool is_replica = is_replica_set(r, own);
  bool is_only = !is_replica || std::ranges::none_of(instances_of(r, own), [&](UnitId other) {
    return is_up(r.units[other]);
  });
  auto detail = copy_of(u);
  detail->url = event.url;
  detail->was_ready = true;
  detail->ready_at = at_;
  if (state_.restarts_services) detail->deaths.clear();  // it does not kill what runs it
  bool was_alone = state_.restarts_services && detail->runs_alone;
  if (was_alone) {
    r.cpus_used_milli -= release_ranks(state_, r, event.id.unit);
    detail->runs_alone = false;
  }
  u.detail = std::move(detail);
  if (was_alone) r.cpus_used_milli += take_ranks(state_, r, event.id.unit);
  r.services_up++;
  if (is_only) emit(UnitChanged{r.id, is_replica ? own : event.id.unit});
  satisfy_dependents(r, event.id.unit);
  if (is_replica) satisfy_dependents(r, own);
}

void Transition::on(const StepSaved& event) {
  note_progress(event.id);
  emit(AckSaved{event.id, event.name});
}

void Transition::on(const CheckpointSaved& event) {
  note_progress(event.id);
  emit(AckSaved{event.id, ""});
}

// As in a stopped run, the attempt ends with its state saved and costs no retry.
void Transition::on(const ResizeRequested& event) {
  Run& r = run(event.id.run);
  Unit& u = r.units[event.id.unit];
  auto detail = copy_of(u);
  detail->is_resizing = true;
  u.detail = std::move(detail);
  stop_attempt(r, event.id.unit);
}

void Transition::on(const SignalReceived& event) {
  Run& r = run(event.run);
  touch(r);
  note_action(r, {ActionKind::signal, at_, event.by, event.name});
  r.signals.emplace(event.name, event.value);
  auto waiters = r.signal_waiters.find(event.name);
  if (waiters == r.signal_waiters.end()) return;
  std::set<UnitId> units = waiters->second;
  for (UnitId unit : units) {
    leave(r, unit);
    to_ready(r, unit);
  }
}

void Transition::on(const TimerFired& event) {
  if (event.run.empty()) {
    state_.workers[event.unit].aside_until = 0;
    return;
  }
  Run& r = run(event.run);
  if (event.unit == kNoNode) return observed(r);
  if (event.unit == kBudgetTimer) return budget_timer_fired(r);
  touch(r);
  Unit& u = r.units[event.unit];
  if (u.phase == Phase::signal) {
    auto detail = copy_of(u);
    detail->waits[detail->wait_name].second = true;
    u.detail = std::move(detail);
  }
  leave(r, event.unit);
  to_ready(r, event.unit);
}

// A unit that has made progress is not the one that killed its former workers.
void Transition::note_progress(const AttemptId& id) {
  Unit& u = run(id.run).units[id.unit];
  if (!u.detail || u.detail->deaths.empty()) return;
  auto detail = copy_of(u);
  detail->deaths.clear();
  u.detail = std::move(detail);
}

// ---- ends of attempts

void Transition::fail_attempt(Run& run, UnitId unit, const Failure& failure, const Ending& ending) {
  if (!end_attempt(run, unit, outcome_of(failure.cause))) return;
  if (run.ending && is_service(run, unit)) return end_service(run, unit);
  retry_or_fail(run, unit, failure, ending);
}

AttemptEnding Transition::outcome_of(Cause cause) {
  if (cause == Cause::cancelled || cause == Cause::stopped) return AttemptEnding::stopped;
  return budget_of(cause) == RetryBudget::infrastructure ? AttemptEnding::lost
                                                         : AttemptEnding::failed;
}

bool Transition::end_attempt(Run& run, UnitId unit, std::optional<AttemptEnding> outcome,
                             bool kills) {
  FLOW_CHECK(run.units[unit].phase == Phase::running);
  touch(run);
  note_gpus_held(run, unit, at_);
  if (outcome) note_consumption(run, unit, *outcome, !kills, at_);
  leave(run, unit);
  if (resources_of(run, unit).is_gang()) end_ranks(run, unit, kills);
  bool is_stale = is_stale_gate(run, unit);
  if (is_stale) drop_gate(run, unit);
  return !is_stale;
}

// Ends a service of a run that ends: with success, unless a task of the run or its rollover failed.
void Transition::end_service(Run& run, UnitId unit) {
  const Rollover& rollover = run.rollover;
  bool has_failed_gate = rollover.gate != kNoNode &&
                         run.units[rollover.gate].status == UnitStatus::failed &&
                         !run.units[rollover.gate].gives_missing;
  bool was_well = run.failed_units == (has_failed_gate ? 1 : 0) && !run.cancelling;
  UnitDetail detail;
  if (was_well && !rollover.reason.empty()) {
    detail.failure = {Cause::user_error, rollover.reason, "", 0};
    return end(run, unit, UnitStatus::failed,
               std::make_shared<const UnitDetail>(std::move(detail)));
  }
  if (was_well) return succeed(run, unit, Digest{});
  detail.failure = {Cause::cancelled, "its run ended", "", 0};
  end(run, unit, UnitStatus::cancelled, std::make_shared<const UnitDetail>(std::move(detail)));
}

void Transition::retry_or_fail(Run& run, UnitId unit, const Failure& failure,
                               const Ending& ending) {
  bool was_stopped = failure.cause == Cause::stopped || is_spare(run, unit);
  if (was_stopped && !is_winding_down(run)) return to_ready(run, unit);
  if (run.cancelling || failure.cause == Cause::cancelled || was_stopped) {
    auto detail = copy_of(run.units[unit]);
    detail->failure = failure;
    detail->failure.cause = Cause::cancelled;
    return end(run, unit, UnitStatus::cancelled, std::move(detail));
  }
  const auto& before = run.units[unit].detail;
  bool has_served =
      (before && (before->was_ready || before->restarts > 0)) || is_further_replica(run, unit);
  if (has_served && state_.restarts_services) return restart_service(run, unit, failure, ending);
  const RetryPolicy& policy = def_of(run, unit)->retry;
  auto detail = copy_of(run.units[unit]);
  detail->failure = failure;
  record_failure(*detail, run.units[unit], failure.cause, ending);
  uint32_t spent = is_lasting(failure) ? 0 : spend(*detail, policy, failure.cause);
  bool again = spent > 0;
  if (is_quarantined(run, unit, *detail, ending)) {
    again = false;
    clear_deaths_of_others(run, unit, detail->deaths);
  } else if (budget_of(failure.cause) == RetryBudget::infrastructure && !again &&
             !is_lasting(failure)) {
    std::string& message = detail->failure.message;
    message.insert(std::min(message.rfind(kWorkerLine), message.size()),
                   ". This used the last of `retries = { infra = " + std::to_string(policy.infra) +
                       " }`; `flow resume " + run.id + "` runs it again");
  }
  Failure last = detail->failure;
  run.units[unit].detail = std::move(detail);
  if (!again || is_winding_down(run)) return fail(run, unit, std::move(last));
  to_backoff(run, unit, backoff_ms(policy, spent, current_attempt(run, unit)));
}

void Transition::restart_service(Run& run, UnitId unit, const Failure& failure,
                                 const Ending& ending) {
  auto detail = copy_of(run.units[unit]);
  detail->failure = failure;
  record_failure(*detail, run.units[unit], failure.cause, {ending.worker});
  bool needs_memory = budget_of(failure.cause) == RetryBudget::memory &&
                      detail->ooms < def_of(run, unit)->retry.oom_max;
  if (needs_memory) detail->ooms++;
  bool is_forgiven = detail->was_ready && at_ - detail->ready_at >= kForgivenAfterMs;
  detail->deaths_in_row = is_forgiven ? 1 : detail->deaths_in_row + 1;
  detail->restarts++;
  int64_t delay_ms = restart_delay_ms(detail->deaths_in_row);
  run.units[unit].detail = std::move(detail);
  to_backoff(run, unit, delay_ms);
}

void Transition::record_failure(UnitDetail& detail, const Unit& unit, Cause cause,
                                const Ending& ending) {
  if (ending.is_death)
    detail.deaths.push_back({ending.worker, state_.sequence, ending.is_gpu, ending.co_located});
  if (state_.workers.size() == 1) return;
  detail.failed.push_back({unit.attempts, ending.worker, cause});
  if (detail.failed.size() > kFailedKept) detail.failed.erase(detail.failed.begin());
}

uint32_t Transition::spend(UnitDetail& detail, const RetryPolicy& policy, Cause cause) {
  RetryBudget budget = budget_of(cause);
  if (budget == RetryBudget::none) return 0;
  if (budget == RetryBudget::memory && detail.ooms < policy.oom_max) return ++detail.ooms;
  bool is_infra = budget == RetryBudget::infrastructure;
  uint32_t spent = is_infra ? ++detail.infra : ++detail.failures;
  return spent <= (is_infra ? policy.infra : policy.max) ? spent : 0;
}

bool Transition::is_quarantined(const Run& run, UnitId unit, UnitDetail& detail,
                                const Ending& ending) {
  const std::vector<Death>& deaths = detail.deaths;
  bool is_of_workers =
      std::any_of(deaths.begin(), deaths.end(), [](const Death& death) { return !death.is_gpu; });
  bool is_sure = ending.is_death && (detail.runs_alone || !is_of_workers);
  if (!is_sure || deaths.size() < kLostMax) return false;
  std::set<WorkerId> workers;
  std::string where;
  bool has_gpu = false;
  for (const Death& death : deaths) {
    workers.insert(death.worker);
    has_gpu = has_gpu || death.is_gpu;
    where += (where.empty() ? "" : "; ") + std::string("on ") + worker_text(state_, death.worker) +
             (death.co_located.empty() ? " alone" : " with " + death.co_located);
  }
  if (workers.size() < 2 && !has_gpu) return false;
  detail.failure.message =
      "`" + shown_name(run, unit) + "` is quarantined: " + std::to_string(deaths.size()) +
      (has_gpu ? " workers or GPUs" : " workers") +
      " in a row died while they ran it, and it saved nothing in between: it ran " + where +
      ". The last: " + detail.failure.message + ". Fix what kills them; then `flow resume " +
      run.id + "` tries it again";
  detail.failure.cause = Cause::quarantined;
  return true;
}

// The quarantined unit caused the deaths; other units that ran there are cleared of them.
void Transition::clear_deaths_of_others(const Run& quarantined_run, UnitId quarantined_unit,
                                        const std::vector<Death>& deaths) {
  auto is_known = [&](const Death& death) {
    return std::any_of(deaths.begin(), deaths.end(), [&](const Death& each) {
      return each.record != 0 && each.record == death.record;
    });
  };
  for (auto& [id, run] : state_.runs) {
    for (UnitId unit = 0; unit < run.units.size(); unit++) {
      Unit& u = run.units[unit];
      bool is_other = &run != &quarantined_run || unit != quarantined_unit;
      if (!is_other || !u.detail ||
          std::none_of(u.detail->deaths.begin(), u.detail->deaths.end(), is_known))
        continue;
      bool is_ready = u.phase == Phase::ready;
      if (is_ready) dequeue_ready(state_, run, unit);
      auto detail = copy_of(u);
      std::erase_if(detail->deaths, is_known);
      u.detail = std::move(detail);
      if (is_ready) enqueue_ready(state_, run, unit);
    }
  }
}

// ---- workers on which many tasks fail

namespace {

/// Whether the worker may be the reason for a failure with this cause.
bool may_be_of_worker(Cause cause) {
  return budget_of(cause) == RetryBudget::own ? cause != Cause::input_changed
                                              : cause == Cause::staging;
}

}  // namespace

// A task that fails on several workers is no evidence against them.
void Transition::record_worker_failure(WorkerId at, Run& run, UnitId unit, Cause cause) {
  const TaskDef& def = *def_of(run, unit);
  if (state_.workers.size() == 1 || is_head_only(def) || !may_be_of_worker(cause) ||
      is_winding_down(run))
    return;
  uint32_t number = run.node(run.units[unit].node).def;
  if (cause != Cause::staging) {
    WorkerId& only = run.failed_defs.try_emplace(number, at).first->second;
    if (only != at) {
      only = kWorkersMax;
      return forget_failures(run.id, number);
    }
  }
  WorkerState& worker = state_.workers[at];
  FailedUnit failed{run.id, unit, number};
  std::erase(worker.failures, failed);
  worker.failures.push_back(std::move(failed));
  if (worker.failures.size() < kFailuresInRow) return;
  if (worker.failures.size() > kFailuresInRow) worker.failures.erase(worker.failures.begin());
  worker.aside_until = at_ + kAsideMs;
  emit(SetTimer{"", at, ++worker.aside_serial, worker.aside_until});
}

void Transition::forget_failures(const RunId& run, uint32_t def) {
  for (WorkerState& worker : state_.workers) {
    std::erase_if(worker.failures,
                  [&](const FailedUnit& failed) { return failed.run == run && failed.def == def; });
    if (worker.failures.size() < kFailuresInRow) worker.aside_until = 0;
  }
}

void Transition::clear(const Unit& unit) {
  for (WorkerId at : workers_of(unit)) {
    state_.workers[at].failures.clear();
    state_.workers[at].aside_until = 0;
  }
}

}  // namespace flow::core
