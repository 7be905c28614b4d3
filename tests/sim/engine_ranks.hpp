// Ranks of gangs that a worker may run: those that the engine ordered, or that the worker offered
// when it joined, until the engine tells it to stop them.
#pragma once
#include <cstdint>
#include <optional>
#include <set>

#include "tests/sim/engine_durable.hpp"

namespace flow::sim {

class GangRanks {
 public:
  /// An attempt of so many ranks is ordered.
  void add(const core::AttemptId& id, uint32_t ranks);
  void stop(const core::AttemptId& id);
  /// The worker offers it as it joins, be it a gang's or not.
  void offer(const core::AttemptId& id) { offered_.insert(id); }
  /// The join was accepted when this many batches were durable: throws BrokenPromise where one that
  /// it offered was not current and was not told to stop.
  void accept(const DurableState& durable, uint64_t batches);
  /// A gang that has ended, and whose ranks here were not told to stop.
  std::optional<core::AttemptId> stale(const DurableState& durable) const;

 private:
  std::set<core::AttemptId> attempts_, offered_;
};

}  // namespace flow::sim
