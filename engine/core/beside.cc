// Whether a new version has room beside the version before, which keeps its replicas meanwhile.
#include <initializer_list>

#include "engine/core/free_resources.hpp"
#include "engine/core/gangs.hpp"
#include "engine/core/rollover.hpp"

namespace flow::core {

namespace {

/// What the worker has besides the services of these runs.
FreeResources free_beside(const WorkerInfo& info, WorkerId at,
                          std::initializer_list<const Run*> runs) {
  FreeResources free = all_free(info);
  for (const Run* run : runs) {
    for (UnitId service : run->services) {
      const Unit& u = run->units[service];
      if (u.dropped || u.phase != Phase::running || !is_on(u, at)) continue;
      SchedulingClass held = held_on(info, *run, service);
      allocate(free, held, 0);
      allocate_gpus(info.gpus, free, held.gpu, gpus_of(u));
    }
  }
  return free;
}

}  // namespace

// Tasks end, and then there is room.
std::string beside_problem(const State& state, const Run& run, const Run& owner, UnitId service) {
  SchedulingClass request = resource_request(state, run, service);
  bool fits_alone = false;
  for (size_t i = 0; i < state.workers.size(); i++) {
    auto at = static_cast<WorkerId>(i);
    const WorkerState& worker = state.workers[i];
    const WorkerInfo& info = worker.info;
    if (worker.is_disconnected || worker.aside_until != 0) return "";  // it may come back
    if (fits(state, at, free_beside(info, at, {&run, &owner}), request, 0)) return "";
    fits_alone = fits_alone || fits(state, at, free_beside(info, at, {&run}), request, 0);
  }
  if (!fits_alone) return "";
  return "has no room beside the version before, " + owner.id +
         ", whose replicas stay until this version has the traffic: write `rollover = "
         "\"replace\"` in the options of the service, which stops that version first, or ask for "
         "less";
}

}  // namespace flow::core
