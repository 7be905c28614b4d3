// Gangs: units with several ranks, which start together or not at all. The functions on ranks hold
// for every unit; most units have one rank.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "engine/core/core.hpp"
#include "engine/core/gpu_accounting.hpp"

namespace flow::core {

/// Calls `visit(worker, gpus)` for each rank of the unit's newest attempt, rank 0 first.
template <typename Visit>
void for_each_rank(const Unit& unit, Visit visit) {
  visit(unit.worker, gpus_of(unit));
  if (!unit.detail) return;
  for (const Placement& rank : unit.detail->others) visit(rank.worker, rank.gpus);
}
/// The worker of a rank of the unit's newest attempt.
WorkerId worker_of_rank(const Unit& unit, uint32_t rank);
/// Number of announced workers that have not joined.
uint32_t missing_workers(const State& state);
/// The workers of all ranks, each once.
std::vector<WorkerId> workers_of(const Unit& unit);
/// Commands that kill every running attempt of the run on all workers that are up. The state does
/// not change, so no event is journaled.
std::vector<Command> kill_commands(const State& state, const RunId& run);
bool is_on(const Unit& unit, WorkerId worker);

/// Take and release the resources of the unit's ranks on their workers. Both return the CPUs.
int32_t take_ranks(State& state, const Run& run, UnitId unit);
int32_t release_ranks(State& state, const Run& run, UnitId unit);

/// Number of ranks, at most `most`, that fit on a worker together.
uint32_t ranks_that_fit(const WorkerInfo& worker, const FreeResources& free,
                        const SchedulingClass& request, uint32_t most);
/// Whether the number of ranks matches the request and each rank fits on its worker.
bool may_place(const State& state, const SchedulingClass& request, const Assigned& gang);
/// Reduces the CPUs per rank to what the workers could give all ranks if nothing else ran.
/// Announced workers count.
void bound_gang(const State& state, const Resources& requested, SchedulingClass& request);
/// CPUs (in thousandths) that each rank would get, at most what it requests, if nothing else ran.
int32_t gang_cpus_of(const State& state, const Resources& requested);
/// The resource that the workers cannot give to all ranks of a gang, as a clause; "" if none. If
/// workers may join, the gang waits for them instead.
std::string gang_unsatisfiable_reason(const State& state, const Resources& requested);

}  // namespace flow::core
