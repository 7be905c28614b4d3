// A build without CUDA's kernels.
#include "kernels/table.hpp"

namespace flow::kernels {

const Kernels* cuda_kernels() { return nullptr; }

}  // namespace flow::kernels
