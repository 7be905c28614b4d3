// OpenBLAS, loaded by the first product that needs it: loading its 14,000 symbols takes longer than
// the rest of a process start, and most processes multiply no matrices.
#pragma once
#include <cblas.h>

#include <cstdint>
#include <string>

#include "kernels/cpu/loops.hpp"

namespace flow::cpu {

struct Blas {
  decltype(&cblas_sgemm) sgemm = nullptr;
  decltype(&cblas_dgemm) dgemm = nullptr;
  decltype(&openblas_set_num_threads) set_threads = nullptr;
  decltype(&openblas_get_num_threads) threads = nullptr;
  std::string missing;  // why it cannot be used, and what to do
};
const Blas& blas();

/// The error code of a product without OpenBLAS, and its text.
constexpr int kNoBlas = 1;
const char* no_blas_text();
/// kDone if `multiply` may be called.
int prepare_products();

/// A matrix as BLAS traverses it: rows (or, transposed, columns) without gaps.
struct Matrix {
  const void* data = nullptr;
  int64_t leading = 1;
  bool transposed = false;
};
/// c[m, n] = alpha * a[m, k] b[k, n] + beta * c, of f32 or f64, on this thread; consecutive rows of
/// c are `c_row` elements apart. Call prepare_products() first.
void multiply(ArithmeticType kind, Matrix a, Matrix b, int64_t m, int64_t n, int64_t k,
              double alpha, double beta, void* c, int64_t c_row);

}  // namespace flow::cpu
