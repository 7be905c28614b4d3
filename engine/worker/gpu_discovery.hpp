// The GPUs of this machine, asked of a child: the driver's library may crash or hang.
#pragma once
#include <cstdint>
#include <string>

#include "flow/gpu.hpp"

namespace flow {

/// A driver that has to start its GPUs first takes seconds a GPU.
constexpr int64_t kFindGpusMsMax = 20'000;

/// Those that `mask`, the value of CUDA_VISIBLE_DEVICES, leaves of the machine's; null: all. As
/// CUDA reads it: numbers (in the order of the PCI bus) or the beginnings of UUIDs, up to the first
/// that names no GPU.
MachineGpus visible_gpus(MachineGpus machine, const char* mask);
/// Starts `executor` to ask; blocks. What does not work is told in the result.
MachineGpus find_gpus(const std::string& executor, int64_t limit_ms = kFindGpusMsMax);

}  // namespace flow
