// The driver's management library (NVML), loaded at run time and not needed for the build. A call
// may crash or hang with the driver, so only a process that is started for it calls it.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/worker/gpu_samples.hpp"
#include "flow/gpu.hpp"

namespace flow {

/// Names a library to load instead of the driver's.
constexpr const char* kNvmlVariable = "FLOW_NVML_LIB";

/// `keep`: GPUs are used although their driver is too old for flow's kernels.
constexpr const char* kOldDriverVariable = "FLOW_OLD_DRIVER";

/// All GPUs of the machine, regardless of CUDA_VISIBLE_DEVICES; for one in MIG mode its instances.
/// None if the driver is too old for the CUDA runtime that flow was built with.
MachineGpus nvml_gpus();
struct NvmlListeners {
  std::function<void(const std::string& uuid, uint32_t xid)> on_xid;
  /// Called with each GPU of `uuids`, or whose instances are, at the start and every few seconds.
  /// Empty: the GPUs are not measured.
  std::function<void(const GpuSample& sample)> on_sample = {};
};
/// Reports each critical Xid from now on, with the device, also for each MIG instance; 0: the
/// driver has lost the device, or a device of `uuids` does not exist. Returns only if watching is
/// not possible, with the reason.
std::string nvml_watch(const std::vector<std::string>& uuids, const NvmlListeners& listeners);

/// Answers each list of UUIDs that `next` returns with the samples of those that are whole GPUs of
/// this machine, until it returns nothing. Returns at once if the driver cannot be asked.
void nvml_measure(const std::function<std::optional<std::vector<std::string>>()>& next,
                  const std::function<void(const std::vector<GpuSample>&)>& on_samples);

}  // namespace flow
