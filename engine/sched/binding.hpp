// The constraint that keeps a unit, or one more rank of a gang, from a worker, and the units that
// hold the resource.
#pragma once
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/core.hpp"

namespace flow::core {

struct BlockingUnit {
  const Run* run = nullptr;
  UnitId unit = 0;
};

/// The running units of each worker, and the names of those that hold a resource, each found once.
/// One thread uses it. The state must outlive it unchanged.
class BlockingUnits {
 public:
  using Holds = std::function<bool(const BlockingUnit&)>;

  explicit BlockingUnits(const State& state);
  /// "`a`, `b`, `c` and 4 more", or "no task": those on the worker for which `holds` is true.
  /// `resource` names what they hold: `holds` is the same function for the same name.
  const std::string& names(WorkerId worker, const std::string& resource, const Holds& holds);
  /// How many units it has looked at.
  size_t examined() const { return examined_; }

 private:
  const State& state_;
  std::vector<std::vector<BlockingUnit>> by_worker_;
  std::map<std::pair<WorkerId, std::string>, std::string> names_;
  size_t examined_ = 0;
};

/// "`a`, `b`, `c` and 4 more"
class NameList {
 public:
  void add(const std::string& name);
  /// Adds `quoted(run, unit) + after`. Forms no name that is only counted.
  void add(const Run& run, UnitId unit, const std::string& after = "");
  bool empty() const { return count_ == 0; }
  std::string text() const;

 private:
  bool is_full() const;

  size_t count_ = 0;
  std::string text_;
};

struct BindingConstraint {
  std::string constraint;  // "cpus", "memory", "gpus", "where", the name of a resource, "draining",
                           // "away", "staging", or "": none
  std::string why;         // as a clause, with the units that hold it
};

/// The constraint that keeps one more rank from a worker on which `ranks` of it would fit (0 for a
/// unit that is not a gang).
BindingConstraint binding_constraint(const State& state, BlockingUnits& blocking_units, WorkerId at,
                                     const SchedulingClass& request, uint32_t ranks);

/// "2 CPUs and 16 GiB and gpus = 1 where `disk == ssd`"
std::string words_of(const SchedulingClass& request);
std::string quoted(const Run& run, UnitId unit);
/// " of run r" if there are other runs; else "".
std::string of_run(const State& state, const Run& run);

}  // namespace flow::core
