// A build without CUDA has no table for GPUs.
#include "kernels/table.hpp"

namespace flow::kernels {

const Kernels* cuda_kernels() { return nullptr; }

}  // namespace flow::kernels
