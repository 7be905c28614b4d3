// What differs between the keys of a task in two runs, in words.
#pragma once
#include <string>
#include <vector>

#include "engine/plan/plan.hpp"
#include "engine/runs/input_resolver.hpp"

namespace flow {

/// One difference.
struct KeyChange {
  std::string cause;  // without values: "argument `samples`", "its function"
  std::string text;   // "argument `samples`[5].value changed from `25` to `36`"
  // Locations of a changed function: "features.lua:12-20"; "" for other changes
  std::string source_before{}, source_now{};
};

/// The key of a task and what made it.
struct KeyParts {
  const std::vector<KeyComponent>& components;
  const TaskDef& def;
};

/// Empty if they are equal. Digests are written with all their digits.
std::vector<KeyChange> key_changes(const KeyParts& before, const KeyParts& now);

/// "argument `samples`; its function": equal for tasks that changed in the same way.
std::string joined_causes(const std::vector<KeyChange>& changes);
/// The texts of the changes, "; " between them.
std::string joined_texts(const std::vector<KeyChange>& changes);

}  // namespace flow
