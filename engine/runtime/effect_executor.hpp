// Executes effects after their commit.
#pragma once
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/core.hpp"
#include "engine/runtime/active_runs.hpp"
#include "engine/runtime/attempt_orders.hpp"
#include "engine/runtime/inbox.hpp"
#include "engine/runtime/timers.hpp"
#include "engine/runtime/worker_registry.hpp"
#include "engine/store/store.hpp"
#include "engine/worker/native_tasks.hpp"
#include "engine/worker/service_fronts.hpp"

namespace flow {

/// Used by the turn's thread.
class EffectExecutor {
 public:
  EffectExecutor(const core::State& state, const Store& store, AttemptOrders& orders,
                 WorkerRegistry& workers, NativeRunner& native, Timers& timers,
                 ActiveRuns& active_runs, Inbox& inbox, FrontControl& fronts, std::string state_dir,
                 OnRunEnded on_run_ended)
      : state_(state),
        store_(store),
        orders_(orders),
        workers_(workers),
        native_(native),
        timers_(timers),
        active_runs_(active_runs),
        inbox_(inbox),
        fronts_(fronts),
        state_dir_(std::move(state_dir)),
        on_run_ended_(std::move(on_run_ended)) {}

  void execute(const std::vector<core::Command>& effects);

 private:
  void stop(const core::StopAttempt& stop);
  bool may_save(const core::StopAttempt& stop) const;
  void acknowledge(const core::AckSaved& saved);
  void replicate(const core::AttemptId& id, const core::Unit& unit);
  std::string worker_name(core::WorkerId worker) const;
  void start(std::vector<AttemptOrder> orders);
  void hold_fronts();
  void end_run(const core::RunId& run);
  void give_to_fronts(const core::ShiftTraffic& traffic, bool measures);
  std::vector<std::string> front_folders(const core::Run& run) const;
  void forget_at_fronts(const core::RunId& id);
  void measure(const core::MeasureTraffic& measure);
  void watch_load(const std::set<core::RunId>& changed);

  const core::State& state_;
  const Store& store_;
  AttemptOrders& orders_;
  WorkerRegistry& workers_;
  NativeRunner& native_;
  Timers& timers_;
  ActiveRuns& active_runs_;
  Inbox& inbox_;
  FrontControl& fronts_;
  const std::string state_dir_;
  const OnRunEnded on_run_ended_;
};

}  // namespace flow
