// NVIDIA's libraries that the kernels of this folder use.
#pragma once
#include <vector>

#include "flow/gpu.hpp"

namespace flow::cuda {

/// Loads them. Empty in a build without CUDA.
std::vector<GpuLibrary> libraries();

}  // namespace flow::cuda
