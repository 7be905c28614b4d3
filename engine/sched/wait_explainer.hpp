// Explains in words why the units of a run are not running.
#pragma once
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/core/core.hpp"
#include "engine/core/graph.hpp"
#include "engine/sched/binding.hpp"
#include "engine/sched/sched.hpp"

namespace flow::core {

/// What depends on the whole state is computed once, when a unit first needs it; the ready units of
/// a class share one reason. So the reasons of all units cost about as much as one look at all
/// units and at the edges between them. One thread uses it. The state must outlive it unchanged.
class WaitExplainer {
 public:
  WaitExplainer(const State& state, const RunId& run);

  /// Says in a sentence why the unit is not running. Of a ready one: the binding constraint of each
  /// worker and the units that hold it; for many workers the rest is summarized by constraint.
  std::string explain(UnitId unit);
  /// The class of a ready unit, as a key of Run::ready; null for other units.
  const SchedulingClass* class_of(UnitId unit);
  /// What explain() says of the ready units of a class of this run.
  const std::string& explain_class(const SchedulingClass& request);
  /// How many units, edges and classes it has looked at.
  size_t examined() const;

 private:
  /// The constraint that keeps a unit, or one more rank of a gang, from a worker.
  struct WorkerConstraint {
    WorkerId worker = 0;
    uint32_t ranks = 0;  // of a gang: how many ranks fit there now
    std::string constraint, why;
  };

  std::string open_edges(UnitId unit) const;
  std::string open_instances(UnitId unit);
  std::string why_parked(UnitId unit);
  std::string why_ready(const SchedulingClass& request);
  std::string why_no_gang(const SchedulingClass& request);
  std::string why_on_no_worker(const SchedulingClass& request);
  std::string why_not_yet(const SchedulingClass& request);
  std::vector<WorkerConstraint> constraints_by_worker(const SchedulingClass& request);
  std::string summary_of(const std::vector<WorkerConstraint>& rest, bool is_gang) const;
  std::string each_worker(const std::vector<WorkerConstraint>& waits, bool is_gang) const;
  const std::string& slot_holders();
  const std::string& preceding_tasks(int32_t priority);

  const State& state_;
  const RunId id_;
  const Run* const run_;  // null if it is not active
  std::optional<EdgeReader> edge_reader_;
  std::vector<Edge> edges_;
  // What was computed so far.
  std::optional<std::vector<const SchedulingClass*>> class_of_;  // by unit
  std::map<SchedulingClass, std::string> why_ready_;
  std::map<int32_t, std::string> preceding_;  // by priority
  std::optional<std::map<ClassOfRun, ReadyHead>> reservations_;
  std::optional<BlockingUnits> blocking_units_;
  std::optional<std::string> slot_holders_, served_run_;
  size_t examined_ = 0;  // without those of blocking_units_
};

}  // namespace flow::core
