// A build without CUDA uses none.
#include "kernels/cuda/libraries.hpp"

namespace flow::cuda {

std::vector<GpuLibrary> libraries() { return {}; }

}  // namespace flow::cuda
