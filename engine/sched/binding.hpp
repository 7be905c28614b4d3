// The constraint that keeps a unit, or one more rank of a gang, from a worker, and the units that
// hold the resource.
#pragma once
#include <string>
#include <vector>

#include "engine/core/core.hpp"

namespace flow::core {

struct BlockingUnit {
  const Run* run = nullptr;
  UnitId unit = 0;
};

/// The running units of each worker, computed once.
class BlockingUnits {
 public:
  explicit BlockingUnits(const State& state);
  const std::vector<BlockingUnit>& on(WorkerId worker) const { return by_worker_[worker]; }

 private:
  std::vector<std::vector<BlockingUnit>> by_worker_;
};

/// "`a`, `b`, `c` and 4 more"
class NameList {
 public:
  void add(const std::string& name);
  bool empty() const { return count_ == 0; }
  std::string text() const;

 private:
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
BindingConstraint binding_constraint(const State& state, const BlockingUnits& blocking_units,
                                     WorkerId at, const SchedulingClass& request, uint32_t ranks);

/// "2 CPUs and 16 GiB and gpus = 1 where `disk == ssd`"
std::string words_of(const SchedulingClass& request);
std::string quoted(const Run& run, UnitId unit);
/// " of run r" if there are other runs; else "".
std::string of_run(const State& state, const Run& run);

}  // namespace flow::core
