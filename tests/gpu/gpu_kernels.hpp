// Script kernels on the GPU of this machine.
#pragma once

namespace flow::gpu {

/// Checks NVRTC, the driver's modules, launches and results; returns 1 on a mismatch. Without NVRTC
/// it prints that.
int check_kernels(bool with_speed);

}  // namespace flow::gpu
