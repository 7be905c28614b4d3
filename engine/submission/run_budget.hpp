// The budget with which a run is submitted, from the options of the request and its configuration.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "engine/core/types.hpp"
#include "engine/plan/plan.hpp"
#include "flow/flow.hpp"

namespace flow {

/// `asked`: the budget of the request; "": that of [defaults] among the values. Nothing without
/// one. Error (user) for a text that is not an amount, for a currency other than that of the
/// prices, and for what a task of the plan asks for and has no price.
Result<std::optional<core::BudgetTerms>> budget_terms(const std::string& asked,
                                                      const std::vector<ConfigValue>& values,
                                                      const Plan& plan);

}  // namespace flow
