// Prices of [prices] in flow.toml, and what consumption costs by them.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/costs/consumption.hpp"
#include "engine/costs/money.hpp"

namespace flow {

struct ConfigValue;

constexpr int64_t kNoPrice = -1;

/// Billionths of the currency's unit; kNoPrice: none.
struct Rates {
  int64_t cpu_hour = kNoPrice;
  int64_t memory_gb_hour = kNoPrice;                      // of 10^9 bytes
  std::vector<std::pair<std::string, int64_t>> gpu_hour;  // pattern of a model, as option `gpu`
  int64_t egress_gb = kNoPrice;
  bool operator==(const Rates&) const = default;
};
struct LabelRates {
  std::string name, value;  // of a worker
  Rates rates;
  bool operator==(const LabelRates&) const = default;
};
struct Prices {
  std::string currency;  // "": there are no prices
  Rates base;
  std::vector<LabelRates> labels;  // the first that a worker has and that names a price counts
  bool operator==(const Prices&) const = default;
};

/// The prices among the values, which are in the order of their precedence. Error (user) with the
/// place of the value: prices without `currency`, an amount beyond kMoneyMax, a label that is not
/// NAME=VALUE.
Result<Prices> prices_of(const std::vector<ConfigValue>& values);

/// kNoPrice if there is none. Of a GPU the longest pattern that matches the model counts.
int64_t cpu_price(const Prices& prices, const Labels& labels);
int64_t memory_price(const Prices& prices, const Labels& labels);
int64_t gpu_price(const Prices& prices, const Labels& labels, const std::string& model);
/// The highest price of any GPU; kNoPrice if none has a price.
int64_t highest_gpu_price(const Prices& prices);

/// The price of a GB (10^9 bytes) that was sent between machines; kNoPrice if there is none.
int64_t egress_price(const Prices& prices, const Labels& labels);

/// Nothing where a price is missing for something that was held. Traffic without a price is free.
struct Cost {
  std::optional<int64_t> cpu = 0, memory = 0, gpu = 0;
  int64_t egress = 0;
  std::optional<int64_t> total() const;
};
Cost& operator+=(Cost& to, const Cost& more);
/// Rounded to whole billionths, each of the four for itself.
Cost cost_of(const Prices& prices, const Consumption& used);

/// What the consumption costs in billionths, for a budget: without rounding, and a GPU of a model
/// that has no price costs as much as the most expensive one.
double budget_cost(const Prices& prices, const Consumption& used);

}  // namespace flow
