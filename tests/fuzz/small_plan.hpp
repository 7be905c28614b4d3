// One node of every kind, for decoders that look up plans.
#pragma once
#include "engine/store/store.hpp"

namespace flow {

inline TaskNode small_node(const char* name, NodeKind kind, uint32_t def) {
  TaskNode node;
  node.name = name;
  node.kind = kind;
  node.def = def;
  node.args = Value::list({});
  return node;
}

/// Nodes: a task, a map over its result, a map over a list, a when of the task, a task of its
/// branch, a dynamic task, a service.
inline std::shared_ptr<const Plan> small_plan(const Digest&) {
  static const auto plan = [] {
    auto made = std::make_shared<Plan>();
    made->pipeline = "p";
    made->defs.resize(3);
    made->defs[0].name = "t";
    made->defs[1].name = "d";
    made->defs[1].kind = TaskKind::dynamic;
    made->defs[2].name = "s";
    made->defs[2].kind = TaskKind::service;
    for (uint32_t i = 0; i < 3; i++) made->defs[i].ordinal = i;
    Value first(Ref{0, {}});
    std::vector<TaskNode>& nodes = made->nodes;
    nodes.push_back(small_node("t", NodeKind::task, 0));
    nodes.push_back(small_node("t#2", NodeKind::map, 0));
    nodes.back().edit_detail().items = first;
    nodes.push_back(small_node("t#3", NodeKind::map, 0));
    nodes.back().edit_detail().items = Value::list({1, first});
    nodes.back().edit_detail().limit = 1;
    nodes.push_back(small_node("when", NodeKind::when, 0));
    nodes.back().edit_detail().condition = first;
    nodes.back().edit_detail().then_value = Value(Ref{4, {}});
    nodes.push_back(small_node("t#4", NodeKind::task, 0));
    nodes.back().guard.when = 3;
    nodes.push_back(small_node("d", NodeKind::task, 1));
    nodes.back().args = Value::list({first});
    nodes.push_back(small_node("s", NodeKind::task, 2));
    nodes.back().edit_detail().after = {0};
    made->result = Value(Ref{5, {}});
    return made;
  }();
  return plan;
}

inline std::shared_ptr<const PlanFragment> small_fragment(const Digest&) {
  static const auto fragment = [] {
    auto made = std::make_shared<PlanFragment>();
    made->nodes.push_back(small_node("t", NodeKind::task, 0));
    made->nodes.push_back(small_node("t#2", NodeKind::map, 0));
    made->nodes.back().edit_detail().items = Value(Ref{0, {}});
    made->result = Value(Ref{1, {}});
    return made;
  }();
  return fragment;
}

}  // namespace flow
