// Kernels that a script brings, on the GPU that is here.
#pragma once

namespace flow::gpu {

/// NVRTC, the driver's modules, launches and what they compute; 1 on a miss. Where there is no
/// NVRTC it says so.
int check_kernels(bool with_speed);

}  // namespace flow::gpu
