// Matrix products by NVIDIA's library, if the machine has it.
#pragma once
#include <string>

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

/// Names a library instead of libcublasLt.so; `off`: flow's own kernels compute all products.
constexpr const char* kLtVariable = "FLOW_CUBLASLT_LIB";

/// kUnsupported if the library is missing or does not support the product and all of its epilogue;
/// kLtErrors if the environment names a library that cannot be used.
int lt_product(Stream& stream, const LtProduct& product);

/// Loads the library and creates its handle on the current device, if it works.
void lt_prepare();

/// Whether the library is there and can read matrices with these strides.
bool lt_reads(const LtProduct& product);

/// Bytes of scratch that lt_product takes: NVIDIA's advice for Hopper, none for small products.
inline size_t lt_workspace(const LtProduct& p) {
  constexpr int64_t kSmall = int64_t{1} << 22;  // multiply operations
  return p.m * p.n <= kSmall / (p.k < 1 ? 1 : p.k) ? 0 : size_t{32} << 20;
}

/// cuBLASLt's version: 130002 is 13.0.2; 0: it is missing.
size_t lt_version();

/// The loaded library, or why there is none.
struct LtUse {
  bool works = false;
  bool is_off = false, is_named = false;  // by the environment
  std::string path, problem;
};
LtUse lt_use();
/// Why it does not do a product that it was asked for, and what to do.
std::string lt_absence();

}  // namespace flow::cuda
