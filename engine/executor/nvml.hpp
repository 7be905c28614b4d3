// The driver's management library (NVML), loaded while the program runs: nothing of it is needed to
// build. A call of it may crash or hang with the driver, so only a process that is made for that
// calls it.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "flow/gpu.hpp"

namespace flow {

/// Names another library than the driver's.
constexpr const char* kNvmlVariable = "FLOW_NVML_LIB";

/// Every GPU of the machine, whatever CUDA_VISIBLE_DEVICES says; of one in MIG mode its instances.
MachineGpus nvml_gpus();
/// Tells each critical Xid of them from now on: of which device, an instance in MIG mode too, and
/// 0 of one that the driver has lost, as it has of those of `uuids` that are not there. Comes back
/// only where that can't be, with why.
std::string nvml_watch(const std::vector<std::string>& uuids,
                       const std::function<void(const std::string& uuid, uint32_t xid)>& on_xid);

}  // namespace flow
