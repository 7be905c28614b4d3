#include "engine/core/gangs.hpp"

#include <algorithm>
#include <map>

#include "engine/base/size_units.hpp"
#include "engine/core/free_resources.hpp"
#include "engine/core/mutants.hpp"

namespace flow::core {

namespace {

/// Number of ranks, at most `most`, that fit on the workers that are not lost if nothing else runs.
uint64_t ranks_in_all(const State& state, const SchedulingClass& request, uint32_t most) {
  uint64_t ranks = 0;
  for (const WorkerState& worker : state.workers) {
    if (worker.is_lost() || worker.info.cpus_milli == 0) continue;
    ranks += ranks_that_fit(worker.info, all_free(worker.info), request, most);
    if (ranks >= most) break;
  }
  return ranks;
}

/// The same for announced workers that have not joined: each is assumed to be like the largest one
/// that has. If none has joined, their capacity is unknown and assumed to suffice.
uint64_t announced_ranks(const State& state, const SchedulingClass& request, uint32_t most) {
  uint32_t missing = missing_workers(state);
  if (missing == 0) return 0;
  uint32_t ranks = 0;
  bool is_any = false;
  for (size_t i = 1; i < state.workers.size(); i++) {
    const WorkerInfo& info = state.workers[i].info;
    if (state.workers[i].is_lost() || info.cpus_milli == 0) continue;
    is_any = true;
    ranks = std::max(ranks, ranks_that_fit(info, all_free(info), request, most));
  }
  return is_any ? uint64_t{ranks} * missing : most;
}

void allocate_rank(const WorkerInfo& worker, FreeResources& free, const SchedulingClass& request,
                   const std::vector<std::string>& gpus) {
  allocate(free, request, 0);
  allocate_gpus(worker.gpus, free, request.gpu, gpus);
}

/// The request of one rank with no CPUs: ranks may get fewer CPUs than requested.
SchedulingClass rank_of(const Resources& requested) {
  SchedulingClass each;
  each.memory_bytes = requested.memory_bytes;
  each.gpu = gpu_request(requested);
  each.where = requested.where;
  each.custom_resources = requested.custom_resources;
  return each;
}

}  // namespace

uint32_t missing_workers(const State& state) {
  auto there =
      std::count_if(state.workers.begin() + 1, state.workers.end(), [](const WorkerState& worker) {
        return !worker.is_lost() && !worker.is_draining && worker.info.cpus_milli > 0;
      });
  return state.announced - std::min(state.announced, static_cast<uint32_t>(there));
}

WorkerId worker_of_rank(const Unit& unit, uint32_t rank) {
  bool is_other = rank > 0 && unit.detail && rank <= unit.detail->others.size();
  return is_other ? unit.detail->others[rank - 1].worker : unit.worker;
}

std::vector<WorkerId> workers_of(const Unit& unit) {
  std::vector<WorkerId> workers;
  for_each_rank(unit, [&](WorkerId worker, const auto&) {
    if (std::find(workers.begin(), workers.end(), worker) == workers.end())
      workers.push_back(worker);
  });
  return workers;
}

std::vector<Command> kill_commands(const State& state, const RunId& id) {
  std::vector<Command> commands;
  auto found = state.runs.find(id);
  if (found == state.runs.end()) return commands;
  const Run& run = found->second;
  for (UnitId unit = 0; unit < run.units.size(); unit++) {
    if (run.units[unit].phase != Phase::running) continue;
    for (WorkerId worker : workers_of(run.units[unit]))
      if (state.workers[worker].is_up)
        commands.push_back(StopAttempt{current_attempt(run, unit), true, worker});
  }
  return commands;
}

bool is_on(const Unit& unit, WorkerId worker) {
  if (unit.worker == worker) return true;
  return unit.detail &&
         std::any_of(unit.detail->others.begin(), unit.detail->others.end(),
                     [worker](const Placement& rank) { return rank.worker == worker; });
}

namespace {

/// Calls `change(worker, held, gpus)` with the resources of each rank on its worker. Returns the
/// CPUs of all ranks.
template <typename Change>
int32_t for_each_held(State& state, const Run& run, UnitId unit, Change change) {
  int32_t cpus_milli = 0;
  for_each_rank(run.units[unit], [&](WorkerId at, const std::vector<std::string>& gpus) {
    WorkerState& worker = state.workers[at];
    SchedulingClass held = held_on(worker.info, run, unit);
    change(worker, held, gpus);
    cpus_milli += held.cpus_milli;
  });
  return cpus_milli;
}

}  // namespace

int32_t take_ranks(State& state, const Run& run, UnitId unit) {
  uint32_t expected_us = run.units[unit].expected_us;
  return for_each_held(state, run, unit,
                       [&](WorkerState& worker, const SchedulingClass& held, const auto& gpus) {
                         allocate(worker.free, held, expected_us);
                         allocate_gpus(worker.info.gpus, worker.free, held.gpu, gpus);
                       });
}

int32_t release_ranks(State& state, const Run& run, UnitId unit) {
  uint32_t expected_us = run.units[unit].expected_us;
  return for_each_held(state, run, unit,
                       [&](WorkerState& worker, const SchedulingClass& held, const auto& gpus) {
                         bool is_first = &worker == &state.workers[run.units[unit].worker];
                         if (has_mutant(Mutant::other_ranks_keep_resources) && !is_first) return;
                         release(worker.free, held, expected_us);
                         release_gpus(worker.info.gpus, worker.free, held.gpu, gpus);
                       });
}

uint32_t ranks_that_fit(const WorkerInfo& worker, const FreeResources& free,
                        const SchedulingClass& request, uint32_t most) {
  if (!matches_selector(request.where, worker.labels)) return 0;
  int64_t ranks = most;
  if (request.cpus_milli > 0)
    ranks = std::min<int64_t>(ranks, std::max(free.cpus_free_milli, 0) / request.cpus_milli);
  if (request.memory_bytes > 0)
    ranks = std::min(ranks, std::max<int64_t>(free.memory_free_bytes, 0) / request.memory_bytes);
  ranks = how_many_fit(free.custom_resources, request.custom_resources, ranks);
  if (request.gpu.milli == 0 || ranks == 0) return static_cast<uint32_t>(ranks);
  FreeResources left = free;
  for (uint32_t rank = 0; rank < ranks; rank++) {
    std::vector<std::string> gpus = choose_gpus(worker.gpus, left, request.gpu);
    if (gpus.empty()) return rank;
    allocate_gpus(worker.gpus, left, request.gpu, gpus);
  }
  return static_cast<uint32_t>(ranks);
}

namespace {

bool fits_rank(const WorkerState& worker, WorkerId at, const FreeResources& free,
               const SchedulingClass& request) {
  bool is_open = worker.takes_attempts() && (at == 0 || !request.is_head_only);
  return is_open && ranks_that_fit(worker.info, free, request, 1) > 0;
}

}  // namespace

bool may_place(const State& state, const SchedulingClass& request, const Assigned& gang) {
  size_t ranks = gang.others.size() + 1;
  bool is_right = ranks >= request.ranks && ranks <= request.ranks_max &&
                  gang.share == Share{request.cpus_milli, request.memory_bytes};
  if (!is_right) return false;
  std::map<WorkerId, FreeResources> free_by_worker;
  SchedulingClass each = request;  // ranks may share a worker
  each.runs_alone = false;
  auto add = [&](WorkerId at, const std::vector<std::string>& gpus) {
    if (at >= state.workers.size()) return false;
    const WorkerState& worker = state.workers[at];
    if (!may_share(worker.free, request) || is_avoided(state, at, request, worker.free.units))
      return false;
    FreeResources& free = free_by_worker.try_emplace(at, worker.free).first->second;
    bool is_free = fits_rank(worker, at, free, each) &&
                   may_allocate_gpus(worker.info.gpus, free, request.gpu, gpus);
    if (is_free) allocate_rank(worker.info, free, each, gpus);
    return is_free;
  };
  return add(gang.worker, gang.gpus) &&
         std::all_of(gang.others.begin(), gang.others.end(),
                     [&](const Placement& rank) { return add(rank.worker, rank.gpus); });
}

void bound_gang(const State& state, const Resources& requested, SchedulingClass& request) {
  auto fit = [&](const SchedulingClass& each) {
    uint64_t ranks = ranks_in_all(state, each, request.ranks);
    return ranks >= request.ranks ||
           ranks + announced_ranks(state, each, request.ranks) >= request.ranks;
  };
  if (fit(request)) return;
  SchedulingClass less = request;
  less.cpus_milli = 0;
  if (!fit(less)) {
    // Memory that grew after an out-of-memory failure does not prevent another attempt.
    less.memory_bytes = request.memory_bytes =
        std::min(request.memory_bytes, requested.memory_bytes);
    if (fit(request) || !fit(less)) return;
  }
  int32_t enough = 0, too_many = request.cpus_milli;
  while (too_many - enough > 1) {
    less.cpus_milli = enough + (too_many - enough) / 2;
    (fit(less) ? enough : too_many) = less.cpus_milli;
  }
  if (enough > 0) request.cpus_milli = enough;
}

int32_t gang_cpus_of(const State& state, const Resources& requested) {
  SchedulingClass request = rank_of(requested);
  request.cpus_milli = requested.cpus_milli;
  request.ranks = requested.ranks;
  bound_gang(state, requested, request);
  return request.cpus_milli;
}

std::string gang_unsatisfiable_reason(const State& state, const Resources& requested) {
  if (!requested.is_gang() || state.leads_workers) return "";
  SchedulingClass each = rank_of(requested);
  uint64_t ranks = ranks_in_all(state, each, requested.ranks);
  if (ranks >= requested.ranks) return "";
  std::string what;
  if (each.memory_bytes > 0)
    what = " of " + format_bytes(static_cast<uint64_t>(each.memory_bytes)) + " of memory";
  if (each.gpu.milli > 0) what += (what.empty() ? " with " : " and ") + words_of(each.gpu);
  if (!each.custom_resources.empty())
    what += (what.empty() ? " with " : " and ") + words_of(each.custom_resources);
  if (!each.where.empty()) what += " where `" + each.where + "`";
  return "asks for " + std::to_string(requested.ranks) + " ranks" + what +
         " each, and there is room for " + std::to_string(ranks) +
         ": ask for less, or run it where there is more";
}

}  // namespace flow::core
