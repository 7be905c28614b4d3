// Builds the messages that start attempts (orders): the task, its arguments, and the steps,
// checkpoints and waits that earlier attempts saved.
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

/// Not thread-safe: used by the engine loop's thread. All references must outlive the object.
class AttemptOrders {
 public:
  /// `encrypts`: the ranks of a gang encrypt large messages between nodes too. `stop` receives the
  /// error of a failed read of the store, which stops the engine.
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

  /// Appends one order per rank of the attempt to `orders`. Appends none if the attempt has been
  /// replaced or has ended, or if its arguments cannot be read: then it posts the attempt's
  /// failure.
  void add(const core::AttemptId& id, std::vector<AttemptOrder>& orders);

  /// Moves the starts whose orders can be sent before the turn's commit is durable out of
  /// `effects`, from the index `from` on, into a list for prefetch().
  void take_early_starts(std::vector<core::Command>& effects, size_t from);
  /// Whether an attempt in that list may run before the commit is durable, up to its first external
  /// effect. False again after prefetch().
  bool has_speculative_start() const { return has_speculative_start_; }
  /// Sends the orders of that list and clears it: executors fetch and decode the arguments while
  /// the commit is written. `commit`: its number, for which the executors wait.
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
  std::vector<core::AttemptId> early_starts_;
  bool has_speculative_start_ = false;
};

}  // namespace flow
