// What the errors that NVIDIA's driver tells of, its Xids, say of a GPU.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

namespace flow {

/// As in Gpu.
struct GpuError {
  std::string fault;
  bool is_dead = false;
};

/// None where it tells of the program that ran there, or is not known: a GPU that a task's own
/// mistake took away would be followed by the next one that the task is tried on. 0: the driver has
/// lost the device.
std::optional<GpuError> gpu_error_of(uint32_t xid);

}  // namespace flow
