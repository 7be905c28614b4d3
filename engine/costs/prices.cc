#include "engine/costs/prices.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "engine/costs/units.hpp"
#include "engine/plan/gpu_pattern.hpp"
#include "flow/flow.hpp"

namespace flow {

namespace {

constexpr std::string_view kLabelPrefix = "label.";
constexpr std::string_view kGpuPrefix = "gpu_hour.";

Error problem_at(const ConfigValue& value, const std::string& what) {
  return user_error(fmt::format("{}: `{}` {}", value.origin, value.option, what));
}

Result<int64_t> price_of(const ConfigValue& value) {
  double number = value.value.as_number();
  if (!(number >= 0) || number > static_cast<double>(kMoneyMax))
    return problem_at(value, fmt::format("is a price from 0 to {}", kMoneyMax));
  return std::llround(number * static_cast<double>(kNano));
}

/// Sets the price unless a value of higher precedence has.
Status set_price(const ConfigValue& value, std::string_view option, Rates& rates) {
  auto price = price_of(value);
  FLOW_TRY(price);
  auto set = [&](int64_t& to) {
    if (to == kNoPrice) to = *price;
  };
  if (option == "cpu_hour") set(rates.cpu_hour);
  if (option == "memory_gb_hour") set(rates.memory_gb_hour);
  if (option == "egress_gb") set(rates.egress_gb);
  if (!option.starts_with(kGpuPrefix)) return {};
  std::string model(option.substr(kGpuPrefix.size()));
  if (std::ranges::find(rates.gpu_hour, model, &std::pair<std::string, int64_t>::first) ==
      rates.gpu_hour.end())
    rates.gpu_hour.emplace_back(std::move(model), *price);
  return {};
}

/// Splits `"pool=spot".cpu_hour`, whose label is a JSON text unless it is a bare word.
Status set_label_price(const ConfigValue& value, std::string_view option, Prices& prices) {
  size_t close = option.starts_with('"') ? option.find('"', 1) : std::string_view::npos;
  std::string_view label = close == std::string_view::npos ? "" : option.substr(1, close - 1);
  size_t equals = label.find('=');
  if (equals == std::string_view::npos || equals == 0)
    return problem_at(
        value, "needs a label of a worker as NAME=VALUE, such as [prices.label.\"pool=spot\"]");
  std::string name(label.substr(0, equals)), text(label.substr(equals + 1));
  auto same = std::ranges::find_if(prices.labels, [&](const LabelRates& each) {
    return each.name == name && each.value == text;
  });
  if (same == prices.labels.end())
    same = prices.labels.insert(prices.labels.end(), {std::move(name), std::move(text), {}});
  return set_price(value, option.substr(close + 2), same->rates);
}

bool has_label(const Labels& labels, const LabelRates& rates) {
  return std::ranges::find(labels, std::pair(rates.name, rates.value)) != labels.end();
}

template <typename PriceOf>
int64_t first_price(const Prices& prices, const Labels& labels, PriceOf price_of) {
  for (const LabelRates& each : prices.labels) {
    if (!has_label(labels, each)) continue;
    if (int64_t price = price_of(each.rates); price != kNoPrice) return price;
  }
  return price_of(prices.base);
}

int64_t model_price(const Rates& rates, const std::string& model) {
  int64_t price = kNoPrice;
  size_t longest = 0;
  for (const auto& [pattern, each] : rates.gpu_hour) {
    if (pattern.size() < longest || !matches_model(pattern, model)) continue;
    longest = pattern.size() + 1;
    price = each;
  }
  return price;
}

// Products of one unit and one hour.
constexpr double kMilliMs = kMilliPerUnit * kMsPerHour;
constexpr double kByteMs = kBytesPerGb * kMsPerHour;

/// Billionths, not rounded. Multiplies first: the product is usually exact.
double amount(int64_t price, double product, double of_hour) {
  return static_cast<double>(price) * product / of_hour;
}

std::optional<int64_t> rounded(int64_t price, double product, double of_hour) {
  if (product == 0) return 0;
  if (price == kNoPrice) return std::nullopt;
  return std::llround(amount(price, product, of_hour));
}

}  // namespace

Result<Prices> prices_of(const std::vector<ConfigValue>& values) {
  Prices prices;
  const ConfigValue* any = nullptr;
  for (const ConfigValue& value : values) {
    if (value.table != "prices" || value.option == "include") continue;
    std::string_view option = value.option;
    if (option == "currency") {
      if (!is_currency(value.value.as_string()))
        return problem_at(
            value, fmt::format("is a currency such as USD, not `{}`", value.value.as_string()));
      if (prices.currency.empty()) prices.currency = value.value.as_string();
      continue;
    }
    any = &value;
    bool is_of_label = option.starts_with(kLabelPrefix);
    Status set = is_of_label ? set_label_price(value, option.substr(kLabelPrefix.size()), prices)
                             : set_price(value, option, prices.base);
    FLOW_TRY(set);
  }
  if (any != nullptr && prices.currency.empty())
    return problem_at(*any, "is a price without a currency: add `currency = \"USD\"` to [prices]");
  return prices;
}

int64_t cpu_price(const Prices& prices, const Labels& labels) {
  return first_price(prices, labels, [](const Rates& rates) { return rates.cpu_hour; });
}
int64_t memory_price(const Prices& prices, const Labels& labels) {
  return first_price(prices, labels, [](const Rates& rates) { return rates.memory_gb_hour; });
}
int64_t gpu_price(const Prices& prices, const Labels& labels, const std::string& model) {
  return first_price(prices, labels, [&](const Rates& rates) { return model_price(rates, model); });
}

int64_t egress_price(const Prices& prices, const Labels& labels) {
  return first_price(prices, labels, [](const Rates& rates) { return rates.egress_gb; });
}

int64_t highest_gpu_price(const Prices& prices) {
  int64_t highest = kNoPrice;
  auto look = [&](const Rates& rates) {
    for (const auto& [pattern, price] : rates.gpu_hour) highest = std::max(highest, price);
  };
  look(prices.base);
  for (const LabelRates& each : prices.labels) look(each.rates);
  return highest;
}

std::optional<int64_t> Cost::total() const {
  if (!cpu || !memory || !gpu) return std::nullopt;
  return *cpu + *memory + *gpu + egress;
}

Cost& operator+=(Cost& to, const Cost& more) {
  auto sum = [](std::optional<int64_t>& a, const std::optional<int64_t>& b) {
    a = a && b ? std::optional(*a + *b) : std::nullopt;
  };
  sum(to.cpu, more.cpu);
  sum(to.memory, more.memory);
  sum(to.gpu, more.gpu);
  to.egress += more.egress;
  return to;
}

Cost cost_of(const Prices& prices, const Consumption& used) {
  Cost cost;
  cost.cpu = rounded(cpu_price(prices, used.labels), used.cpu_milli_ms, kMilliMs);
  cost.memory = rounded(memory_price(prices, used.labels), used.memory_byte_ms, kByteMs);
  for (const auto& [model, milli_ms] : used.gpus) {
    auto more = rounded(gpu_price(prices, used.labels, model), milli_ms, kMilliMs);
    cost.gpu = cost.gpu && more ? std::optional(*cost.gpu + *more) : std::nullopt;
  }
  int64_t egress = std::max<int64_t>(egress_price(prices, used.labels), 0);
  cost.egress = std::llround(amount(egress, used.moved_bytes, kBytesPerGb));
  return cost;
}

double budget_cost(const Prices& prices, const Consumption& used) {
  auto known = [](int64_t price) { return std::max<int64_t>(price, 0); };
  double cost = amount(known(cpu_price(prices, used.labels)), used.cpu_milli_ms, kMilliMs) +
                amount(known(memory_price(prices, used.labels)), used.memory_byte_ms, kByteMs) +
                amount(known(egress_price(prices, used.labels)), used.moved_bytes, kBytesPerGb);
  for (const auto& [model, milli_ms] : used.gpus) {
    int64_t price = gpu_price(prices, used.labels, model);
    if (price == kNoPrice) price = known(highest_gpu_price(prices));
    cost += amount(price, milli_ms, kMilliMs);
  }
  return cost;
}

}  // namespace flow
