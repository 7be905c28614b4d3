// The budgets of runs: what their attempts have cost, and when that ends them.
#include "engine/core/budget.hpp"

#include <algorithm>
#include <cmath>

#include "engine/core/gangs.hpp"
#include "engine/core/transition.hpp"

namespace flow::core {

namespace {

constexpr double kPercent = 100;

double cost_of_parts(const Prices& prices, const std::vector<Consumption>& parts) {
  double nano = 0;
  for (const Consumption& part : parts) nano += budget_cost(prices, part);
  return nano;
}

/// What the running attempts cost per millisecond.
double nano_per_ms(const State& state, const Run& run) {
  constexpr Time kHourMs = 3'600'000;
  double nano = 0;
  for (UnitId unit : run.budget->running) {
    Time until = run.units[unit].assigned + kHourMs;
    nano +=
        cost_of_parts(run.budget->terms.prices,
                      consumption_of_attempt(state, run, unit, AttemptEnding::succeeded, until));
  }
  return nano / static_cast<double>(kHourMs);
}

}  // namespace

double cost_so_far(const Run& run, const Prices& prices) {
  double nano = 0;
  for (UnitId unit = 0; unit < run.units.size(); unit++)
    nano += cost_of_parts(prices, consumption_of(run, unit));
  return nano;
}

double accrued_nano(const State& state, const Run& run, Time at) {
  double nano = 0;
  for (UnitId unit : run.budget->running)
    nano += cost_of_parts(run.budget->terms.prices,
                          consumption_of_attempt(state, run, unit, AttemptEnding::succeeded, at));
  return nano;
}

double used_nano(const State& state, const Run& run, Time at) {
  return run.budget->spent_nano + accrued_nano(state, run, at);
}

double estimate_nano(const State& state, const Run& run, const Assigned& assigned) {
  UnitId unit = assigned.id.unit;
  int64_t ms = run.budget->longest_ms.at(run.node(run.units[unit].node).def);
  if (ms == 0) ms = std::max<int64_t>(timeout_ms_of(run, unit), 0);
  if (ms == 0) return 0;
  const Resources& resources = resources_of(run, unit);
  SchedulingClass request = resource_request(state, run, unit);
  int32_t cpus_milli = is_service(run, unit) ? resources.cpus_milli
                       : resources.is_gang() ? assigned.share.cpus_milli
                                             : request.cpus_milli;
  int64_t memory = resources.is_gang() ? assigned.share.memory_bytes : request.memory_bytes;
  double nano = 0;
  auto add_rank = [&](WorkerId at, const std::vector<std::string>& gpus) {
    const WorkerInfo& worker = state.workers.at(at).info;
    Consumption rank;
    rank.labels = worker.labels;
    rank.cpu_milli_ms = static_cast<double>(cpus_milli) * static_cast<double>(ms);
    rank.memory_byte_ms = static_cast<double>(memory) * static_cast<double>(ms);
    for (const std::string& uuid : gpus) {
      auto gpu = find_gpu(worker.gpus, uuid);
      double milli = std::min<int32_t>(resources.gpus_milli, kWholeGpuMilli);
      add_gpu_time(rank.gpus, gpu ? worker.gpus[*gpu].name : "", milli * static_cast<double>(ms));
    }
    nano += budget_cost(run.budget->terms.prices, rank);
  };
  add_rank(assigned.worker, assigned.gpus);
  for (const Placement& rank : assigned.others) add_rank(rank.worker, rank.gpus);
  return nano;
}

bool may_spend(const State& state, const Run& run, const Assigned& assigned) {
  if (!run.budget) return true;
  double limit = static_cast<double>(run.budget->terms.limit_nano);
  double used = used_nano(state, run, state.at);
  return used < limit && used + estimate_nano(state, run, assigned) <= limit;
}

Time time_of_use(const State& state, const Run& run, double nano, Time at) {
  double left = nano - used_nano(state, run, at);
  if (left <= 0) return at;
  double rate = nano_per_ms(state, run);
  constexpr double kNeverMs = 1e15;
  double ms = rate > 0 ? std::ceil(left / rate) : kNeverMs;
  return ms < kNeverMs ? at + static_cast<Time>(ms) : 0;
}

// ---- events

void Transition::on(const BudgetSet& event) {
  Run& r = run(event.run);
  touch(r);
  if (!r.budget) r.budget.emplace();
  RunBudget& budget = *r.budget;
  budget.terms = event.terms;
  budget.longest_ms.resize(r.plan->defs.size());
  budget.has_warned = budget.is_spent = false;
  budget.timer_at = 0;
  budget.spent_nano =
      static_cast<double>(event.terms.before_nano) + cost_so_far(r, event.terms.prices);
  budget.running.clear();
  for (UnitId unit = 0; unit < r.units.size(); unit++)
    if (r.units[unit].phase == Phase::running && !r.units[unit].dropped)
      budget.running.insert(unit);
}

void Transition::on(const BudgetReached& event) {
  Run& r = run(event.run);
  r.budget->is_spent = true;
  emit(WarnOfBudget{r.id});
  on(StopRequested{r.id});
}

void Transition::budget_timer_fired(Run& run) {
  run.budget->timer_at = 0;
  touch(run);
}

// An attempt of the run has ended.
void Transition::spend_budget(Run& run, UnitId unit, const std::vector<Consumption>& used,
                              AttemptEnding outcome) {
  if (!run.budget) return;
  RunBudget& budget = *run.budget;
  budget.spent_nano += cost_of_parts(budget.terms.prices, used);
  if (outcome == AttemptEnding::lost || outcome == AttemptEnding::stopped) return;
  int64_t& longest = budget.longest_ms.at(run.node(run.units[unit].node).def);
  longest = std::max<int64_t>(longest, at_ - run.units[unit].assigned);
}

// Warns, stops the run, or asks for the time when that is due.
bool Transition::review_budget(Run& run) {
  if (!run.budget || is_final(run.status) || run.stopping || run.cancelling || run.ending)
    return false;
  RunBudget& budget = *run.budget;
  double limit = static_cast<double>(budget.terms.limit_nano);
  double warn_at = limit * kBudgetWarnPercent / kPercent;
  double used = used_nano(state_, run, state_.at);
  if (used >= limit && !budget.running.empty()) {
    on(BudgetReached{run.id});
    return true;
  }
  if (used >= warn_at && !budget.has_warned) {
    budget.has_warned = true;
    emit(WarnOfBudget{run.id});
  }
  Time next =
      used >= limit ? 0 : time_of_use(state_, run, budget.has_warned ? limit : warn_at, state_.at);
  // One that fires early asks again: each attempt that ends would add another one.
  bool is_asked = budget.timer_at != 0 && budget.timer_at <= next;
  if (next == 0 || is_asked) return false;
  budget.timer_at = next;
  emit(SetTimer{run.id, kBudgetTimer, ++budget.serial, next});
  return false;
}

}  // namespace flow::core
