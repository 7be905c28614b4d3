#include "engine/runtime/effect_executor.hpp"

#include <algorithm>
#include <memory>

#include "engine/base/failpoint.hpp"
#include "engine/blobs/checkpoint.hpp"
#include "engine/core/gangs.hpp"
#include "engine/core/rollover.hpp"
#include "engine/core/scaling.hpp"
#include "engine/runs/front_folder.hpp"
#include "engine/store/row_keys.hpp"

namespace flow {

namespace {

bool has_scaled_services(const core::Run& run) {
  return std::ranges::any_of(run.plan->defs,
                             [](const TaskDef& def) { return def.service.scaling.max > 0; });
}

// A request waits for its batch as long as the service wants it to, however many replicas there
// are.
ReplicaLimits limits_of(const ServiceSpec& service) {
  const ReplicaScaling& scaling = service.scaling;
  return {service.replicas, scaling.max, scaling.target_queue_us + service.batch_wait_us,
          scaling.up_after_ms, scaling.down_after_ms};
}

/// Those of the run whose replicas may scale at present.
std::vector<ScaledService> scaled_services(const core::State& state, const core::Run& run,
                                           const std::string& state_dir) {
  std::vector<ScaledService> services;
  if (!core::is_serving(run)) return services;
  bool may_shrink = !core::is_being_replaced(state, run);
  for (const auto& [set, replicas] : run.instances) {
    bool is_open = !run.units[set].dropped && run.units[set].phase == core::Phase::instances;
    if (!is_open || !core::is_scaled_set(run, set)) continue;
    services.push_back({set, front_folder(state_dir, run, replicas.front()),
                        limits_of(core::def_of(run, set)->service), core::replicas_in_use(run, set),
                        may_shrink});
  }
  return services;
}

}  // namespace

void EffectExecutor::execute(const std::vector<core::Command>& effects) {
  std::vector<AttemptOrder> orders;
  std::vector<core::RunId> ended;
  std::set<core::RunId> changed;
  for (const core::Command& effect : effects) {
    if (const auto* start = std::get_if<core::StartAttempt>(&effect)) {
      orders_.add(start->id, orders);
    } else if (const auto* stopped = std::get_if<core::StopAttempt>(&effect)) {
      stop(*stopped);
      changed.insert(stopped->id.run);
    } else if (const auto* saved = std::get_if<core::AckSaved>(&effect)) {
      acknowledge(*saved);
    } else if (const auto* timer = std::get_if<core::SetTimer>(&effect)) {
      timers_.set(*timer);
    } else if (const auto* run = std::get_if<core::RunChanged>(&effect)) {
      active_runs_.end_if_interrupted(run->run);
      changed.insert(run->run);
    } else if (const auto* traffic = std::get_if<core::ShiftTraffic>(&effect)) {
      give_to_fronts(*traffic, false);
    } else if (const auto* asked = std::get_if<core::MeasureTraffic>(&effect)) {
      measure(*asked);
    } else if (const auto* end = std::get_if<core::RunEnded>(&effect)) {
      ended.push_back(end->run);
      workers_.forget(end->run);
      forget_at_fronts(end->run);
    }
  }
  for (const AttemptOrder& order : orders)
    if (order.kind == TaskKind::service) changed.insert(order.id.run);
  watch_load(changed);
  start(std::move(orders));
  if (state_.workers.size() > 1) hold_fronts();
  for (const core::RunId& run : ended) timers_.forget(run);
  for (const core::RunId& run : ended) end_run(run);
}

void EffectExecutor::start(std::vector<AttemptOrder> orders) {
  auto is_native = [](const AttemptOrder& order) { return order.kind == TaskKind::native; };
  for (AttemptOrder& order : orders) {
    if (is_native(order)) native_.start(order, order.task_name);
  }
  std::erase_if(orders, is_native);
  if (!orders.empty()) workers_.stage(std::move(orders), 0);
}

// The front of a service runs on this machine, wherever its replicas are.
void EffectExecutor::hold_fronts() {
  std::vector<HeldFront> fronts;
  for (const auto& [folder, run] : fronts_of_other_workers(state_dir_, state_)) {
    const RunContext* context = active_runs_.find(run);
    fronts.push_back(
        {folder, context != nullptr ? context->front_lease_ms : RunContext().front_lease_ms});
  }
  workers_.hold_fronts(std::move(fronts));
}

void EffectExecutor::stop(const core::StopAttempt& stop) {
  failpoint("attempt-before-stop");
  const std::string worker = worker_name(stop.worker);
  if (worker.empty()) native_.stop(stop.id);
  if (may_save(stop)) {
    workers_.interrupt(worker, stop.id);
  } else {
    workers_.stop(worker, stop.id, stop.kill);
  }
}

// Attempts of an interrupted run, of a gang that grows, and of a gang with a rank on a draining
// worker are asked to reach a point from which they can continue. Attempts of a cancelled run and
// services are asked to end.
bool EffectExecutor::may_save(const core::StopAttempt& stop) const {
  auto run = state_.runs.find(stop.id.run);
  if (stop.kill || run == state_.runs.end() || stop.id.unit >= run->second.units.size())
    return false;
  const core::Unit& unit = run->second.units[stop.id.unit];
  bool grows = unit.detail && unit.detail->is_resizing;
  auto workers = core::workers_of(unit);
  bool is_leaving = std::any_of(workers.begin(), workers.end(), [&](core::WorkerId worker) {
    return state_.workers[worker].is_draining;
  });
  return (run->second.stopping || is_leaving || grows) && !run->second.cancelling &&
         core::def_of(run->second, stop.id.unit)->kind != TaskKind::service;
}

void EffectExecutor::acknowledge(const core::AckSaved& saved) {
  auto run = state_.runs.find(saved.id.run);
  if (run == state_.runs.end() || saved.id.unit >= run->second.units.size()) return;
  const core::Unit& unit = run->second.units[saved.id.unit];
  workers_.ack_saved(worker_name(unit.worker), saved.id, saved.name, true);
  if (saved.name.empty()) replicate(saved.id, unit);
}

// If the worker of rank 0 is lost, the next attempt finds the newest checkpoint on another one.
void EffectExecutor::replicate(const core::AttemptId& id, const core::Unit& unit) {
  std::vector<core::WorkerId> workers = core::workers_of(unit);
  auto peer = std::find_if(workers.begin(), workers.end(), [&](core::WorkerId worker) {
    return worker != unit.worker && !worker_name(worker).empty();
  });
  if (peer == workers.end()) return;
  std::string task = core::unit_name(state_.runs.at(id.run), id.unit);
  auto bytes = store_.get(Family::kv, checkpoint_key(id.run, task, unit.key));
  if (!bytes.ok() || !bytes->has_value()) return;
  auto row = decode_checkpoint_row(**bytes);
  if (row.ok() && !row->file.empty()) workers_.replicate(worker_name(*peer), id, row->digest);
}

std::string EffectExecutor::worker_name(core::WorkerId worker) const {
  return worker < state_.workers.size() ? state_.workers[worker].info.name : "";
}

void EffectExecutor::give_to_fronts(const core::ShiftTraffic& traffic, bool measures) {
  auto run = state_.runs.find(traffic.run);
  if (run == state_.runs.end()) return;
  const CanarySpec canary = core::canary_of(run->second);
  fronts_.give({traffic, measures, front_folders(run->second), canary.min_requests,
                canary.max_error_rate >= 0});
}

std::vector<std::string> EffectExecutor::front_folders(const core::Run& run) const {
  std::vector<std::string> folders;
  for (core::UnitId service : run.services) {
    std::string folder = front_folder(state_dir_, run, service);
    bool is_new = std::ranges::find(folders, folder) == folders.end();
    if (is_new) folders.push_back(std::move(folder));
  }
  return folders;
}

/// The front of a version that died before it was stopped waits for its replicas.
void EffectExecutor::forget_at_fronts(const core::RunId& id) {
  auto run = state_.runs.find(id);
  if (run == state_.runs.end() || run->second.services.empty()) return;
  fronts_.forget(id, front_folders(run->second));
}

/// The runs whose status changed, or the number of their replicas. What one of them may do depends
/// on the others of its name.
void EffectExecutor::watch_load(const std::set<core::RunId>& changed) {
  std::set<core::RunId> watched;
  for (const core::RunId& id : changed) {
    auto run = state_.runs.find(id);
    if (run == state_.runs.end() || run->second.services.empty()) continue;
    for (const auto& [other, each] : state_.runs) {
      bool is_concerned = other == id || (!each.name.empty() && each.name == run->second.name);
      if (is_concerned && has_scaled_services(each)) watched.insert(other);
    }
  }
  for (const core::RunId& id : watched)
    fronts_.watch(id, scaled_services(state_, state_.runs.at(id), state_dir_));
}

void EffectExecutor::measure(const core::MeasureTraffic& measure) {
  auto run = state_.runs.find(measure.run);
  if (run == state_.runs.end()) return;
  uint32_t percent = core::step_percent(core::canary_of(run->second), measure.step);
  give_to_fronts({measure.run, run->second.rollover.previous, measure.step, percent}, true);
}

// The rows and the archive of the run are committed: it leaves the state, then its listener leaves.
// A resume may load the run again, with another context, in the turn in which it leaves.
void EffectExecutor::end_run(const core::RunId& run) {
  std::shared_ptr<RunListener> listener;
  std::shared_ptr<const EnvironmentVariables> environment;
  if (RunContext* context = active_runs_.find(run)) {
    listener = context->listener;
    environment = context->environment;
  }
  if (on_run_ended_) on_run_ended_(run, std::move(environment));
  uint64_t number = active_runs_.number_of(run);
  inbox_.post({PostedEvent{core::RunDeleted{run}}, [this, run, listener, number](bool) {
                 active_runs_.erase(run, number);
                 if (listener) listener->on_end();
               }});
}

}  // namespace flow
