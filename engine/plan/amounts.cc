#include "engine/plan/amounts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

namespace flow {

namespace {

constexpr double kAmountMax = kAmountMaxMilli / 1000;

Result<int64_t> milli_of(const std::string& name, double amount) {
  double milli = std::round(amount * 1000);
  if (!(amount <= kAmountMax) || !(milli >= 1))
    return user_error(fmt::format("the resource `{}` is a number from 0.001 to {}, not {}", name,
                                  static_cast<int64_t>(kAmountMax), amount));
  return static_cast<int64_t>(milli);
}

Amounts::iterator find(Amounts& amounts, std::string_view name) {
  return std::find_if(amounts.begin(), amounts.end(),
                      [name](const auto& each) { return each.first == name; });
}

}  // namespace

bool is_amount_name(std::string_view name) {
  constexpr std::string_view kLetters =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-";
  constexpr std::string_view kOptions[] = {"cpus", "memory", "gpus", "gpu", "gpu_memory", "ranks"};
  return !name.empty() && name.size() <= kAmountNameMax &&
         name.find_first_not_of(kLetters) == std::string_view::npos &&
         std::find(std::begin(kOptions), std::end(kOptions), name) == std::end(kOptions);
}

bool are_sound(const Amounts& amounts) {
  for (size_t i = 0; i < amounts.size(); i++) {
    const auto& [name, milli] = amounts[i];
    bool is_next = i == 0 || amounts[i - 1].first < name;
    if (!is_next || !is_amount_name(name) || milli <= 0 || milli > kAmountMaxMilli) return false;
  }
  return amounts.size() <= kAmountsMax;
}

Result<Amounts> amounts_of(const std::vector<std::pair<std::string, double>>& given) {
  Amounts amounts;
  for (const auto& [name, amount] : given) {
    if (!is_amount_name(name))
      return user_error(
          fmt::format("`{}` can't name a resource: it has {}", name, kAmountNameForm));
    auto milli = milli_of(name, amount);
    FLOW_TRY(milli);
    amounts.emplace_back(name, *milli);
  }
  if (amounts.size() > kAmountsMax)
    return user_error(
        fmt::format("there are at most {} resources, not {}", kAmountsMax, amounts.size()));
  std::sort(amounts.begin(), amounts.end());
  auto same = [](const auto& a, const auto& b) { return a.first == b.first; };
  auto twice = std::adjacent_find(amounts.begin(), amounts.end(), same);
  if (twice != amounts.end())
    return user_error(
        fmt::format("the resource `{}` is given twice: once is enough", twice->first));
  return amounts;
}

std::vector<std::pair<std::string, double>> numbers_of(const Amounts& amounts) {
  std::vector<std::pair<std::string, double>> numbers;
  for (const auto& [name, milli] : amounts)
    numbers.emplace_back(name, static_cast<double>(milli) / 1000);
  return numbers;
}

int64_t amount_of(const Amounts& amounts, std::string_view name) {
  for (const auto& [each, milli] : amounts)
    if (each == name) return milli;
  return 0;
}

int64_t times_in(const Amounts& there, const Amounts& asked, int64_t most) {
  for (const auto& [name, milli] : asked)
    most = std::min(most, std::max<int64_t>(amount_of(there, name), 0) / milli);
  return most;
}

void change(Amounts& there, const Amounts& by, int sign) {
  for (const auto& [name, milli] : by)
    if (auto found = find(there, name); found != there.end()) found->second += sign * milli;
}

Amounts least_of(const Amounts& a, const Amounts& b) {
  Amounts least = a;
  for (auto& [name, milli] : least) milli = std::min(milli, amount_of(b, name));
  return least;
}

Amounts share_of(const Amounts& all, int32_t number, int32_t count) {
  Amounts share;
  for (const auto& [name, milli] : all) {
    int64_t whole = milli / 1000;
    int64_t own = (whole / count + (number <= whole % count ? 1 : 0)) * 1000;
    if (number == 1) own += milli % 1000;
    if (own > 0) share.emplace_back(name, own);
  }
  return share;
}

std::vector<std::string> arguments_of(const Amounts& amounts) {
  std::vector<std::string> arguments;
  for (const auto& [name, milli] : amounts) {
    arguments.emplace_back("--resource");
    arguments.push_back(fmt::format("{}={}", name, static_cast<double>(milli) / 1000));
  }
  return arguments;
}

std::string words_of(const Amounts& amounts) {
  std::string text;
  for (size_t i = 0; i < amounts.size(); i++) {
    const auto& [name, milli] = amounts[i];
    const char* between = i == 0 ? "" : i + 1 == amounts.size() ? " and " : ", ";
    text += fmt::format("{}{} = {}", between, name, static_cast<double>(milli) / 1000);
  }
  return text;
}

}  // namespace flow
