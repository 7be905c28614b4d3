#include "engine/costs/money.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

namespace flow {

namespace {

constexpr size_t kCurrencyMax = 8;  // bytes

Error not_money(std::string_view text) {
  return user_error(fmt::format(
      "`{}` is not an amount of money: give a number above 0 and a currency, such as `50 USD`",
      text));
}

}  // namespace

bool is_currency(std::string_view text) {
  return !text.empty() && text.size() <= kCurrencyMax &&
         std::ranges::all_of(text, [](unsigned char c) {
           return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '$' || c >= 0x80;
         });
}

Result<Money> parse_money(std::string_view text) {
  double number = 0;
  auto [end, failed] =
      std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  if (failed != std::errc()) return not_money(text);
  std::string_view currency = text.substr(static_cast<size_t>(end - text.data()));
  while (currency.starts_with(' ')) currency.remove_prefix(1);
  bool is_sound = std::isfinite(number) && number > 0 && is_currency(currency);
  if (!is_sound) return not_money(text);
  if (number > static_cast<double>(kMoneyMax))
    return user_error(fmt::format("`{}` is too much: the limit is {}", text, kMoneyMax));
  int64_t nano = std::llround(number * static_cast<double>(kNano));
  if (nano == 0) return not_money(text);
  return Money{nano, std::string(currency)};
}

std::string money_text(int64_t nano, const std::string& currency) {
  double amount = static_cast<double>(nano) / static_cast<double>(kNano);
  bool is_small = nano != 0 && std::abs(amount) < 1;
  std::string text = is_small ? fmt::format("{:.9f}", amount) : fmt::format("{:.2f}", amount);
  constexpr size_t kDigitsSmall = 2;  // that count, of a small amount
  if (is_small) {
    size_t first = text.find_first_not_of("-0.");
    size_t cents = text.find('.') + 3;
    text.resize(std::min(text.size(), std::max(first + kDigitsSmall, cents)));
  }
  return text + " " + currency;
}

}  // namespace flow
