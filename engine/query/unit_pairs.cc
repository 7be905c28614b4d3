#include "engine/query/unit_pairs.hpp"

#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <string_view>

namespace flow {

namespace {

using UnitIds = std::vector<core::UnitId>;
using NamedUnits = std::vector<std::pair<std::string, core::UnitId>>;

NamedUnits nodes_of_plan(const core::Run& run) {
  NamedUnits units;
  for (size_t i = 0; i < run.plan->nodes.size(); i++)
    units.emplace_back(run.plan->nodes[i].name, static_cast<core::UnitId>(i));
  return units;
}

/// The calls that a dynamic unit returned, by their names within it.
NamedUnits calls_of(const core::Run& run, core::UnitId unit) {
  NamedUnits units;
  auto found = run.dynamic_of.find(unit);
  if (!run.units[unit].expanded || found == run.dynamic_of.end()) return units;
  const core::DynamicCalls& calls = run.dynamics[found->second];
  for (size_t i = 0; i < calls.fragment->nodes.size(); i++) {
    units.emplace_back(calls.fragment->nodes[i].name,
                       calls.first_unit + static_cast<core::UnitId>(i));
  }
  return units;
}

std::string key_text(const core::Run& run, core::UnitId unit) {
  const Digest& key = run.units[unit].key;
  return key.is_zero() ? "" : std::string(key.view());
}

bool have_tags(const UnitIds& units, const auto& tag_of) {
  return !units.empty() &&
         std::ranges::none_of(units, [&](core::UnitId unit) { return tag_of(unit).empty(); });
}

}  // namespace

UnitPairs::UnitPairs(const core::Run& before, const core::Run& now, InputResolver& resolver,
                     bool has_tags)
    : before_(before),
      now_(now),
      resolver_(resolver),
      has_tags_(has_tags),
      of_now_(now.units.size(), kNoNode) {
  pair_by_name(nodes_of_plan(before), nodes_of_plan(now));
  while (!open_.empty()) {
    auto [old_unit, new_unit] = open_.back();
    open_.pop_back();
    pair_instances(core::instances_of(before, old_unit), core::instances_of(now, new_unit));
    pair_by_name(calls_of(before, old_unit), calls_of(now, new_unit));
  }
}

void UnitPairs::pair(core::UnitId before, core::UnitId now) {
  of_now_[now] = before;
  open_.emplace_back(before, now);
}

void UnitPairs::pair_by_name(const Names& before, const Names& now) {
  std::map<std::string_view, core::UnitId> by_name(before.begin(), before.end());
  for (const auto& [name, unit] : now) {
    auto found = by_name.find(name);
    if (found != by_name.end()) pair(found->second, unit);
  }
}

void UnitPairs::pair_instances(const UnitIds& before, const UnitIds& now) {
  auto old_tag = [&](core::UnitId unit) { return core::tag_of(before_, unit); };
  auto new_tag = [&](core::UnitId unit) { return tag_of_now(unit); };
  UnitIds old_units = before, new_units = now;
  auto pair_equal = [&](const auto& old_text, const auto& new_text) {
    std::map<std::string, std::deque<core::UnitId>> by_text;
    for (core::UnitId unit : old_units)
      if (std::string text = old_text(unit); !text.empty()) by_text[text].push_back(unit);
    if (by_text.empty()) return;
    std::set<core::UnitId> paired;
    std::erase_if(new_units, [&](core::UnitId unit) {
      auto found = by_text.find(new_text(unit));
      if (found == by_text.end() || found->second.empty()) return false;
      paired.insert(found->second.front());
      pair(found->second.front(), unit);
      found->second.pop_front();
      return true;
    });
    std::erase_if(old_units, [&](core::UnitId unit) { return paired.contains(unit); });
  };
  if (have_tags(before, old_tag) && have_tags(now, new_tag)) return pair_equal(old_tag, new_tag);
  pair_equal([&](core::UnitId unit) { return key_text(before_, unit); },
             [&](core::UnitId unit) { return key_text(now_, unit); });
  if (old_units.empty() || new_units.empty()) return;
  pair_equal([&](core::UnitId unit) { return item_of(before_, unit); },
             [&](core::UnitId unit) { return item_of(now_, unit); });
  auto index = [](const core::Run& run, core::UnitId unit) {
    return std::to_string(run.units[unit].instance);
  };
  pair_equal([&](core::UnitId unit) { return index(before_, unit); },
             [&](core::UnitId unit) { return index(now_, unit); });
}

std::string UnitPairs::tag_of_now(core::UnitId unit) const {
  bool is_unknown = !has_tags_ && now_.node(now_.units[unit].node).detail().tags_items;
  return is_unknown ? "" : core::tag_of(now_, unit);
}

/// Equal for instances of equal items; "" if the item is not known.
std::string UnitPairs::item_of(const core::Run& run, core::UnitId unit) {
  if (run.units[unit].key.is_zero()) return "";
  auto components = resolver_.key_components(run, unit);
  if (!components.ok()) return "";
  std::string text;
  for (const KeyComponent& part : *components) {
    bool is_item = part.name == "argument 1" || part.name.starts_with("argument 1.");
    if (is_item) text += part.name + "=" + std::string(part.digest.view());
  }
  return text;
}

}  // namespace flow
