// What attempts held, and budgets of runs, as messages and back. For engine/store only.
#pragma once
#include "engine/core/core.hpp"
#include "engine/store/journal.pb.h"

namespace flow {

void put_terms(const core::BudgetTerms& terms, journal::BudgetTerms& m);
/// Returns false for a negative amount or a missing currency or limit.
bool get_terms(const journal::BudgetTerms& m, core::BudgetTerms& terms);
/// Of a unit; `unit` itself is not theirs.
void put_consumption(const Consumption& used, journal::Consumption& m);
bool get_consumption(const journal::Consumption& m, Consumption& used);
void put_budget(const core::RunBudget& budget, journal::RunBudget& m);
bool get_budget(const journal::RunBudget& m, core::RunBudget& budget);

}  // namespace flow
