// A build without CUDA uses no library.
#include "kernels/cuda/libraries.hpp"

namespace flow::cuda {

std::vector<GpuLibrary> libraries() { return {}; }

}  // namespace flow::cuda
