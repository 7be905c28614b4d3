// GPUs that fail: what held one, and what waits for one, that is not to be had any more.
#pragma once
#include <string>

#include "engine/core/core.hpp"

namespace flow::core {

/// As it would be if none of its GPUs had failed.
WorkerInfo without_faults(WorkerInfo info);
/// Of those that the unit holds on the host, one that is dead there by `info`, or null.
const Gpu* dead_gpu_of(const WorkerInfo& info, WorkerId at, const Unit& unit);
/// "GPU-8f3c (NVIDIA H200) of the worker `a`, which it ran on, fell off the bus (Xid 79)"
std::string fault_text(const WorkerInfo& worker, const Gpu& gpu);
/// Whether it is news of the GPU that it failed, and is dead: the first failure is the one that is
/// told, and of one that is only worn that it is dead.
bool is_new_fault(const Gpu& gpu, bool is_dead);
/// What ended an attempt: that a GPU of it had failed, where what it reports may be for that.
Failure cause_on_gpu(const State& state, const Unit& unit, const Failure& reported);
/// That GPUs failed without which the task can't run on this engine's hosts, as a clause, or "".
/// Who leads workers waits for one that has others.
std::string failed_gpu_unsatisfiable_reason(const State& state, const TaskDef& def);

}  // namespace flow::core
