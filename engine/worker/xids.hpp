// The meaning of Xids, the error numbers of NVIDIA's driver.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

namespace flow {

/// Fields as in Gpu.
struct GpuError {
  std::string fault;
  bool is_dead = false;
};

/// Nothing for an unknown Xid or one that a program causes: otherwise a defective task would take
/// one GPU after the other out of use. 0: the driver has lost the device.
std::optional<GpuError> gpu_error_of(uint32_t xid);

}  // namespace flow
