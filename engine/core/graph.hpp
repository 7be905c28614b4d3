// Edges between a run's units: read off the plan and the call lists of dynamic tasks.
#pragma once
#include <vector>

#include "engine/core/core.hpp"

namespace flow::core {

/// The unit waits for `from`; with `guard`, for the side that this when chooses.
struct Edge {
  UnitId from = 0;
  bool guard = false;
  auto operator<=>(const Edge&) const = default;
};

/// Reads units' edges. Remembers the last node's, since instances of one map come one after the
/// other.
class EdgeReader {
 public:
  explicit EdgeReader(const Run& run) : run_(run) {}
  /// What a unit waits for before anything is asked about it. Replaces `out`.
  void before(UnitId unit, std::vector<Edge>& out);

 private:
  const Run& run_;
  uint32_t common_of_ = kNoNode;
  std::vector<Edge> common_;
};

/// What a resolved when or an expanded dynamic task waits for. Replaces `out`.
void result_edges(const Run& run, UnitId unit, std::vector<Edge>& out);

bool is_satisfied(const Run& run, UnitId unit, const Edge& edge);
/// Never will be satisfied: what it waits for ended otherwise.
bool is_dead(const Run& run, UnitId unit, const Edge& edge);

/// A map whose list is written in the script: its instances are units from the start.
bool has_literal_items(const TaskNode& node);
bool is_map_unit(const Run& run, UnitId unit);  // the map's own, not an instance
bool is_dynamic(const Run& run, UnitId unit);

void add_late_edge(Run& run, UnitId unit, const Edge& edge);
/// Calls `visit(taker, guard)` for everything that waits, or once waited, for `unit`.
template <typename Visit>
void for_each_dependent(const Run& run, UnitId unit, Visit visit) {
  const Dependents& dependents = run.dependents;
  auto one = [&](uint32_t entry) {
    visit(UnitId{entry & ~Dependents::kGuard}, (entry & Dependents::kGuard) != 0);
  };
  if (unit + size_t{1} < dependents.offsets.size()) {
    for (uint32_t i = dependents.offsets[unit]; i < dependents.offsets[unit + 1]; i++)
      one(dependents.flat[i]);
  }
  auto late = dependents.late.find(unit);
  if (late == dependents.late.end()) return;
  for (uint32_t entry : late->second) one(entry);
}

/// Appends the fragment's nodes, with refs, `after` and guards that name the run's units from
/// `first_unit` on, and fills `calls.value`.
void append_nodes(Run& run, DynamicCalls& calls);
/// Marks the units whose results the node, or the run's result, takes.
void mark_consumed(Run& run, const Value& value);
void mark_consumed(Run& run, const TaskNode& node);

}  // namespace flow::core
