// All places of values in a plan. Garbage collection, file intake, checks of cache hits and blob
// transfer use this one list to find blobs.
#pragma once
#include <concepts>
#include <type_traits>

#include "engine/plan/plan.hpp"
#include "engine/value/value_blobs.hpp"

namespace flow {

inline const NodeDetail& detail_of(const TaskNode& node) { return node.detail(); }
inline NodeDetail& detail_of(TaskNode& node) { return node.edit_detail(); }

template <typename Visit>
void visit_arguments(const EncodedValue& args, Visit&& visit) {
  if (!args.holds_tag()) return;
  const Value value = args.value();
  visit(value);
}
template <typename Visit>
void visit_arguments(EncodedValue& args, Visit&& visit) {
  if (!args.holds_tag()) return;
  Value value = args.value();
  visit(value);
  args = value;
}

/// Calls `visit(value)` for each value of a node that may hold a tensor, a file or a ref. The value
/// is valid during the call. `AnyNode` is TaskNode or const TaskNode.
template <typename AnyNode, typename Visit>
requires std::same_as<std::remove_const_t<AnyNode>, TaskNode>
void for_each_value(AnyNode& node, Visit&& visit) {
  visit_arguments(node.args, visit);
  if (!node.has_detail()) return;
  auto& detail = detail_of(node);
  visit(detail.items);
  visit(detail.condition);
  visit(detail.then_value);
  visit(detail.else_value);
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
  for (const TaskNode& node : fragment.nodes) for_each_value(node, visit);
}

}  // namespace flow
