// Finds the GPUs of this machine in a child process, because the driver's library may crash or
// hang.
#pragma once
#include <cstdint>
#include <string>

#include "flow/gpu.hpp"

namespace flow {

/// A driver that must first initialize its GPUs takes seconds per GPU.
constexpr int64_t kFindGpusMsMax = 20'000;

/// The machine's GPUs that `mask`, the value of CUDA_VISIBLE_DEVICES, selects; null: all. Parsed as
/// by CUDA: numbers (in PCI order) or prefixes of UUIDs, up to the first entry that names no GPU.
MachineGpus visible_gpus(MachineGpus machine, const char* mask);
/// Starts `executor` to query the driver; blocks. Problems are part of the result.
MachineGpus find_gpus(const std::string& executor, int64_t limit_ms = kFindGpusMsMax);

}  // namespace flow
