// OpenBLAS, loaded by the first product that needs it: its 14,000 symbols take longer than all else
// that a process needs to start, and most processes multiply nothing.
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
  std::string missing;  // why it can't be used, and what to do
};
const Blas& blas();

/// The error code of a product without OpenBLAS, and its text.
constexpr int kNoBlas = 1;
const char* no_blas_text();
/// kDone where `multiply` may be called.
int prepare_products();

/// A matrix as BLAS walks it: rows (or, transposed, columns) without gaps.
struct Matrix {
  const void* data = nullptr;
  int64_t leading = 1;
  bool transposed = false;
};
/// c[m, n] = alpha * a[m, k] b[k, n] + beta * c, of f32 or f64, on this thread; rows of c lie
/// `c_row` apart. After prepare_products.
void multiply(Kind kind, Matrix a, Matrix b, int64_t m, int64_t n, int64_t k, double alpha,
              double beta, void* c, int64_t c_row);

}  // namespace flow::cpu
