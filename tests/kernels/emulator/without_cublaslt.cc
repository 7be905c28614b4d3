// For programs of the emulator that link no cublaslt.cc: the kernels do all products themselves. It
// has all functions of the header, so that the linker does not take cublaslt.cc for one of them.
#include "kernels/cuda/cublaslt.hpp"

namespace flow::cuda {

int lt_product(Stream&, const LtProduct&) { return kUnsupported; }
bool lt_reads(const LtProduct&) { return false; }
void lt_prepare() {}
size_t lt_version() { return 0; }
LtUse lt_use() {
  LtUse use;
  use.is_off = true;
  use.problem = "off";
  return use;
}
std::string lt_absence() { return "this GPU is emulated"; }

}  // namespace flow::cuda
