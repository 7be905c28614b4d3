// Where values stand in a plan, and which content a value refers to. One list of each, for all that
// has to find content: garbage collection, the intake of files, checks before a cache hit, transfer
// between machines.
#pragma once
#include <concepts>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "engine/plan/plan.hpp"

namespace flow {

/// Calls `visit(value)` for each value of a node. `AnyNode` is Node or const Node.
template <typename AnyNode, typename Visit>
requires std::same_as<std::remove_const_t<AnyNode>, Node>
void for_each_value(AnyNode& node, Visit&& visit) {
  visit(node.args);
  visit(node.items);
  visit(node.condition);
  visit(node.then_value);
  visit(node.else_value);
}

/// The same for a whole plan.
template <typename AnyPlan, typename Visit>
requires std::same_as<std::remove_const_t<AnyPlan>, Plan>
void for_each_value(AnyPlan& plan, Visit&& visit) {
  visit(plan.params);
  visit(plan.result);
  for (auto& node : plan.nodes) for_each_value(node, visit);
}

/// The same for the calls of a dynamic task.
template <typename Visit>
void for_each_value(const PlanFragment& fragment, Visit&& visit) {
  visit(fragment.result);
  for (const Node& node : fragment.nodes) for_each_value(node, visit);
}

/// What a tensor's bytes come to; nothing where its shape is impossible.
inline std::optional<uint64_t> size_of(const Tensor& tensor) {
  uint64_t size = dtype_size(tensor.dtype);
  for (int64_t extent : tensor.shape) {
    bool fits = extent >= 0 && !__builtin_mul_overflow(size, static_cast<uint64_t>(extent), &size);
    if (!fits) return std::nullopt;
  }
  return size;
}

/// Calls `visit(digest, size, origin)` for each tensor, file and file of a folder in the value,
/// repeats too. `origin` is the path of a file that is read in place, else "". `size` is empty for
/// a tensor of an impossible shape.
template <typename Visit>
void for_each_content(const Value& value, Visit&& visit) {
  switch (value.kind()) {
    case Value::Kind::table:
      for (const Value& item : value.as_table().list) for_each_content(item, visit);
      for (const auto& [key, field] : value.as_table().fields) for_each_content(field, visit);
      return;
    case Value::Kind::tensor:
      visit(value.as_tensor().digest, size_of(value.as_tensor()), std::string());
      return;
    case Value::Kind::file: {
      const File& file = value.as_file();
      if (!file.is_folder) {
        visit(file.digest, std::optional<uint64_t>(file.size), file.origin);
        return;
      }
      // The digest of a folder is that of its listing, which is in the value.
      for (const File::Entry& entry : file.entries) {
        visit(entry.digest, std::optional<uint64_t>(entry.size),
              file.origin.empty() ? std::string() : file.origin + "/" + entry.path);
      }
      return;
    }
    default:
      return;
  }
}

}  // namespace flow
