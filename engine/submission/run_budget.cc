#include "engine/submission/run_budget.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "engine/costs/prices.hpp"

namespace flow {

namespace {

struct AskedBudget {
  std::string text, origin;  // "--budget", "flow.toml:3 [defaults] `budget`"
};

AskedBudget asked_budget(const std::string& asked, const std::vector<ConfigValue>& values) {
  if (!asked.empty()) return {asked, "--budget"};
  auto found = std::ranges::find_if(values, [](const ConfigValue& value) {
    return value.table == "defaults" && value.option == "budget" &&
           value.value.kind() == Value::Kind::string;
  });
  if (found == values.end()) return {};
  return {found->value.as_string(), found->origin + " `budget`"};
}

/// The option of [prices] that a GPU of this model needs, or any GPU with "".
std::string missing_gpu_price(const Prices& prices, const std::string& model) {
  auto has_any = [](const Rates& rates) { return !rates.gpu_hour.empty(); };
  bool is_priced =
      has_any(prices.base) || std::ranges::any_of(prices.labels, has_any, &LabelRates::rates);
  if (is_priced) return "";
  return fmt::format("gpu_hour.\"{}\"", model.empty() ? "H200" : model);
}

/// The option of [prices] that is missing for the task; "" for none.
std::string missing_price(const Prices& prices, const TaskDef& def) {
  const Resources& asked = def.resources;
  auto lacks = [&](int64_t Rates::*option) {
    return prices.base.*option == kNoPrice &&
           std::ranges::none_of(prices.labels, [&](const LabelRates& label) {
             return label.rates.*option != kNoPrice;
           });
  };
  if (asked.cpus_milli > 0 && lacks(&Rates::cpu_hour)) return "cpu_hour";
  bool asks_memory = asked.memory_bytes > 0 || (def.resource_functions & kMemoryFunction) != 0;
  if (asks_memory && lacks(&Rates::memory_gb_hour)) return "memory_gb_hour";
  bool asks_gpus = asked.gpus_milli > 0 || (def.resource_functions & kGpusFunction) != 0;
  return asks_gpus ? missing_gpu_price(prices, asked.gpu_model) : "";
}

}  // namespace

Result<std::optional<core::BudgetTerms>> budget_terms(const std::string& asked,
                                                      const std::vector<ConfigValue>& values,
                                                      const Plan& plan) {
  AskedBudget budget = asked_budget(asked, values);
  if (budget.text.empty()) return std::optional<core::BudgetTerms>();
  auto limit = parse_money(budget.text);
  if (!limit.ok()) return user_error(budget.origin + ": " + limit.error().message);
  auto prices = prices_of(values);
  FLOW_TRY(prices);
  if (prices->currency.empty())
    return user_error(fmt::format(
        "{}: a budget needs prices: add [prices] with `currency = \"{}\"` and `cpu_hour` to "
        "flow.toml",
        budget.origin, limit->currency));
  if (prices->currency != limit->currency)
    return user_error(fmt::format("{}: the budget is in {}, and [prices] are in {}", budget.origin,
                                  limit->currency, prices->currency));
  for (const TaskDef& def : plan.defs) {
    std::string missing = missing_price(*prices, def);
    if (missing.empty()) continue;
    return user_error(
        fmt::format("{}: `{}` ({}:{}) asks for something that has no price: add `{}` to [prices], "
                    "or 0 if it is "
                    "free",
                    budget.origin, def.name, def.file, def.line, missing));
  }
  return std::optional(core::BudgetTerms{std::move(*prices), limit->nano, 0});
}

}  // namespace flow
