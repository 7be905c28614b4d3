// GPU failures: their effect on the units that hold the GPU and on those that wait for one.
#pragma once
#include <string>

#include "engine/core/core.hpp"

namespace flow::core {

/// The same worker with no GPU marked as failed.
WorkerInfo without_faults(WorkerInfo info);
/// A GPU that the unit holds on the worker and that is dead according to `info`; null if none.
const Gpu* dead_gpu_of(const WorkerInfo& info, WorkerId at, const Unit& unit);
/// "GPU-8f3c (NVIDIA H200) of the worker `a`, which it ran on, fell off the bus (Xid 79)"
std::string fault_text(const WorkerInfo& worker, const Gpu& gpu);
/// Whether the report adds information: the first fault of the GPU, or the death of a GPU that had
/// only a fault.
bool is_new_fault(const Gpu& gpu, bool is_dead);
/// The failure of an attempt: a GPU fault if one of its GPUs failed and the reported failure can be
/// a consequence; otherwise the reported failure.
Failure cause_on_gpu(const State& state, const Unit& unit, const Failure& reported);
/// Names the failed GPUs without which the task cannot run on this engine's workers, as a clause;
/// "" if none. A head with workers waits for a worker with other GPUs instead.
std::string failed_gpu_unsatisfiable_reason(const State& state, const Run& run, UnitId unit);

}  // namespace flow::core
