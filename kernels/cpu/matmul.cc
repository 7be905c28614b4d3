// Products of matrices, through OpenBLAS.
#include "kernels/cpu/matmul.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <climits>

#include "kernels/cpu/blas.hpp"
#include "kernels/cpu/copy.hpp"

namespace flow::cpu {
namespace {

struct Operand {
  bool usable = false;
  CBLAS_TRANSPOSE transpose = CblasNoTrans;
  int64_t leading = 1;
};

Operand as_operand(const View& matrix) {
  int64_t rows = matrix.shape[0], columns = matrix.shape[1];
  int64_t row_stride = matrix.strides[0], column_stride = matrix.strides[1];
  if ((columns <= 1 || column_stride == 1) &&
      (rows <= 1 || row_stride >= std::max<int64_t>(columns, 1)))
    return {true, CblasNoTrans, rows <= 1 ? std::max<int64_t>(columns, 1) : row_stride};
  if ((rows <= 1 || row_stride == 1) &&
      (columns <= 1 || column_stride >= std::max<int64_t>(rows, 1)))
    return {true, CblasTrans, columns <= 1 ? std::max<int64_t>(rows, 1) : column_stride};
  return {};
}

}  // namespace

bool is_matmul_operand(const View& matrix) {
  Operand operand = as_operand(matrix);
  return operand.usable && operand.leading <= INT_MAX;
}

Status prepare_matmul(int threads) {
  const Blas& library = blas();
  if (!library.missing.empty()) return environment_error(library.missing);
  if (threads != library.threads()) library.set_threads(std::max(threads, 1));
  return {};
}

void matmul(const View& a, const View& b, const View& out) {
  Operand left = as_operand(a), right = as_operand(b);
  FLOW_CHECK(left.usable && right.usable && is_dense(out));
  FLOW_CHECK(a.shape[1] == b.shape[0] && a.dtype == b.dtype && a.dtype == out.dtype);
  auto m = static_cast<blasint>(a.shape[0]), k = static_cast<blasint>(a.shape[1]),
       n = static_cast<blasint>(b.shape[1]);
  if (m == 0 || n == 0) return;
  if (k == 0) return fill(out, int64_t{0});
  FLOW_CHECK(blas().missing.empty());
  auto lda = static_cast<blasint>(left.leading), ldb = static_cast<blasint>(right.leading);
  if (a.dtype == DType::f64) {
    blas().dgemm(CblasRowMajor, left.transpose, right.transpose, m, n, k, 1, a.at<double>(), lda,
                 b.at<double>(), ldb, 0, out.at<double>(), n);
  } else {
    FLOW_CHECK(a.dtype == DType::f32);
    blas().sgemm(CblasRowMajor, left.transpose, right.transpose, m, n, k, 1, a.at<float>(), lda,
                 b.at<float>(), ldb, 0, out.at<float>(), n);
  }
}

}  // namespace flow::cpu
