// The budget of a run: how much money its attempts may cost.
#pragma once
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "engine/core/types.hpp"
#include "engine/costs/prices.hpp"

namespace flow::core {

struct Run;
struct State;

/// A timer of a run's budget names this unit.
constexpr UnitId kBudgetTimer = kNoNode - 1;
/// Share of the budget, in percent, at which the run's listeners are warned.
constexpr int kBudgetWarnPercent = 80;

struct RunBudget {
  // Essential fields; a snapshot holds them.
  BudgetTerms terms;
  double spent_nano = 0;            // by attempts that have ended
  std::vector<int64_t> longest_ms;  // per definition: the longest attempt that ended by itself
  bool has_warned = false;
  bool is_spent = false;  // the run was stopped for it
  uint32_t serial = 0;    // of its newest timer
  Time timer_at = 0;      // when that fires; 0: none
  // Derived.
  std::set<UnitId> running;  // units with a running attempt
};

/// What all ended attempts of the run cost by these prices, in billionths.
double cost_so_far(const Run& run, const Prices& prices);
/// What the running attempts of the run cost until `at`, in billionths.
double accrued_nano(const State& state, const Run& run, Time at);
/// Spent and accrued.
double used_nano(const State& state, const Run& run, Time at);
/// What an attempt with this assignment is expected to cost: as long as the longest attempt of its
/// task that ended by itself in this run, else as its timeout, else nothing.
double estimate_nano(const State& state, const Run& run, const Assigned& assigned);
/// Whether it fits into what is left of the budget at the state's time. True without a budget.
bool may_spend(const State& state, const Run& run, const Assigned& assigned);
/// The time at which running attempts will have used the given amount, at least `at`; 0: never.
Time time_of_use(const State& state, const Run& run, double nano, Time at);

}  // namespace flow::core
