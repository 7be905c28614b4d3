// A build without CUDA uses no library.
#include "kernels/cuda/libraries.hpp"

#include "kernels/cuda/cublaslt.hpp"

namespace flow::cuda {

std::vector<GpuLibrary> libraries() { return {}; }

size_t lt_version() { return 0; }

}  // namespace flow::cuda
