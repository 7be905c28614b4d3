// Resource requests of attempts and whether they fit the free resources; used by the scheduler and
// by admit.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "engine/base/size_units.hpp"
#include "engine/core/free_resources.hpp"
#include "engine/core/gangs.hpp"
#include "engine/core/gpu_accounting.hpp"
#include "engine/core/retry.hpp"

namespace flow::core {

namespace {

/// A unit whose attempts take less than this may be assigned beyond the free slots, so that a slot
/// never idles during a disk sync.
constexpr uint32_t kShortUs = 5'000;
constexpr uint32_t kBacklogMax = 256;
constexpr uint64_t kBacklogUsPerSlot = 20'000;

constexpr int64_t kMemoryMax = int64_t{1} << 60;

/// A unit of a task, its definition, and what its attempt asks for.
struct Asking {
  const Unit& unit;
  const TaskDef& def;
  const Resources& requested;
};

const Resources& requested_by(const Unit& unit, const TaskDef& def) {
  bool is_computed = unit.detail && unit.detail->computed;
  return is_computed ? unit.detail->computed->resources : def.resources;
}

Asking asking(const Run& run, UnitId id) {
  const Unit& unit = run.units[id];
  const TaskDef& def = *def_of(run, id);
  return {unit, def, requested_by(unit, def)};
}

int64_t grown_memory(const Asking& asking) {
  const auto& [unit, def, requested] = asking;
  int64_t memory = std::clamp<int64_t>(requested.memory_bytes, 0, kMemoryMax);
  bool grows = unit.detail && (def.resource_functions & kMemoryFunction) == 0;
  uint32_t ooms = grows ? unit.detail->ooms : 0;
  for (uint32_t i = 0; i < ooms && memory < kMemoryMax; i++) {
    double grown = static_cast<double>(memory) * std::max(1.0, def.retry.oom_memory_factor);
    memory = grown >= static_cast<double>(kMemoryMax) ? kMemoryMax : static_cast<int64_t>(grown);
  }
  return memory;
}

/// The most that a worker can give. If workers may join, a unit waits for the memory it requests;
/// the bound then only limits how far the request grows.
struct Bounds {
  int32_t cpus_milli = 0;
  int64_t memory_bytes = 0;
  int64_t memory_bytes_min = 0;
};

/// No bounds: the unit waits for what it requests.
constexpr Bounds kUnbounded{INT32_MAX, INT64_MAX};

template <typename Suits>
Bounds largest(const State& state, int64_t memory_bytes, Suits suits_worker) {
  Bounds most;
  bool is_any = false;
  for (const WorkerState& worker : state.workers) {
    if (!suits_worker(worker)) continue;
    is_any = true;
    most.memory_bytes = std::max(most.memory_bytes, worker.info.memory_bytes);
  }
  if (!is_any) return kUnbounded;
  int64_t needed = std::min(memory_bytes, most.memory_bytes);
  for (const WorkerState& worker : state.workers) {
    if (suits_worker(worker) && worker.info.memory_bytes >= needed)
      most.cpus_milli = std::max(most.cpus_milli, worker.info.cpus_milli);
  }
  return most;
}

/// The maximum memory of the workers with CPUs, the GPUs and the custom resources, and the maximum
/// CPUs of those that also have the memory. If there is no such worker, the unit waits for one, and
/// the maxima are over all workers.
Bounds bounds_of(const State& state, const Asking& asking, int64_t memory_bytes) {
  const TaskDef& def = asking.def;
  const Resources& requested = asking.requested;
  const WorkerInfo& own = state.workers[0].info;
  if (is_head_only(def)) return {own.cpus_milli, own.memory_bytes};
  const ClusterCapacity& capacity = state.capacity;
  bool fits_each =
      requested.gpus_milli == 0 && requested.where.empty() && requested.custom_resources.empty() &&
      requested.cpus_milli <= capacity.cpus_milli_min && memory_bytes <= capacity.memory_bytes_min;
  if (fits_each) return {capacity.cpus_milli_min, capacity.memory_bytes_min};
  bool takes_no_cpu = requested.cpus_milli == 0 || def.kind == TaskKind::service;
  auto may_run = [&](const WorkerState& worker) {
    return !worker.is_lost() && (worker.info.cpus_milli > 0 || takes_no_cpu);
  };
  auto has_them = [&](const WorkerState& worker) {
    return may_run(worker) && matches_selector(requested.where, worker.info.labels) &&
           has_gpus(worker.info.gpus, requested) &&
           flow::fits(worker.info.custom_resources, requested.custom_resources);
  };
  bool is_there = std::any_of(state.workers.begin(), state.workers.end(), has_them);
  if (is_there) return largest(state, memory_bytes, has_them);
  return largest(state, memory_bytes, may_run);
}

/// Whether the run's own slots are the limit; with as many slots as the machine has, they are not.
bool is_bounded(const State& state, const Run& run) {
  return run.jobs > 0 && int64_t{run.jobs} * 1000 < state.capacity.cpus_milli;
}

/// As SchedulingClass::failed_on.
std::vector<WorkerId> failed_on(const UnitDetail& detail) {
  std::vector<WorkerId> workers, staging;
  for (const FailedAttempt& failed : detail.failed) {
    if (failed.cause == Cause::preempted) continue;
    workers.push_back(failed.worker);
    if (failed.cause == Cause::staging) staging.push_back(failed.worker);
    // What is missing there will still be missing.
    if (failed.cause == Cause::environment) staging.insert(staging.end(), 2, failed.worker);
  }
  std::sort(workers.begin(), workers.end());
  workers.erase(std::unique(workers.begin(), workers.end()), workers.end());
  for (WorkerId worker : std::vector<WorkerId>(workers))
    if (std::count(staging.begin(), staging.end(), worker) >= 2) workers.push_back(worker);
  std::sort(workers.begin(), workers.end());
  return workers;
}

UnitId limited_map_of(const Run& run, const Unit& unit) {
  bool is_limited = unit.instance >= 0 && run.node(unit.node).detail().limit > 0;
  return is_limited ? run.unit_of(unit.node) : kNoNode;
}

SchedulingClass request_within(const Bounds& most, int64_t memory_bytes, const Run& run,
                               const Asking& asking) {
  const auto& [u, def, requested] = asking;
  SchedulingClass request;
  request.priority = def.priority;
  if (def.kind != TaskKind::service) {
    request.cpus_milli = std::clamp(requested.cpus_milli, 0, most.cpus_milli);
    request.ranks = requested.ranks;
    request.ranks_max = std::max(requested.ranks, requested.ranks_max);
    int64_t jobs_milli = int64_t{run.jobs} * 1000 / request.ranks;
    if (run.jobs > 0 && jobs_milli < request.cpus_milli)
      request.cpus_milli = static_cast<int32_t>(jobs_milli);
  }
  request.memory_bytes = std::min(memory_bytes, std::max(most.memory_bytes, most.memory_bytes_min));
  request.is_head_only = is_head_only(def);
  request.is_service = def.kind == TaskKind::service;
  if (requested.gpus_milli > 0) request.gpu = gpu_request(requested);
  request.where = requested.where;
  request.custom_resources = requested.custom_resources;
  request.limited_map = limited_map_of(run, u);
  if (u.detail && !request.is_head_only) request.failed_on = failed_on(*u.detail);
  return request;
}

}  // namespace

UnitId limited_map_of(const Run& run, UnitId unit) { return limited_map_of(run, run.units[unit]); }

const Resources& resources_of(const Run& run, UnitId unit) { return asking(run, unit).requested; }

int64_t timeout_ms_of(const Run& run, UnitId unit) {
  const Unit& u = run.units[unit];
  bool is_computed = u.detail && u.detail->computed;
  return is_computed ? u.detail->computed->timeout_ms : def_of(run, unit)->timeout_ms;
}

std::string too_large_reason(const State& state, const TaskDef& def, const Resources& requested) {
  if (state.leads_workers && !is_head_only(def)) return "";
  const WorkerInfo& own = state.workers[0].info;
  if (requested.memory_bytes > own.memory_bytes)
    return "asks for " + format_bytes(static_cast<uint64_t>(requested.memory_bytes)) +
           " of memory, and this machine has " +
           format_bytes(static_cast<uint64_t>(own.memory_bytes));
  if (def.kind == TaskKind::service || requested.cpus_milli <= own.cpus_milli) return "";
  return fmt::format("asks for {} CPUs, and this machine has {}", requested.cpus_milli / 1000.0,
                     own.cpus_milli / 1000.0);
}

bool is_head_only(const TaskDef& def) { return def.kind == TaskKind::native; }

SchedulingClass resource_request(const State& state, const Run& run, UnitId unit) {
  const Asking of_unit = asking(run, unit);
  const Resources& requested = of_unit.requested;
  int64_t memory_bytes = grown_memory(of_unit);
  if (!requested.is_gang()) {
    Bounds most = bounds_of(state, of_unit, memory_bytes);
    if (state.leads_workers && !is_head_only(of_unit.def))
      most.memory_bytes_min = requested.memory_bytes;
    SchedulingClass request = request_within(most, memory_bytes, run, of_unit);
    request.runs_alone = is_suspect(of_unit.unit);
    return request;
  }
  SchedulingClass request = request_within(kUnbounded, memory_bytes, run, of_unit);
  request.runs_alone = is_suspect(of_unit.unit);
  bound_gang(state, requested, request);
  return request;
}

SchedulingClass held_on(const WorkerInfo& worker, const Run& run, UnitId unit) {
  const Asking of_unit = asking(run, unit);
  const Unit& u = of_unit.unit;
  SchedulingClass held =
      request_within({worker.cpus_milli, worker.memory_bytes}, grown_memory(of_unit), run, of_unit);
  held.runs_alone = u.detail && u.detail->runs_alone;
  if (of_unit.requested.is_gang()) {
    Share share = u.detail ? u.detail->share : Share{};
    held.cpus_milli = share.cpus_milli;
    held.memory_bytes = share.memory_bytes;
  }
  return held;
}

SchedulingClass held_by(const State& state, const Run& run, UnitId unit) {
  return held_on(state.workers.at(run.units[unit].worker).info, run, unit);
}

uint32_t expected_short_us(const Run& run, UnitId unit) {
  const TaskNode& node = run.node(run.units[unit].node);
  const TaskDef& def = run.plan->defs[node.def];
  const Resources& requested = requested_by(run.units[unit], def);
  bool plain = def.kind != TaskKind::service && requested.cpus_milli == 1000 &&
               requested.memory_bytes == 0 && requested.gpus_milli == 0 &&
               requested.where.empty() && requested.custom_resources.empty() &&
               !requested.is_gang();
  if (!plain || node.def >= run.durations_us.size()) return 0;
  uint32_t usual = run.durations_us[node.def];
  return usual < kShortUs ? usual : 0;
}

bool may_start(const State& state, const Run& run, const SchedulingClass& request,
               int32_t run_cpus_used_milli, uint32_t map_running) {
  if (request.limited_map != kNoNode) {
    uint32_t limit = run.node(run.units[request.limited_map].node).detail().limit;
    if (map_running >= limit) return false;
  }
  int64_t run_cpus_milli = run_cpus_used_milli + int64_t{request.cpus_milli} * request.ranks;
  return request.cpus_milli == 0 || !is_bounded(state, run) ||
         run_cpus_milli <= int64_t{run.jobs} * 1000;
}

bool is_suspect(const Unit& unit) {
  if (!unit.detail || unit.detail->deaths.size() + 1 < kLostMax) return false;
  const std::vector<Death>& deaths = unit.detail->deaths;  // a GPU is its own already
  return std::any_of(deaths.begin(), deaths.end(),
                     [](const Death& death) { return !death.is_gpu; });
}

namespace {

/// Whether everything but the CPUs fits.
bool fits_without_cpus(const WorkerState& worker, WorkerId at, const FreeResources& free,
                       const SchedulingClass& request) {
  if (request.is_head_only && at != 0) return false;
  if (request.memory_bytes > free.memory_free_bytes) return false;
  if (!matches_selector(request.where, worker.info.labels)) return false;
  if (!flow::fits(free.custom_resources, request.custom_resources)) return false;
  return request.gpu.milli == 0 || !choose_gpus(worker.info.gpus, free, request.gpu).empty();
}

/// Free resources of a worker after all attempts but services have ended; services may last as long
/// as their runs.
FreeResources free_with_services_only(const State& state, WorkerId at) {
  const WorkerInfo& info = state.workers[at].info;
  FreeResources free = all_free(info);
  for (const auto& [id, run] : state.runs) {
    for (UnitId service : run.services) {
      if (run.units[service].dropped || run.units[service].phase != Phase::running) continue;
      if (!is_on(run.units[service], at)) continue;
      SchedulingClass held = held_on(info, run, service);
      allocate(free, held, 0);
      allocate_gpus(info.gpus, free, held.gpu, gpus_of(run.units[service]));
    }
  }
  return free;
}

}  // namespace

bool is_set_aside(const WorkerState& worker, uint32_t units) {
  return worker.aside_until != 0 || (worker.failures.size() >= kFailuresInRow && units > 0);
}

// A unit that runs alone does not wait for services: these may last as long as the run, which waits
// for the unit.
bool may_share(const FreeResources& free, const SchedulingClass& request) {
  return free.alone == 0 && (!request.runs_alone || free.units == 0);
}

bool is_avoided(const State& state, WorkerId at, const SchedulingClass& request, uint32_t units) {
  constexpr auto kTries = 2;
  if (request.is_head_only) return false;
  auto is_tried = [&](WorkerId worker) {
    return !request.is_gang() &&
           std::count(request.failed_on.begin(), request.failed_on.end(), worker) >= kTries;
  };
  if (!is_tried(at) && !is_set_aside(state.workers[at], units)) return false;
  uint64_t ranks = 0;
  for (size_t i = 0; i < state.workers.size(); i++) {
    const WorkerState& worker = state.workers[i];
    auto other = static_cast<WorkerId>(i);
    bool is_there = other != at && !is_tried(other) && !is_set_aside(worker, 0) &&
                    !worker.is_lost() && !worker.is_draining &&
                    request.cpus_milli <= worker.info.cpus_milli;
    if (!is_there ||
        !fits_without_cpus(worker, other, free_with_services_only(state, other), request))
      continue;
    if (!request.is_gang()) return true;
    ranks += ranks_that_fit(worker.info, all_free(worker.info), request, request.ranks);
    if (ranks >= request.ranks) return true;
  }
  return false;
}

bool fits(const State& state, WorkerId at, const FreeResources& free,
          const SchedulingClass& request, uint32_t expected_us) {
  const WorkerState& worker = state.workers[at];
  if (!worker.takes_attempts() || !may_share(free, request)) return false;
  if (is_avoided(state, at, request, free.units)) return false;
  if (!fits_without_cpus(worker, at, free, request)) return false;
  if (request.cpus_milli == 0 || request.cpus_milli <= free.cpus_free_milli) return true;

  if (expected_us == 0) return false;
  int32_t slots = (worker.info.cpus_milli - free.long_milli) / 1000;
  if (slots <= 0) return false;
  if (free.short_units >= static_cast<uint32_t>(slots) + kBacklogMax) return false;
  return free.short_us + expected_us <= kBacklogUsPerSlot * static_cast<uint64_t>(slots);
}

FreeResources all_free(const WorkerInfo& worker) {
  FreeResources free;
  free.cpus_free_milli = worker.cpus_milli;
  free.memory_free_bytes = worker.memory_bytes;
  free.gpus = free_gpus(worker.gpus);
  free.custom_resources = worker.custom_resources;
  return free;
}

void allocate(FreeResources& free, const SchedulingClass& request, uint32_t expected_us) {
  free.cpus_free_milli -= request.cpus_milli;
  free.memory_free_bytes -= request.memory_bytes;
  add(free.custom_resources, request.custom_resources, -1);
  if (!request.is_service) free.units++;
  if (request.runs_alone) free.alone++;
  if (expected_us == 0) {
    free.long_milli += request.cpus_milli;
  } else {
    free.short_units++;
    free.short_us += expected_us;
  }
}

void release(FreeResources& free, const SchedulingClass& request, uint32_t expected_us) {
  free.cpus_free_milli += request.cpus_milli;
  free.memory_free_bytes += request.memory_bytes;
  add(free.custom_resources, request.custom_resources, 1);
  if (!request.is_service) free.units--;
  if (request.runs_alone) free.alone--;
  if (expected_us == 0) {
    free.long_milli -= request.cpus_milli;
  } else {
    free.short_units--;
    free.short_us -= expected_us;
  }
}

}  // namespace flow::core
