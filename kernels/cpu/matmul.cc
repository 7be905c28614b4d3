// Products of matrices, through OpenBLAS. The only file that sees its header. The library is loaded
// by the first product: its 14,000 symbols take longer than all else that a process needs to start,
// and most processes multiply nothing.
#include "kernels/cpu/matmul.hpp"

#include <cblas.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <climits>

#include "kernels/cpu/copy.hpp"

namespace flow::cpu {
namespace {

constexpr const char* kLibrary = "libopenblas.so.0";

struct Blas {
  decltype(&cblas_sgemm) sgemm = nullptr;
  decltype(&cblas_dgemm) dgemm = nullptr;
  decltype(&openblas_set_num_threads) set_threads = nullptr;
  std::string missing;  // why it can't be used
};

template <typename Function>
void find(void* library, const char* name, Function& function, std::string& missing) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  if (function == nullptr) missing = fmt::format("{} has no {}", kLibrary, name);
}

const Blas& blas() {
  static const Blas loaded = [] {
    Blas made;
    void* library = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      made.missing = ::dlerror();
      return made;
    }
    find(library, "cblas_sgemm", made.sgemm, made.missing);
    find(library, "cblas_dgemm", made.dgemm, made.missing);
    find(library, "openblas_set_num_threads", made.set_threads, made.missing);
    if (made.missing.empty()) made.set_threads(1);
    return made;
  }();
  return loaded;
}

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
  static int now = 1;
  const Blas& library = blas();
  if (!library.missing.empty()) {
    return environment_error(
        fmt::format("products of matrices need OpenBLAS, which can't be loaded: {}. Install it "
                    "(Debian: libopenblas0)",
                    library.missing));
  }
  if (threads != now) library.set_threads(std::max(threads, 1));
  now = threads;
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
