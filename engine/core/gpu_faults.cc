#include "engine/core/gpu_faults.hpp"

#include <algorithm>

#include "engine/core/gangs.hpp"
#include "engine/core/retry.hpp"
#include "engine/core/scaling.hpp"
#include "engine/core/transition.hpp"

namespace flow::core {

namespace {

/// The first GPU that the unit holds on the worker and that satisfies `wanted`; null if none.
template <typename Wanted>
const Gpu* find_held(const WorkerInfo& info, WorkerId worker, const Unit& unit, Wanted wanted) {
  const Gpu* found = nullptr;
  for_each_rank(unit, [&](WorkerId at, const std::vector<std::string>& gpus) {
    if (at != worker) return;
    for (const std::string& uuid : gpus) {
      auto gpu = find_gpu(info.gpus, uuid);
      if (found == nullptr && gpu && wanted(info.gpus[*gpu])) found = &info.gpus[*gpu];
    }
  });
  return found;
}

bool has_failed(const Gpu& gpu) { return !gpu.fault.empty(); }

}  // namespace

WorkerInfo without_faults(WorkerInfo info) {
  for (Gpu& gpu : info.gpus) {
    gpu.fault.clear();
    gpu.is_dead = false;
  }
  return info;
}

const Gpu* dead_gpu_of(const WorkerInfo& info, WorkerId at, const Unit& unit) {
  return find_held(info, at, unit, [](const Gpu& gpu) { return gpu.is_dead; });
}

std::string fault_text(const WorkerInfo& worker, const Gpu& gpu) {
  std::string of_worker = worker.name.empty() ? "" : " of the worker `" + worker.name + "`";
  return gpu.uuid + " (" + gpu.name + ")" + of_worker + ", which it ran on, " + gpu.fault;
}

// A program may report any failure after its GPU failed.
bool is_new_fault(const Gpu& gpu, bool is_dead) {
  return gpu.fault.empty() || (is_dead && !gpu.is_dead);
}

Failure cause_on_gpu(const State& state, const Unit& unit, const Failure& reported) {
  bool may_be = reported.cause == Cause::gpu_fault || budget_of(reported.cause) == RetryBudget::own;
  if (!may_be) return reported;
  for (WorkerId at : workers_of(unit)) {
    const WorkerInfo& worker = state.workers[at].info;
    const Gpu* gpu = find_held(worker, at, unit, has_failed);
    if (gpu == nullptr) continue;
    Failure failure{Cause::gpu_fault, fault_text(worker, *gpu), reported.message, reported.code};
    if (!reported.evidence.empty()) failure.evidence += "\n" + reported.evidence;
    return failure;
  }
  return reported;
}

std::string failed_gpu_unsatisfiable_reason(const State& state, const Run& run, UnitId unit) {
  const Resources& requested = resources_of(run, unit);
  if (requested.gpus_milli == 0) return "";
  bool has_any_failed =
      std::any_of(state.workers.begin(), state.workers.end(), [](const WorkerState& worker) {
        return std::any_of(worker.info.gpus.begin(), worker.info.gpus.end(), has_failed);
      });
  if (!has_any_failed) return "";
  bool is_head_only = core::is_head_only(*def_of(run, unit));
  std::string reason = gpu_unsatisfiable_reason(state, requested, is_head_only);
  return reason.empty() ? gang_unsatisfiable_reason(state, requested) : reason;
}

// First end the attempts that hold it, with the worker as it was; then update the worker.
void Transition::on(const GpuFailed& event) {
  Gpu& gpu = state_.workers[event.worker]
                 .info.gpus[*find_gpu(state_.workers[event.worker].info.gpus, event.uuid)];
  if (event.is_dead) end_gpu_holders(event.worker, gpu, event.fault);
  gpu.fault = event.fault;
  gpu.is_dead = gpu.is_dead || event.is_dead;
  note_presence(event.worker);
  rebuild_capacity(state_);
  note_unschedulable();
}

void Transition::end_gpu_holders(WorkerId at, const Gpu& gpu, const std::string& fault) {
  Gpu failed = gpu;
  failed.fault = fault;
  Failure failure{Cause::gpu_fault, fault_text(state_.workers[at].info, failed), "", 0};
  std::vector<std::pair<Run*, UnitId>> holders;
  for (auto& [id, run] : state_.runs) {
    if (run.phase_count(Phase::running) == 0) continue;
    for (UnitId unit = 0; unit < run.units.size(); unit++) {
      if (run.units[unit].phase != Phase::running) continue;
      auto is_it = [&](const Gpu& held) { return held.uuid == gpu.uuid; };
      bool holds_it = find_held(state_.workers[at].info, at, run.units[unit], is_it) != nullptr;
      if (holds_it) holders.emplace_back(&run, unit);
    }
  }
  for (auto& [run, unit] : holders) {
    if (run->units[unit].phase != Phase::running) continue;  // its run stopped with another
    bool is_gang = resources_of(*run, unit).is_gang();       // whose ranks end together
    if (!is_gang && state_.workers[at].is_up)
      emit(StopAttempt{current_attempt(*run, unit), true, at});
    fail_attempt(*run, unit, failure, {at, true, true, co_located(at, *run, unit)});
  }
}

// A service that was ready does not fail its run: it waits for a GPU to be found again.
bool Transition::is_unschedulable(const Run& run, UnitId unit) const {
  const Unit& u = run.units[unit];
  bool has_served = (u.detail && u.detail->restarts > 0) || is_further_replica(run, unit);
  return !has_served && !failed_gpu_unsatisfiable_reason(state_, run, unit).empty();
}

// A ready unit that waited for a GPU may have no GPU left to wait for.
void Transition::note_unschedulable() {
  for (auto& [id, run] : state_.runs) {
    if (run.phase_count(Phase::ready) == 0) continue;
    for (UnitId unit = 0; unit < run.units.size(); unit++) {
      bool is_noted = run.units[unit].phase == Phase::ready && is_unschedulable(run, unit);
      if (is_noted) unschedulable_.emplace_back(id, unit);
    }
  }
}

// Such a unit would wait forever, and its run with it.
void Transition::fail_unschedulable() {
  for (size_t i = 0; i < unschedulable_.size(); i++) {
    auto [id, unit] = unschedulable_[i];
    Run& r = run(id);
    if (r.units[unit].phase != Phase::ready) continue;  // cancelled with another
    std::string reason = failed_gpu_unsatisfiable_reason(state_, r, unit);
    touch(r);
    leave(r, unit);
    fail(r, unit,
         {Cause::gpu_fault,
          "`" + shown_name(r, unit) + "` " + reason +
              ". A restarted engine searches for GPUs again: `flow resume " + id + "` continues it",
          "", 0});
  }
  unschedulable_.clear();
}

}  // namespace flow::core
