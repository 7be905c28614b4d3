// Whether the driver of this machine's GPUs is new enough for flow's kernels. Needs neither a GPU
// nor CUDA.
#pragma once
#include <string>

namespace flow::cuda {

/// The least version of CUDA that a driver must support for the runtime that flow was built with,
/// as cudaDriverGetVersion counts: 13000 is CUDA 13.0. 0: this build has no CUDA.
int needed_driver();

/// "driver 550.54 (CUDA 12.4), flow needs 580 (CUDA 13.0)" if `supported` is less than `needed`,
/// else "". `release` is the driver's own version, or "". A version of 0 is unknown.
std::string old_driver_text(const std::string& release, int supported, int needed);

/// The release of the loaded kernel module, such as "550.54.15"; "": unknown. FLOW_SYSFS replaces
/// /sys in tests.
std::string driver_release();

}  // namespace flow::cuda
