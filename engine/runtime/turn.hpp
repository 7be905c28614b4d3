// One turn: admits and applies its inputs, resolves queries, asks the scheduler, and commits.
#pragma once
#include <vector>

#include "engine/core/core.hpp"
#include "engine/runtime/active_runs.hpp"
#include "engine/runtime/attempt_orders.hpp"
#include "engine/runtime/gang_supervisor.hpp"
#include "engine/runtime/group_commit.hpp"
#include "engine/runtime/log_rows.hpp"
#include "engine/runtime/metric_rows.hpp"
#include "engine/runtime/recorder.hpp"
#include "engine/runtime/saved_clock.hpp"
#include "engine/runtime/scheduling.hpp"
#include "engine/runtime/stored_runs.hpp"
#include "engine/runtime/timers.hpp"
#include "engine/runtime/worker_membership.hpp"

namespace flow {

/// Writes the rows, events and archives that follow from changed runs and units.
class RunUpdates {
 public:
  RunUpdates(const StateClock& clock, ActiveRuns& active_runs, RunEventFeed& feed,
             StoredRuns& stored_runs, LogRows& logs, MetricRows& metrics, GangSupervisor& gangs,
             Timers& timers)
      : clock_(clock),
        active_runs_(active_runs),
        feed_(feed),
        stored_runs_(stored_runs),
        logs_(logs),
        metrics_(metrics),
        gangs_(gangs),
        timers_(timers) {}

  /// Handles the effects of the open commit from the index `from` on.
  void add(Commit& open, size_t from);
  void add_log(const AttemptLog& log) { feed_.publish_log(log); }
  void add_metric(const AttemptMetric& metric) { feed_.publish_metric(metric); }

 private:
  void expect_units(const Commit& open, size_t from, const std::vector<bool>& is_superseded);
  void run_changed(const core::RunId& run, Batch& batch);
  void run_ended(const core::RunId& run, Batch& batch);

  const StateClock& clock_;
  ActiveRuns& active_runs_;
  RunEventFeed& feed_;
  StoredRuns& stored_runs_;
  LogRows& logs_;
  MetricRows& metrics_;
  GangSupervisor& gangs_;
  Timers& timers_;
};

/// Not thread-safe: Inbox serializes the turns, which may run on different threads.
class Turn {
 public:
  Turn(core::State& state, StateClock& clock, SavedClock& saved_clock, Commit& open,
       Recorder& recorder, TurnBlobs& blobs, LogRows& logs, MetricRows& metrics,
       GangSupervisor& gangs, WorkerMembership& workers, ActiveRuns& active_runs,
       Scheduling& scheduling, AttemptOrders& orders, RunUpdates& updates,
       GroupCommit& group_commit)
      : state_(state),
        clock_(clock),
        saved_clock_(saved_clock),
        open_(open),
        recorder_(recorder),
        blobs_(blobs),
        logs_(logs),
        metrics_(metrics),
        gangs_(gangs),
        workers_(workers),
        active_runs_(active_runs),
        scheduling_(scheduling),
        orders_(orders),
        updates_(updates),
        group_commit_(group_commit) {}

  /// Decides and commits. The write may be deferred if `may_defer` and no input reads the store.
  void run(std::vector<TurnInput> inputs, bool may_defer);

 private:
  void decide(std::vector<TurnInput> inputs);
  // Each applies one kind of input and adds its writes to the open commit. Returns whether the
  // input was admitted.
  bool handle(PostedEvent& posted, core::Time now);
  bool handle(SavedProgress& saved, core::Time now);
  bool handle(AttemptLog& log, core::Time now);
  bool handle(AttemptMetric& metric, core::Time now);
  bool handle(StateCallback& callback, core::Time now);
  bool handle(StoreCallback& callback, core::Time now);
  core::Time time_of(const PostedEvent& posted, core::Time now) const;

  core::State& state_;
  StateClock& clock_;
  SavedClock& saved_clock_;
  Commit& open_;
  Recorder& recorder_;
  TurnBlobs& blobs_;
  LogRows& logs_;
  MetricRows& metrics_;
  GangSupervisor& gangs_;
  WorkerMembership& workers_;
  ActiveRuns& active_runs_;
  Scheduling& scheduling_;
  AttemptOrders& orders_;
  RunUpdates& updates_;
  GroupCommit& group_commit_;
};

}  // namespace flow
