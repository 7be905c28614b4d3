// Products of matrices, through OpenBLAS.
#pragma once
#include "flow/result.hpp"
#include "kernels/shared/view.hpp"

namespace flow::cpu {

using namespace kernels;

/// True where BLAS can walk the matrix as it lies, also transposed; else copy it first.
bool is_matmul_operand(const View& matrix);
/// Loads OpenBLAS, once, and says how many threads a product may use: without it one, because a
/// slot has the CPUs it asked for. An Error where it is not there.
Status prepare_matmul(int threads);
/// out[m, n] = a[m, k] * b[k, n]; all f32 or all f64, out dense. Needs OpenBLAS to be there.
void matmul(const View& a, const View& b, const View& out);

}  // namespace flow::cpu
