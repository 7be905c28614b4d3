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
bool has_literal_items(const Node& node);
bool is_map_unit(const Run& run, UnitId unit);  // the map's own, not an instance
bool is_dynamic(const Run& run, UnitId unit);

void add_late_edge(Run& run, UnitId unit, const Edge& edge);
/// Calls `visit(taker, guard)` for everything that waits, or once waited, for `unit`.
template <typename Visit>
void for_each_taker(const Run& run, UnitId unit, Visit visit) {
  const Takers& takers = run.takers;
  auto one = [&](uint32_t entry) {
    visit(UnitId{entry & ~Takers::kGuard}, (entry & Takers::kGuard) != 0);
  };
  if (unit + size_t{1} < takers.offsets.size()) {
    for (uint32_t i = takers.offsets[unit]; i < takers.offsets[unit + 1]; i++) one(takers.flat[i]);
  }
  auto late = takers.late.find(unit);
  if (late == takers.late.end()) return;
  for (uint32_t entry : late->second) one(entry);
}

/// Appends the fragment's nodes, with refs, `after` and guards that name the run's units from
/// `first_unit` on, and fills `calls.value`.
void append_nodes(Run& run, DynamicCalls& calls);
/// Marks the units whose results the node, or the run's result, takes.
void mark_taken(Run& run, const Value& value);
void mark_taken(Run& run, const Node& node);

}  // namespace flow::core
