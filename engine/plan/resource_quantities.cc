#include "engine/plan/resource_quantities.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

namespace flow {

namespace {

constexpr double kQuantityMax = kResourceQuantityMaxMilli / 1000;

Result<int64_t> milli_of(const std::string& name, double quantity) {
  double milli = std::round(quantity * 1000);
  if (!(quantity <= kQuantityMax) || !(milli >= 1))
    return user_error(fmt::format("the resource `{}` is a number from 0.001 to {}, not {}", name,
                                  static_cast<int64_t>(kQuantityMax), quantity));
  return static_cast<int64_t>(milli);
}

ResourceQuantities::iterator find(ResourceQuantities& quantities, std::string_view name) {
  return std::find_if(quantities.begin(), quantities.end(),
                      [name](const auto& each) { return each.first == name; });
}

}  // namespace

bool is_custom_resource_name(std::string_view name) {
  constexpr std::string_view kLetters =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-";
  constexpr std::string_view kOptions[] = {"cpus", "memory", "gpus", "gpu", "gpu_memory", "ranks"};
  return !name.empty() && name.size() <= kCustomResourceNameMax &&
         name.find_first_not_of(kLetters) == std::string_view::npos &&
         std::find(std::begin(kOptions), std::end(kOptions), name) == std::end(kOptions);
}

bool are_sound(const ResourceQuantities& quantities) {
  for (size_t i = 0; i < quantities.size(); i++) {
    const auto& [name, milli] = quantities[i];
    bool is_next = i == 0 || quantities[i - 1].first < name;
    if (!is_next || !is_custom_resource_name(name) || milli <= 0 ||
        milli > kResourceQuantityMaxMilli)
      return false;
  }
  return quantities.size() <= kCustomResourcesMax;
}

Result<ResourceQuantities> quantities_of(const std::vector<std::pair<std::string, double>>& given) {
  ResourceQuantities quantities;
  for (const auto& [name, quantity] : given) {
    if (!is_custom_resource_name(name))
      return user_error(
          fmt::format("`{}` can't name a resource: it has {}", name, kCustomResourceNameForm));
    auto milli = milli_of(name, quantity);
    FLOW_TRY(milli);
    quantities.emplace_back(name, *milli);
  }
  if (quantities.size() > kCustomResourcesMax)
    return user_error(fmt::format("there are at most {} resources, not {}", kCustomResourcesMax,
                                  quantities.size()));
  std::sort(quantities.begin(), quantities.end());
  auto same = [](const auto& a, const auto& b) { return a.first == b.first; };
  auto twice = std::adjacent_find(quantities.begin(), quantities.end(), same);
  if (twice != quantities.end())
    return user_error(
        fmt::format("the resource `{}` is given twice: once is enough", twice->first));
  return quantities;
}

std::vector<std::pair<std::string, double>> numbers_of(const ResourceQuantities& quantities) {
  std::vector<std::pair<std::string, double>> numbers;
  for (const auto& [name, milli] : quantities)
    numbers.emplace_back(name, static_cast<double>(milli) / 1000);
  return numbers;
}

int64_t quantity_of(const ResourceQuantities& quantities, std::string_view name) {
  for (const auto& [each, milli] : quantities)
    if (each == name) return milli;
  return 0;
}

int64_t how_many_fit(const ResourceQuantities& available, const ResourceQuantities& requested,
                     int64_t most) {
  for (const auto& [name, milli] : requested)
    most = std::min(most, std::max<int64_t>(quantity_of(available, name), 0) / milli);
  return most;
}

void add(ResourceQuantities& available, const ResourceQuantities& by, int sign) {
  for (const auto& [name, milli] : by)
    if (auto found = find(available, name); found != available.end()) found->second += sign * milli;
}

ResourceQuantities element_min(const ResourceQuantities& a, const ResourceQuantities& b) {
  ResourceQuantities least = a;
  for (auto& [name, milli] : least) milli = std::min(milli, quantity_of(b, name));
  return least;
}

ResourceQuantities split(const ResourceQuantities& all, int32_t number, int32_t count) {
  ResourceQuantities share;
  for (const auto& [name, milli] : all) {
    int64_t whole = milli / 1000;
    int64_t own = (whole / count + (number <= whole % count ? 1 : 0)) * 1000;
    if (number == 1) own += milli % 1000;
    if (own > 0) share.emplace_back(name, own);
  }
  return share;
}

std::vector<std::string> arguments_of(const ResourceQuantities& quantities) {
  std::vector<std::string> arguments;
  for (const auto& [name, milli] : quantities) {
    arguments.emplace_back("--resource");
    arguments.push_back(fmt::format("{}={}", name, static_cast<double>(milli) / 1000));
  }
  return arguments;
}

std::string words_of(const ResourceQuantities& quantities) {
  std::string text;
  for (size_t i = 0; i < quantities.size(); i++) {
    const auto& [name, milli] = quantities[i];
    const char* between = i == 0 ? "" : i + 1 == quantities.size() ? " and " : ", ";
    text += fmt::format("{}{} = {}", between, name, static_cast<double>(milli) / 1000);
  }
  return text;
}

}  // namespace flow
