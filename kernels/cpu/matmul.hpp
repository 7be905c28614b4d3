// Products of matrices, through OpenBLAS.
#pragma once
#include "kernels/cpu/view.hpp"

namespace flow::cpu {

/// True where BLAS can walk the matrix as it lies, also transposed; else copy it first.
bool is_matmul_operand(const View& matrix);
/// out[m, n] = a[m, k] * b[k, n]; all f32 or all f64, out dense.
void matmul(const View& a, const View& b, const View& out);
/// Threads that a product may use. One thread by default: a slot has the CPUs it asked for.
void set_matmul_threads(int count);

}  // namespace flow::cpu
