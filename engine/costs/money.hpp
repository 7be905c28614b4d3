// Money: whole billionths of a currency's unit, so that sums are exact.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "flow/result.hpp"

namespace flow {

constexpr int64_t kNano = 1'000'000'000;
/// The largest price or budget, in units of its currency.
constexpr int64_t kMoneyMax = 1'000'000'000;

struct Money {
  int64_t nano = 0;      // billionths of the unit
  std::string currency;  // "USD"
  bool operator==(const Money&) const = default;
};

/// "50 USD", "12.5EUR": a number above 0, then the currency. Error (user) with what is expected.
Result<Money> parse_money(std::string_view text);
/// Whether the text is a currency: 1 to 8 letters or currency signs.
bool is_currency(std::string_view text);
/// "12.50 USD"; amounts below 1 have as many digits as they need: "0.0042 USD".
std::string money_text(int64_t nano, const std::string& currency);

}  // namespace flow
