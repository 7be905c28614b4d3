// Edges between a run's units, computed from the plan and the calls of dynamic tasks.
#pragma once
#include <set>
#include <vector>

#include "engine/core/core.hpp"

namespace flow::core {

/// A dependency on `from`; with `guard`, on the branch that this when chooses.
struct Edge {
  UnitId from = 0;
  bool guard = false;
  auto operator<=>(const Edge&) const = default;
};

/// Reads the edges of units. Caches those of the last node, because the instances of a map follow
/// each other.
class EdgeReader {
 public:
  explicit EdgeReader(const Run& run) : run_(run) {}
  /// Dependencies that must be satisfied before the first query for the unit. Replaces `out`.
  void before(UnitId unit, std::vector<Edge>& out);

 private:
  const Run& run_;
  uint32_t common_of_ = kNoNode;
  std::vector<Edge> common_;
};

/// Dependencies of the result of a resolved when or an expanded dynamic task. Replaces `out`.
void result_edges(const Run& run, UnitId unit, std::vector<Edge>& out);

/// The whens, dynamic tasks and maps of dynamic tasks whose value holds a service, itself or in
/// that of another of them.
std::set<UnitId> joins_of_services(const Run& run);

bool is_satisfied(const Run& run, UnitId unit, const Edge& edge);
/// Whether the edge can never be satisfied, because its source ended without success.
bool is_dead(const Run& run, UnitId unit, const Edge& edge);

/// Whether the node is a map over a list in the script. Its instances are units from the start.
bool has_literal_items(const TaskNode& node);
/// The number of instances that are units from the start: of such a map, or the replicas that a
/// service has at most, if these may be more than one. 0 for other nodes.
size_t instances_from_start(const Plan& plan, const TaskNode& node);
bool is_map_unit(const Run& run, UnitId unit);         // the map's own, not an instance
bool may_have_instances(const Run& run, UnitId unit);  // of a map or a replicated service
bool is_dynamic(const Run& run, UnitId unit);

/// Why the instances of the map, or the calls of the dynamic task, cannot have their tags: two
/// units of the run would have one tagged name. "" if they can.
std::string tag_conflict(const Run& run, UnitId map_unit, const std::vector<std::string>& tags);
std::string tag_conflict(const Run& run, UnitId dynamic_unit, const PlanFragment& fragment);
/// Adds the units from `first` on to Run::tagged.
void add_tagged(Run& run, UnitId first);

void add_late_edge(Run& run, UnitId unit, const Edge& edge);
/// Calls `visit(dependent, guard)` for every dependent of `unit`.
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

/// Appends the fragment's nodes to the run; their refs, `after` and guards name the run's units
/// from `first_unit` on. Sets `calls.value`.
void append_nodes(Run& run, DynamicCalls& calls);
/// Marks the units to which `value`, an argument or the run's result, refers.
void mark_consumed(Run& run, const Value& value);
void mark_consumed(Run& run, const TaskNode& node);

}  // namespace flow::core
