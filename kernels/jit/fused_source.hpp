// CUDA C++ of a fused chain. It includes the headers with which kernels/cuda is compiled, so its
// operations are those of the interpreter (kernels/cuda/fused_elementwise.cu).
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "flow/dtype.hpp"
#include "kernels/shared/fused_elementwise.hpp"

namespace flow::jit {

/// As many elements as fit in 16 bytes.
int fused_pack(DType dtype);

/// Whether it is compiled in a second or two: the operations that are more than some instructions
/// are repeated for each element of a pack.
bool fused_compiles_fast(const kernels::FusedElementwise& fused, int width);

/// The source of a kernel `name` for the chain, with packs of `width` elements. Its parameters are
/// the numbers of fused_numbers() in the type of arithmetic, and a FusedWalk over the inputs and
/// the result. Chains that differ only in numbers have the same source.
std::string fused_source(const kernels::FusedElementwise& fused, DType dtype, int width,
                         const std::string& name);
std::vector<double> fused_numbers(const kernels::FusedElementwise& fused);

/// All headers that a source includes, for NVRTC.
const std::vector<std::pair<std::string, std::string>>& fused_headers();
/// A product and a sum are rounded separately, as in the interpreter and in single operations.
const std::vector<std::string>& fused_options();

}  // namespace flow::jit
