// Prices, amounts of money, and what consumption costs.
#include "engine/costs/prices.hpp"

#include <catch2/catch.hpp>

using namespace flow;

namespace {

constexpr double kHourMs = 3'600'000;

ConfigValue price(const std::string& option, Value value) {
  ConfigValue setting;
  setting.table = "prices";
  setting.option = option;
  setting.value = std::move(value);
  setting.origin = "flow.toml:1 [prices]";
  return setting;
}

std::vector<ConfigValue> some_prices() {
  return {price("currency", Value("USD")),
          price("cpu_hour", Value(0.04)),
          price("memory_gb_hour", Value(0.005)),
          price("gpu_hour.H200", Value(int64_t{3})),
          price("gpu_hour.NVIDIA H200 NVL", Value(2.5)),
          price("label.\"pool=spot\".cpu_hour", Value(0.01)),
          price("label.\"pool=spot\".gpu_hour.H200", Value(1.25))};
}

Consumption two_hours() {
  Consumption used;
  used.attempts = 1;
  used.rank_ms = 2 * kHourMs;
  used.cpu_milli_ms = 4000 * 2 * kHourMs;
  used.memory_byte_ms = 10e9 * 2 * kHourMs;
  return used;
}

std::string error_of(const std::string& text) { return parse_money(text).error().message; }

}  // namespace

TEST_CASE("money is a number above 0 and a currency") {
  CHECK(*parse_money("50 USD") == Money{50 * kNano, "USD"});
  CHECK(*parse_money("12.5EUR") == Money{12'500'000'000, "EUR"});
  CHECK(*parse_money("0.000000001 USD") == Money{1, "USD"});
  CHECK(*parse_money("3 €") == Money{3 * kNano, "€"});
  for (const char* text : {"", "50", "USD", "-5 USD", "0 USD", "nan USD", "1e3 USD", "5 US D",
                           "0.0000000001 USD", "5 USDOLLARS"}) {
    INFO(text);
    CHECK(!parse_money(text).ok());
  }
  CHECK(error_of("ten") ==
        "`ten` is not an amount of money: give a number above 0 and a currency, such as `50 USD`");
  CHECK(error_of("2000000000 USD") == "`2000000000 USD` is too much: the limit is 1000000000");
}

TEST_CASE("amounts are printed with cents, and small ones with two digits that count") {
  CHECK(money_text(50 * kNano, "USD") == "50.00 USD");
  CHECK(money_text(1'234'567'890, "USD") == "1.23 USD");
  CHECK(money_text(0, "USD") == "0.00 USD");
  CHECK(money_text(500'000'000, "USD") == "0.50 USD");
  CHECK(money_text(4'200'000, "USD") == "0.0042 USD");
}

TEST_CASE("CPUs, memory and GPUs cost what they are held for") {
  Prices prices = *prices_of(some_prices());
  Consumption used = two_hours();
  Cost cost = cost_of(prices, used);
  CHECK(*cost.cpu == 320'000'000);     // 4 CPUs × 2 h × 0.04
  CHECK(*cost.memory == 100'000'000);  // 10 GB × 2 h × 0.005
  CHECK(*cost.gpu == 0);
  add_gpu_time(used.gpus, "NVIDIA H200", 500 * kHourMs);
  CHECK(*cost_of(prices, used).gpu == 1'500'000'000);  // half a GPU × 1 h × 3
  CHECK(*cost_of(prices, used).total() == 1'920'000'000);
  CHECK(budget_cost(prices, used) == Approx(1'920'000'000));
}

TEST_CASE("traffic costs what its price says, and nothing without one") {
  Prices prices = *prices_of(some_prices());
  Consumption used;
  used.moved_bytes = 3e9;
  CHECK(*cost_of(prices, used).total() == 0);
  prices.base.egress_gb = 50'000'000;
  CHECK(cost_of(prices, used).egress == 150'000'000);
  CHECK(*cost_of(prices, used).total() == 150'000'000);
  CHECK(budget_cost(prices, used) == Approx(150'000'000));
  prices.labels = {{"pool", "spot", {}}};
  prices.labels[0].rates.egress_gb = 0;
  used.labels = {{"pool", "spot"}};
  CHECK(cost_of(prices, used).egress == 0);
}

TEST_CASE("a label's price outranks the others where it has one") {
  Prices prices = *prices_of(some_prices());
  Consumption used = two_hours();
  used.labels = {{"pool", "spot"}, {"rack", "a"}};
  CHECK(*cost_of(prices, used).cpu == 80'000'000);
  CHECK(*cost_of(prices, used).memory == 100'000'000);
  CHECK(gpu_price(prices, used.labels, "NVIDIA H200") == 1'250'000'000);
  CHECK(gpu_price(prices, {{"pool", "other"}}, "NVIDIA H200") == 3 * kNano);
}

TEST_CASE("the longest pattern of a GPU's model counts") {
  Prices prices = *prices_of(some_prices());
  CHECK(gpu_price(prices, {}, "NVIDIA H200 NVL") == 2'500'000'000);
  CHECK(gpu_price(prices, {}, "NVIDIA H2000") == kNoPrice);
  CHECK(highest_gpu_price(prices) == 3 * kNano);
}

TEST_CASE("without a price an amount is not known, unless nothing was held") {
  Consumption used = two_hours();
  CHECK(!cost_of({}, used).cpu);
  CHECK(!cost_of({}, used).total());
  CHECK(*cost_of({}, Consumption{}).total() == 0);
  Prices prices = *prices_of(some_prices());
  add_gpu_time(used.gpus, "NVIDIA A100", kHourMs);
  CHECK(!cost_of(prices, used).gpu);
  CHECK(cost_of(prices, used).cpu);
  // A budget must not be overspent by a GPU that has no price.
  Consumption only_gpu;
  add_gpu_time(only_gpu.gpus, "NVIDIA A100", 1000 * kHourMs);
  CHECK(budget_cost(prices, only_gpu) == Approx(3e9));
}

TEST_CASE("values of higher precedence come first") {
  std::vector<ConfigValue> values = some_prices();
  values.push_back(price("cpu_hour", Value(9.0)));
  CHECK(prices_of(values)->base.cpu_hour == 40'000'000);
}

TEST_CASE("prices need a currency, an amount in range, and labels with a value") {
  auto error = [](std::vector<ConfigValue> values) { return prices_of(values).error().message; };
  CHECK(error({price("cpu_hour", Value(1.0))}) ==
        "flow.toml:1 [prices]: `cpu_hour` is a price without a currency: add `currency = \"USD\"` "
        "to [prices]");
  CHECK(error({price("currency", Value("50"))}) ==
        "flow.toml:1 [prices]: `currency` is a currency such as USD, not `50`");
  CHECK(error({price("currency", Value("USD")), price("cpu_hour", Value(2e9))}) ==
        "flow.toml:1 [prices]: `cpu_hour` is a price from 0 to 1000000000");
  CHECK(error({price("currency", Value("USD")), price("label.\"spot\".cpu_hour", Value(1.0))}) ==
        "flow.toml:1 [prices]: `label.\"spot\".cpu_hour` needs a label of a worker as NAME=VALUE, "
        "such as [prices.label.\"pool=spot\"]");
  CHECK(prices_of({})->currency.empty());
}
