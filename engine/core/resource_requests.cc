// What an attempt takes, and whether it fits into what is free. The scheduler and admit share this.
#include <algorithm>
#include <cmath>

#include "engine/core/free_resources.hpp"
#include "engine/core/gangs.hpp"
#include "engine/core/gpu_accounting.hpp"
#include "engine/core/retry.hpp"

namespace flow::core {

namespace {

/// A unit whose attempts took less than this may be assigned beyond the free slots, so that a slot
/// never waits for a disk sync.
constexpr uint32_t kShortUs = 5'000;
constexpr uint32_t kBacklogMax = 256;
constexpr uint64_t kBacklogUsPerSlot = 20'000;

constexpr int64_t kMemoryMax = int64_t{1} << 60;

int64_t grown_memory(const TaskDef& def, const Unit& unit) {
  int64_t memory = std::clamp<int64_t>(def.resources.memory_bytes, 0, kMemoryMax);
  uint32_t ooms = unit.detail ? unit.detail->ooms : 0;
  for (uint32_t i = 0; i < ooms && memory < kMemoryMax; i++) {
    double grown = static_cast<double>(memory) * std::max(1.0, def.retry.oom_memory_factor);
    memory = grown >= static_cast<double>(kMemoryMax) ? kMemoryMax : static_cast<int64_t>(grown);
  }
  return memory;
}

/// What a host can give at most. Where others may join, the memory that is asked for is waited for,
/// and bounds only by how much it grows.
struct Bounds {
  int32_t cpus_milli = 0;
  int64_t memory_bytes = 0;
  int64_t memory_least_bytes = 0;
};

/// Bounds nothing: what is asked for is waited for.
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

/// The most memory of a host that has CPUs, the GPUs and what is asked for by name, and the most
/// CPUs of one that has the memory too. Where there is no such host, the unit waits for one, and
/// these are of all hosts.
Bounds bounds_of(const State& state, const TaskDef& def, int64_t memory_bytes) {
  const WorkerInfo& own = state.workers[0].info;
  if (is_home(def)) return {own.cpus_milli, own.memory_bytes};
  const Resources& asked = def.resources;
  const Reach& reach = state.reach;
  bool fits_each = asked.gpus_milli == 0 && asked.where.empty() && asked.custom_resources.empty() &&
                   asked.cpus_milli <= reach.cpus_least_milli &&
                   memory_bytes <= reach.memory_least_bytes;
  if (fits_each) return {reach.cpus_least_milli, reach.memory_least_bytes};
  auto may_run = [&](const WorkerState& worker) {
    return !worker.is_lost() && (worker.info.cpus_milli > 0 || asked.cpus_milli == 0);
  };
  auto has_them = [&](const WorkerState& worker) {
    return may_run(worker) && matches_selector(asked.where, worker.info.labels) &&
           has_gpus(worker.info.gpus, asked) &&
           flow::fits(worker.info.custom_resources, asked.custom_resources);
  };
  bool is_there = std::any_of(state.workers.begin(), state.workers.end(), has_them);
  if (is_there) return largest(state, memory_bytes, has_them);
  return largest(state, memory_bytes, may_run);
}

/// A run whose own slots are as many as the machine's is bounded by the machine alone.
bool is_bounded(const State& state, const Run& run) {
  return run.jobs > 0 && int64_t{run.jobs} * 1000 < state.reach.cpus_milli;
}

/// As ReadyClass has it.
std::vector<WorkerId> failed_on(const UnitDetail& detail) {
  std::vector<WorkerId> workers, staging;
  for (const FailedAttempt& failed : detail.failed) {
    if (failed.cause == Cause::preempted) continue;
    workers.push_back(failed.worker);
    if (failed.cause == Cause::staging) staging.push_back(failed.worker);
  }
  std::sort(workers.begin(), workers.end());
  workers.erase(std::unique(workers.begin(), workers.end()), workers.end());
  for (WorkerId worker : std::vector<WorkerId>(workers))
    if (std::count(staging.begin(), staging.end(), worker) >= 2) workers.push_back(worker);
  std::sort(workers.begin(), workers.end());
  return workers;
}

ReadyClass needs_within(const Bounds& most, int64_t memory_bytes, const Run& run, UnitId unit) {
  const TaskDef& def = *def_of(run, unit);
  ReadyClass needs;
  needs.priority = def.priority;
  if (def.kind != TaskKind::service) {
    needs.cpus_milli = std::clamp(def.resources.cpus_milli, 0, most.cpus_milli);
    needs.ranks = def.resources.ranks;
    needs.ranks_max = std::max(def.resources.ranks, def.resources.ranks_max);
    int64_t jobs_milli = int64_t{run.jobs} * 1000 / needs.ranks;
    if (run.jobs > 0 && jobs_milli < needs.cpus_milli)
      needs.cpus_milli = static_cast<int32_t>(jobs_milli);
  }
  needs.memory_bytes = std::min(memory_bytes, std::max(most.memory_bytes, most.memory_least_bytes));
  needs.is_home = is_home(def);
  if (def.resources.gpus_milli > 0) needs.gpu = gpu_needs_of(def.resources);
  needs.where = def.resources.where;
  needs.custom_resources = def.resources.custom_resources;
  needs.limited_map = limited_map_of(run, unit);
  const Unit& u = run.units[unit];
  if (u.detail && !needs.is_home) needs.failed_on = failed_on(*u.detail);
  return needs;
}

}  // namespace

UnitId limited_map_of(const Run& run, UnitId unit) {
  const Unit& u = run.units[unit];
  return u.instance >= 0 && run.node(u.node).limit > 0 ? run.unit_of(u.node) : kNoNode;
}

bool is_home(const TaskDef& def) {
  return def.kind == TaskKind::native || def.kind == TaskKind::service;
}

ReadyClass needs_of(const State& state, const Run& run, UnitId unit) {
  const TaskDef& def = *def_of(run, unit);
  int64_t memory_bytes = grown_memory(def, run.units[unit]);
  if (!def.resources.is_gang()) {
    Bounds most = bounds_of(state, def, memory_bytes);
    if (state.leads_workers && !is_home(def)) most.memory_least_bytes = def.resources.memory_bytes;
    ReadyClass needs = needs_within(most, memory_bytes, run, unit);
    needs.runs_alone = is_suspect(run.units[unit]);
    return needs;
  }
  ReadyClass needs = needs_within(kUnbounded, memory_bytes, run, unit);
  needs.runs_alone = is_suspect(run.units[unit]);
  bound_gang(state, def, needs);
  return needs;
}

ReadyClass held_on(const WorkerInfo& worker, const Run& run, UnitId unit) {
  const Unit& u = run.units[unit];
  const TaskDef& def = *def_of(run, unit);
  ReadyClass held =
      needs_within({worker.cpus_milli, worker.memory_bytes}, grown_memory(def, u), run, unit);
  held.runs_alone = u.detail && u.detail->runs_alone;
  if (def.resources.is_gang()) {
    Share share = u.detail ? u.detail->share : Share{};
    held.cpus_milli = share.cpus_milli;
    held.memory_bytes = share.memory_bytes;
  }
  return held;
}

ReadyClass held_by(const State& state, const Run& run, UnitId unit) {
  return held_on(state.workers.at(run.units[unit].worker).info, run, unit);
}

uint32_t expected_short_us(const Run& run, UnitId unit) {
  const TaskNode& node = run.node(run.units[unit].node);
  const TaskDef& def = run.plan->defs[node.def];
  const Resources& asked = def.resources;
  bool plain = def.kind != TaskKind::service && asked.cpus_milli == 1000 &&
               asked.memory_bytes == 0 && asked.gpus_milli == 0 && asked.where.empty() &&
               asked.custom_resources.empty() && !asked.is_gang();
  if (!plain || node.def >= run.durations_us.size()) return 0;
  uint32_t usual = run.durations_us[node.def];
  return usual < kShortUs ? usual : 0;
}

bool may_start(const State& state, const Run& run, const ReadyClass& needs,
               int32_t run_cpus_used_milli, uint32_t map_running) {
  if (needs.limited_map != kNoNode) {
    uint32_t limit = run.node(run.units[needs.limited_map].node).limit;
    if (map_running >= limit) return false;
  }
  int64_t run_cpus_milli = run_cpus_used_milli + int64_t{needs.cpus_milli} * needs.ranks;
  return needs.cpus_milli == 0 || !is_bounded(state, run) ||
         run_cpus_milli <= int64_t{run.jobs} * 1000;
}

bool is_suspect(const Unit& unit) {
  if (!unit.detail || unit.detail->deaths.size() + 1 < kLostMax) return false;
  const std::vector<Death>& deaths = unit.detail->deaths;  // a GPU is its own already
  return std::any_of(deaths.begin(), deaths.end(),
                     [](const Death& death) { return !death.is_gpu; });
}

namespace {

/// All but CPUs.
bool fits_without_cpus(const WorkerState& worker, WorkerId at, const FreeResources& free,
                       const ReadyClass& needs) {
  if (needs.is_home && at != 0) return false;
  if (needs.memory_bytes > free.memory_free_bytes) return false;
  if (!matches_selector(needs.where, worker.info.labels)) return false;
  if (!flow::fits(free.custom_resources, needs.custom_resources)) return false;
  return needs.gpu.milli == 0 || !choose_gpus(worker.info.gpus, free, needs.gpu).empty();
}

/// Of a host when all has ended but the services there, which may last as long as their runs.
FreeResources free_with_services_only(const State& state, WorkerId at) {
  const WorkerInfo& info = state.workers[at].info;
  FreeResources free = all_free(info);
  if (at != 0) return free;
  for (const auto& [id, run] : state.runs) {
    for (UnitId service : run.services) {
      if (run.units[service].dropped || run.units[service].phase != Phase::running) continue;
      ReadyClass held = held_on(info, run, service);
      take(free, held, 0);
      take_gpus(info.gpus, free, held.gpu, gpus_of(run.units[service]));
    }
  }
  return free;
}

}  // namespace

bool is_set_aside(const WorkerState& worker, uint32_t units) {
  return worker.aside_until != 0 || (worker.failures.size() >= kFailuresInRow && units > 0);
}

bool may_share(const FreeResources& free, const ReadyClass& needs) {
  return free.alone == 0 && (!needs.runs_alone || free.units == 0);
}

bool is_given_up(const State& state, WorkerId at, const ReadyClass& needs, uint32_t units) {
  constexpr auto kTries = 2;
  if (needs.is_home) return false;
  auto is_tried = [&](WorkerId worker) {
    return !needs.is_gang() &&
           std::count(needs.failed_on.begin(), needs.failed_on.end(), worker) >= kTries;
  };
  if (!is_tried(at) && !is_set_aside(state.workers[at], units)) return false;
  uint64_t ranks = 0;
  for (size_t i = 0; i < state.workers.size(); i++) {
    const WorkerState& worker = state.workers[i];
    auto other = static_cast<WorkerId>(i);
    bool is_there = other != at && !is_tried(other) && !is_set_aside(worker, 0) &&
                    !worker.is_lost() && !worker.is_draining &&
                    needs.cpus_milli <= worker.info.cpus_milli;
    if (!is_there ||
        !fits_without_cpus(worker, other, free_with_services_only(state, other), needs))
      continue;
    if (!needs.is_gang()) return true;
    ranks += ranks_that_fit(worker.info, all_free(worker.info), needs, needs.ranks);
    if (ranks >= needs.ranks) return true;
  }
  return false;
}

bool fits(const State& state, WorkerId at, const FreeResources& free, const ReadyClass& needs,
          uint32_t expected_us) {
  const WorkerState& worker = state.workers[at];
  if (!worker.takes_attempts() || !may_share(free, needs)) return false;
  if (is_given_up(state, at, needs, free.units)) return false;
  if (!fits_without_cpus(worker, at, free, needs)) return false;
  if (needs.cpus_milli == 0 || needs.cpus_milli <= free.cpus_free_milli) return true;

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

void take(FreeResources& free, const ReadyClass& needs, uint32_t expected_us) {
  free.cpus_free_milli -= needs.cpus_milli;
  free.memory_free_bytes -= needs.memory_bytes;
  add(free.custom_resources, needs.custom_resources, -1);
  free.units++;
  if (needs.runs_alone) free.alone++;
  if (expected_us == 0) {
    free.long_milli += needs.cpus_milli;
  } else {
    free.short_units++;
    free.short_us += expected_us;
  }
}

void release(FreeResources& free, const ReadyClass& needs, uint32_t expected_us) {
  free.cpus_free_milli += needs.cpus_milli;
  free.memory_free_bytes += needs.memory_bytes;
  add(free.custom_resources, needs.custom_resources, 1);
  free.units--;
  if (needs.runs_alone) free.alone--;
  if (expected_us == 0) {
    free.long_milli -= needs.cpus_milli;
  } else {
    free.short_units--;
    free.short_us -= expected_us;
  }
}

}  // namespace flow::core
