// The parts of an engine, and how they are wired.
#pragma once
#include <memory>
#include <vector>

#include "engine/cluster/transfer/blob_directory.hpp"
#include "engine/core/core.hpp"
#include "engine/runs/input_resolver.hpp"
#include "engine/runtime/active_runs.hpp"
#include "engine/runtime/attempt_orders.hpp"
#include "engine/runtime/blob_pins.hpp"
#include "engine/runtime/cache_lookup.hpp"
#include "engine/runtime/effect_executor.hpp"
#include "engine/runtime/engine_loop_options.hpp"
#include "engine/runtime/gang_supervisor.hpp"
#include "engine/runtime/gpu_inventory.hpp"
#include "engine/runtime/group_commit.hpp"
#include "engine/runtime/inbox.hpp"
#include "engine/runtime/log_rows.hpp"
#include "engine/runtime/metric_rows.hpp"
#include "engine/runtime/missing_results.hpp"
#include "engine/runtime/operation_libraries.hpp"
#include "engine/runtime/query_handler.hpp"
#include "engine/runtime/recorder.hpp"
#include "engine/runtime/run_event_feed.hpp"
#include "engine/runtime/run_submission.hpp"
#include "engine/runtime/script_functions.hpp"
#include "engine/runtime/stored_runs.hpp"
#include "engine/runtime/timers.hpp"
#include "engine/runtime/turn.hpp"
#include "engine/runtime/turn_blobs.hpp"
#include "engine/runtime/worker_membership.hpp"
#include "engine/runtime/worker_registry.hpp"
#include "engine/runtime/worker_reports.hpp"
#include "engine/telemetry/engine_telemetry.hpp"
#include "engine/worker/native_tasks.hpp"

namespace flow {

/// The steps of a commit, carried out by the parts of the engine.
class EngineCommitSteps final : public CommitSteps {
 public:
  EngineCommitSteps(AttemptOrders& orders, RunEventFeed& feed, EffectExecutor& effects,
                    WorkerRegistry& workers, Inbox& inbox)
      : orders_(orders), feed_(feed), effects_(effects), workers_(workers), inbox_(inbox) {}
  bool has_speculative_start() const override { return orders_.has_speculative_start(); }
  void prefetch_orders(uint64_t commit) override { orders_.prefetch(commit); }
  void deliver(std::vector<Event> events) override { feed_.deliver(std::move(events)); }
  void execute(const std::vector<core::Command>& effects) override { effects_.execute(effects); }
  void ack_logs(size_t cost) override { workers_.ack_logs(cost); }
  void release(uint64_t commit) override { workers_.release(commit); }
  void on_written() override { inbox_.wake(); }

 private:
  AttemptOrders& orders_;
  RunEventFeed& feed_;
  EffectExecutor& effects_;
  WorkerRegistry& workers_;
  Inbox& inbox_;
};

/// Owns the parts. A part is constructed after those that it refers to and destroyed before them,
/// except where noted. Parts that turns own are not used outside of turns.
struct EngineComponents {
  /// Starts no thread and does not recover the state.
  EngineComponents(const EngineLoopOptions& engine_options, std::unique_ptr<Store> owned);

  /// Reports of this process's worker and of native tasks. On the threads that report.
  void on_reports(std::vector<Report> all);

  const EngineLoopOptions options;

  // Any thread may use them.
  const std::unique_ptr<Store> owned_store;
  Store& store;
  Blobs blobs;
  StateClock clock;
  StopCause stop;
  WorkerRegistry workers;
  const std::shared_ptr<cluster::BlobDirectory> blob_directory;  // which workers have large blobs
  const std::shared_ptr<Builder> builder;
  OperationLibraries operations;
  BlobPins pins;
  Inbox inbox;
  const std::shared_ptr<FrontControl> fronts;

  // Turns own them.
  core::State state;
  Commits commits;
  EngineTelemetry telemetry;  // refers to `active_runs`
  TurnBlobs turn_blobs;
  InputResolver resolver;
  CacheLookup cache;
  ActiveRuns active_runs;
  RunEventFeed feed;
  Recorder recorder;
  ScriptFunctions functions;
  QueryHandler queries;
  Timers timers;
  LogRows logs;
  MetricRows metrics;
  StoredRuns stored_runs;
  GangSupervisor gangs;
  AttemptOrders orders;
  EffectExecutor effects;  // refers to `native`
  EngineCommitSteps commit_steps;
  GroupCommit group_commit;
  SavedClock saved_clock;
  Scheduling scheduling;
  WorkerMembership membership;
  RunUpdates run_updates;
  Turn turn;

  // Any thread may use them.
  WorkerReports reports;
  MissingResults missing_results;
  RunSubmission submission;
  GpuInventory gpus;
  // The last one, because its threads report to the others until it is destroyed.
  NativeRunner native;

 private:
  /// The TRACEPARENT of the run's submitter; "" if it has none.
  std::string traceparent_of(const core::RunId& run);
  Inbox::Hooks inbox_hooks();
  std::shared_ptr<FrontControl> make_fronts();
  WorkerMembership::Hooks membership_hooks();
  GpuInventory::Hooks gpu_hooks();
  std::vector<TurnInput> due_inputs();
};

}  // namespace flow
