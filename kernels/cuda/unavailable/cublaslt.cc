// A build without CUDA. A file of its own: programs with an emulated GPU have these functions.
#include "kernels/cuda/cublaslt.hpp"

namespace flow::cuda {

size_t lt_version() { return 0; }

}  // namespace flow::cuda
