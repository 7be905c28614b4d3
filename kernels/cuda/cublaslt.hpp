// Matrix products by NVIDIA's library, if the machine has it.
#pragma once
#include "kernels/table.hpp"

namespace flow::cuda {

using namespace kernels;

/// A product of single matrices or of matrices at equal distances.
struct LtProduct {
  DType in, out;  // out is `in`, or f32
  int64_t m, n, k, batches = 1;
  const void *a, *b;
  void* c;
  int64_t a_row, a_k, b_k, b_column, c_row;  // strides
  int64_t a_batch = 0, b_batch = 0, c_batch = 0;
  double alpha = 1, beta = 0;
  const void* bias = nullptr;  // dense, of c's type
  Unary activation = Unary::identity;
  MatmulPrecision precision = MatmulPrecision::highest;  // of f32
  /// As in ProductEpilogue, of `in`; the sums are of `out`.
  bool is_gradient = false;
  void* before = nullptr;
  int64_t before_row = 0;
  void* column_sums = nullptr;
  void* row_sums = nullptr;
};

/// kUnsupported if the library is missing or does not support the product and all of its epilogue.
int lt_product(Stream& stream, const LtProduct& product);

/// Whether the library is there and can read matrices with these strides.
bool lt_reads(const LtProduct& product);

/// Bytes of scratch that lt_product takes: NVIDIA's advice for Hopper, none for small products.
inline size_t lt_workspace(const LtProduct& p) {
  constexpr int64_t kSmall = int64_t{1} << 22;  // multiply operations
  return p.m * p.n <= kSmall / (p.k < 1 ? 1 : p.k) ? 0 : size_t{32} << 20;
}

/// cuBLASLt's version: 130002 is 13.0.2; 0: it is missing.
size_t lt_version();

}  // namespace flow::cuda
