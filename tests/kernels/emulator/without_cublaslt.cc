// For programs of the emulator that link no cublaslt.cc: the kernels do all products themselves.
#include "kernels/cuda/cublaslt.hpp"

namespace flow::cuda {

int lt_product(Stream&, const LtProduct&) { return kUnsupported; }
bool lt_reads(const LtProduct&) { return false; }
size_t lt_version() { return 0; }
std::string lt_absence() { return "this GPU is emulated"; }

}  // namespace flow::cuda
