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
};

/// kUnsupported if the library is missing or does not support the product.
int lt_product(Stream& stream, const LtProduct& product);

/// cuBLASLt's version: 130002 is 13.0.2; 0: it is missing.
size_t lt_version();

}  // namespace flow::cuda
