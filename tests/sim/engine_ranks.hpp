// Ranks of gangs that a worker may run: those that the engine ordered, or that the worker offered
// when it joined, until the engine tells it to stop them.
#pragma once
#include <set>
#include <vector>

#include "engine/worker/worker.hpp"
#include "tests/sim/engine_durable.hpp"

namespace flow::sim {

class GangRanks {
 public:
  void add(const AttemptOrder& order);
  void stop(const core::AttemptId& id);
  /// What the worker offers as it joins, gangs or not.
  void offer(const std::vector<core::AttemptId>& attempts);
  /// The join is accepted: throws BrokenPromise where one of these is not current and was not told
  /// to stop.
  void accept(const DurableState& durable);
  /// When all effects of the durable records are executed: throws BrokenPromise where a gang has
  /// ended and its ranks here were not told to stop.
  void check(const DurableState& durable) const;

 private:
  std::set<core::AttemptId> attempts_, offered_;
};

}  // namespace flow::sim
