// Decides when an elastic gang restarts with more ranks.
#include <algorithm>

#include "engine/core/free_resources.hpp"
#include "engine/core/gangs.hpp"
#include "engine/sched/gang_placement.hpp"
#include "engine/sched/sched.hpp"

namespace flow::core {

namespace {

/// Classes examined in one call: if there are more, some unit waits for resources.
constexpr size_t kClassesMax = 64;

/// Whether a ready unit waits for resources. It does not if its run's own slots are the limit or if
/// no present worker has enough capacity.
bool waits_for_resources(const State& state, const ReadyHead& head) {
  const SchedulingClass& request = head.request;
  const Run& run = state.runs.at(head.run);
  auto running = run.map_running.find(request.limited_map);
  uint32_t map_running = running == run.map_running.end() ? 0 : running->second;
  if (!may_start(state, run, request, run.cpus_used_milli, map_running)) return false;
  uint64_t ranks = 0;
  for (size_t i = 0; i < state.workers.size(); i++) {
    const WorkerState& worker = state.workers[i];
    FreeResources empty = all_free(worker.info);
    if (!fits(state, static_cast<WorkerId>(i), empty, request, 0)) continue;
    ranks += ranks_that_fit(worker.info, empty, request, request.ranks);
  }
  return ranks >= request.ranks;
}

bool anything_waits(const State& state) {
  size_t classes = 0;
  return std::any_of(state.ready.begin(), state.ready.end(), [&](const ReadyHead& head) {
    return ++classes > kClassesMax || waits_for_resources(state, head);
  });
}

/// Gangs resize one at a time, because two would count on the same free resources.
bool any_gang_resizes(const State& state) {
  for (const auto& [id, run] : state.runs) {
    if (run.phase_count(Phase::running) == 0) continue;
    for (const Unit& u : run.units)
      if (u.phase == Phase::running && u.detail && u.detail->is_resizing) return true;
  }
  return false;
}

/// Marks a worker as full, because an attempt began or ended there recently.
void mark_full(FreeResources& free) {
  free.cpus_free_milli = 0;
  free.memory_free_bytes = 0;
  for (FreeGpu& gpu : free.gpus) gpu = {};
  for (auto& [name, milli] : free.custom_resources) milli = 0;
}

/// Number of ranks with which the gang would start if its attempt ended now; 0 if it would wait.
/// Units that wait for slots of their runs may start first, or have resources reserved for them.
size_t ranks_after_restart(State state, const AttemptId& id) {
  std::vector<Command> ignored;
  apply(state, {state.sequence + 1, state.at, AttemptStopped{id}}, ignored);
  for (const Event& event : schedule(state, SIZE_MAX)) {
    const auto* assigned = std::get_if<Assigned>(&event);
    bool is_it = assigned != nullptr && assigned->id.run == id.run && assigned->id.unit == id.unit;
    if (is_it) return assigned->others.size() + 1;
  }
  return 0;
}

}  // namespace

std::optional<ResizeRequested> elastic_scale_up(const State& state, const AttemptId& id,
                                                Time after_ms) {
  auto found = state.runs.find(id.run);
  bool is_unit = found != state.runs.end() && id.unit < found->second.units.size();
  if (!is_unit) return std::nullopt;
  const Run& run = found->second;
  const Unit& u = run.units[id.unit];
  if (!resources_of(run, id.unit).is_gang()) return std::nullopt;
  SchedulingClass request = resource_request(state, run, id.unit);
  bool may_resize = u.phase == Phase::running && current_attempt(run, id.unit) == id && u.detail &&
                    u.detail->others.size() + 1 < request.ranks_max && !run.stopping &&
                    !run.cancelling && !run.ending && state.at - u.assigned >= after_ms;
  if (!may_resize) return std::nullopt;
  for (WorkerId at : workers_of(u))
    if (!state.workers[at].takes_attempts()) return std::nullopt;
  if (anything_waits(state) || any_gang_resizes(state)) return std::nullopt;

  std::vector<FreeResources> free_by_worker;
  for (const WorkerState& worker : state.workers) {
    free_by_worker.push_back(worker.free);
    bool is_quiet = state.at - worker.changed >= after_ms;
    if (!is_quiet) mark_full(free_by_worker.back());
  }
  int32_t cpus_of_others = run.cpus_used_milli;
  for_each_rank(u, [&](WorkerId at, const std::vector<std::string>& gpus) {
    const WorkerInfo& worker = state.workers[at].info;
    SchedulingClass held = held_on(worker, run, id.unit);
    release(free_by_worker[at], held, u.expected_us);
    release_gpus(worker.gpus, free_by_worker[at], held.gpu, gpus);
    cpus_of_others -= held.cpus_milli;
  });
  auto has_slots = [&](uint32_t ranks) {
    SchedulingClass all = request;
    all.ranks = ranks;
    return may_start(state, run, all, cpus_of_others, 0);
  };
  auto ranks_min = static_cast<uint32_t>(u.detail->others.size() + 2);
  while (request.ranks_max > ranks_min && !has_slots(request.ranks_max)) request.ranks_max--;
  if (!has_slots(ranks_min)) return std::nullopt;
  // With the request of the restarted attempt, whose `ranks` decide which workers are avoided.
  auto placements = place_gang(state, free_by_worker, request);
  if (!placements || placements->size() < ranks_min) return std::nullopt;
  // The copy of the state is made only if another unit can make a difference.
  if (!state.ready.empty() && ranks_after_restart(state, id) < ranks_min) return std::nullopt;
  return ResizeRequested{id, static_cast<uint32_t>(placements->size())};
}

}  // namespace flow::core
