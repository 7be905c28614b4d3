// The driver's management library (NVML), loaded while the program runs: nothing of it is needed to
// build. A call of it may crash or hang with the driver, so only a process that is made for that
// calls it.
#pragma once
#include <string>

#include "flow/gpu.hpp"

namespace flow {

/// Names another library than the driver's.
constexpr const char* kNvmlVariable = "FLOW_NVML_LIB";

/// Every GPU of the machine, whatever CUDA_VISIBLE_DEVICES says; of one in MIG mode its instances.
MachineGpus nvml_gpus();

}  // namespace flow
