// Units of several ranks, which start together or not at all. What is said here of ranks holds for
// every unit: most have one.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "engine/core/core.hpp"
#include "engine/core/gpu_accounting.hpp"

namespace flow::core {

/// Calls `visit(host, gpus)` for each rank of the unit's newest attempt, rank 0 first.
template <typename Visit>
void for_each_rank(const Unit& unit, Visit visit) {
  visit(unit.worker, gpus_of(unit));
  if (!unit.detail) return;
  for (const Placement& rank : unit.detail->others) visit(rank.worker, rank.gpus);
}
/// Where a rank is of the unit's newest attempt.
WorkerId worker_of_rank(const Unit& unit, uint32_t rank);
/// Workers that are announced and not there.
uint32_t missing_workers(const State& state);
/// Where they are, each host once.
std::vector<WorkerId> workers_of(const Unit& unit);
/// What kills all that runs of the run, on every machine that is up. No state changes by it, so no
/// event is journaled.
std::vector<Command> kill_commands(const State& state, const RunId& run);
bool is_on(const Unit& unit, WorkerId worker);

/// Takes what the unit's ranks hold of their hosts, and gives it back; the CPUs of it.
int32_t take_ranks(State& state, const Run& run, UnitId unit);
int32_t release_ranks(State& state, const Run& run, UnitId unit);

/// How many ranks, up to `most`, find room on a host beside each other.
uint32_t ranks_that_fit(const WorkerInfo& worker, const FreeResources& free,
                        const SchedulingClass& request, uint32_t most);
/// Whether so many ranks are asked for, and there is room for all of them where they are placed.
bool may_place(const State& state, const SchedulingClass& request, const Assigned& gang);
/// What each rank gets: what it asks for, or where the hosts had not enough CPUs for all ranks if
/// nothing else ran, as many as they have for each. Workers that are announced count.
void bound_gang(const State& state, const TaskDef& def, SchedulingClass& request);
/// How many thousandths of a CPU each rank would get, of what it asks for, if nothing else ran.
int32_t gang_cpus_of(const State& state, const TaskDef& def);
/// What the hosts can't give all ranks of a gang, as a clause, or "". Where others may join, they
/// are waited for.
std::string gang_unsatisfiable_reason(const State& state, const TaskDef& def);

}  // namespace flow::core
