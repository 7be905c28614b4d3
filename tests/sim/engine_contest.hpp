// Gangs that compete for four equal workers with each other and with small tasks. A gang that would
// fit if nothing else ran must not be overtaken without limit.
#pragma once
#include <cstddef>
#include <memory>
#include <optional>
#include <set>

#include "engine/core/core.hpp"
#include "tests/sim/engine_durable.hpp"
#include "tests/sim/random.hpp"

namespace flow::sim {

constexpr uint32_t kContestWorkers = 4;

/// Three gangs, fixed and elastic, that become ready together with a map of small tasks. The widest
/// ones need all workers.
std::shared_ptr<const Plan> contest_plan(Random& random);
/// The capacity of each worker.
core::WorkerInfo contest_worker();

/// Watches the first gang in start order that waits only for what others hold.
class GangFairness final : public RecordObserver {
 public:
  /// Throws BrokenPromise where too many later units go before the gang.
  void on_record(const core::State& before, const core::Record& record) override;
  void on_batch(const core::State& state) override;
  /// How many gangs waited like that.
  size_t waits() const { return waits_; }

 private:
  void note_assigned(const core::State& state, const core::Assigned& event);

  std::optional<core::ReadyHead> waiting_;
  /// Attempts that must end before the gang can start: those that ran when it began to wait, and
  /// those of units that come before it.
  std::set<core::AttemptId> ahead_;
  size_t overtaken_ = 0;  // by later units, when `ahead_` had ended
  size_t waits_ = 0;
};

}  // namespace flow::sim
