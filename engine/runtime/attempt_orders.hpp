// Builds the messages that start attempts (orders): the task, its arguments, and the steps,
// checkpoints and waits that earlier attempts saved.
#pragma once
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
#include "engine/telemetry/engine_telemetry.hpp"
#include "engine/worker/worker.hpp"

namespace flow {

/// Not thread-safe: used by the engine loop's thread. All references must outlive the object.
class AttemptOrders {
 public:
  /// `encrypts`: the ranks of a gang encrypt large messages between nodes too. `stop` receives the
  /// error of a failed read of the store, which stops the engine.
  AttemptOrders(const core::State& state, const Store& store, ActiveRuns& active_runs,
                InputResolver& resolver, const TurnBlobs& blobs, WorkerRegistry& workers,
                Inbox& inbox, StopCause& stop, EngineTelemetry& telemetry, bool encrypts,
                std::string state_dir)
      : state_(state),
        store_(store),
        active_runs_(active_runs),
        resolver_(resolver),
        blobs_(blobs),
        workers_(workers),
        inbox_(inbox),
        stop_(stop),
        telemetry_(telemetry),
        encrypts_(encrypts),
        state_dir_(std::move(state_dir)) {}

  /// Appends one order per rank of the attempt to `orders`. Appends none if the attempt has been
  /// replaced or has ended, or if its arguments cannot be read: then it posts the attempt's
  /// failure.
  void add(const core::AttemptId& id, std::vector<AttemptOrder>& orders);

  // An order may be sent before the commit that records its attempt's start is durable. The
  // executor then fetches and decodes the arguments while the disk writes. It runs a Lua task up
  // to its first external effect, and holds every other task until the engine releases the commit
  // (CommitSteps::release). Each turn calls take_early_starts(); GroupCommit then calls
  // prefetch() once per commit.

  /// Moves the starts that may be sent early out of `effects`, from the index `from` on, into the
  /// list of early starts. These are first attempts of tasks that are not native, in an engine with
  /// executors of its own: the orders of all others need what this turn's batch has not written
  /// yet.
  void take_early_starts(std::vector<core::Command>& effects, size_t from);
  /// Whether the list of early starts has a Lua or dynamic task, which computes before the commit
  /// is durable.
  bool has_speculative_start() const { return has_speculative_start_; }
  /// Sends the orders of the list of early starts and clears it. `commit`: the number of the commit
  /// that records these starts.
  void prefetch(uint64_t commit);

 private:
  /// Of all ranks. Returns false if there is none to send, as add().
  bool fill(const core::AttemptId& id, AttemptOrder& order);
  void split(AttemptOrder order, const core::Run& run, std::vector<AttemptOrder>& orders) const;
  static void send_keys(AttemptOrder& order);
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
  EngineTelemetry& telemetry_;
  const bool encrypts_;
  const std::string state_dir_;
  std::vector<core::AttemptId> early_starts_;
  bool has_speculative_start_ = false;
};

}  // namespace flow
