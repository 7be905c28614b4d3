// The orders of attempts: the task, its arguments, and what earlier attempts left.
#pragma once
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/core.hpp"
#include "engine/runs/input_resolver.hpp"
#include "engine/runtime/active_runs.hpp"
#include "engine/runtime/inbox.hpp"
#include "engine/runtime/stop_cause.hpp"
#include "engine/runtime/turn_blobs.hpp"
#include "engine/runtime/worker_registry.hpp"
#include "engine/store/store.hpp"
#include "engine/worker/worker.hpp"

namespace flow {

/// Used by the turn's thread.
class AttemptOrders {
 public:
  /// `encrypts`: the ranks of gangs encrypt what is long for each other too.
  AttemptOrders(const core::State& state, const Store& store, ActiveRuns& active_runs,
                InputResolver& resolver, const TurnBlobs& blobs, WorkerRegistry& workers,
                Inbox& inbox, StopCause& stop, bool encrypts)
      : state_(state),
        store_(store),
        active_runs_(active_runs),
        resolver_(resolver),
        blobs_(blobs),
        workers_(workers),
        inbox_(inbox),
        stop_(stop),
        encrypts_(encrypts) {}

  /// Adds one order per rank of the attempt; none if the attempt is not current any more.
  void add(const core::AttemptId& id, std::vector<AttemptOrder>& orders);

  /// Removes from `effects`, from the index `from` on, the starts whose orders can be sent before
  /// the commit.
  void defer_starts(std::vector<core::Command>& effects, size_t from);
  /// Whether one of the deferred starts computes before its commit is durable.
  bool has_speculative_start() const { return has_speculative_start_; }
  /// Sends the orders of the deferred starts: executors fetch and decode while the disk works.
  void prefetch(uint64_t commit);

 private:
  std::optional<AttemptOrder> make(const core::AttemptId& id);
  void split(AttemptOrder order, const core::Run& run, std::vector<AttemptOrder>& orders) const;
  std::string worker_name(core::WorkerId worker) const;
  bool can_prefetch(const core::AttemptId& id) const;
  void add_environment(const TaskDef& def, const RunContext& context, AttemptOrder& order) const;
  void attach_blobs(AttemptOrder& order) const;
  void attach_progress(const core::Run& run, const core::Unit& unit, AttemptOrder& order) const;
  void attach_blobs_of(const std::string& value, AttemptOrder& order) const;

  const core::State& state_;
  const Store& store_;
  ActiveRuns& active_runs_;
  InputResolver& resolver_;
  const TurnBlobs& blobs_;
  WorkerRegistry& workers_;
  Inbox& inbox_;
  StopCause& stop_;
  const bool encrypts_;
  std::vector<core::AttemptId> deferred_starts_;
  bool has_speculative_start_ = false;
};

}  // namespace flow
