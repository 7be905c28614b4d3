// OpenBLAS, loaded by the first product that needs it, with one thread: products are split over our
// own threads, because waiting threads of OpenBLAS spin and would compete with them.
#include "kernels/cpu/blas.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <string>

#include "kernels/table.hpp"

namespace flow::cpu {
namespace {

constexpr const char* kLibrary = "libopenblas.so.0";
constexpr const char* kCoreType = "OPENBLAS_CORETYPE";
constexpr const char* kThreads = "OPENBLAS_NUM_THREADS";
// Smaller products finish before a library has checked its arguments.
constexpr int64_t kSmall = 8192;

template <typename Function>
void find(void* library, const char* name, Function& function, std::string& missing) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  if (function == nullptr) missing = fmt::format("{} has no {}", kLibrary, name);
}

// OpenBLAS selects code by CPU model, and uses Haswell code on newer AMD CPUs, at half the possible
// speed.
bool wants_avx512() {
#if defined(__x86_64__)
  return std::getenv(kCoreType) == nullptr && __builtin_cpu_supports("avx512f") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512cd");
#else
  return false;
#endif
}

/// OpenBLAS starts its threads when it is loaded, and they spin: it must not start any.
void* open_with_one_thread() {
  const char* requested = std::getenv(kThreads);
  bool was_set = requested != nullptr;
  std::string before = was_set ? requested : "";
  ::setenv(kThreads, "1", 1);
  void* library = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (was_set) {
    ::setenv(kThreads, before.c_str(), 1);
  } else {
    ::unsetenv(kThreads);
  }
  return library;
}

Blas load() {
  Blas made;
  bool named = wants_avx512();
  if (named) ::setenv(kCoreType, "SKYLAKEX", 1);
  void* library = open_with_one_thread();
  if (named) ::unsetenv(kCoreType);
  if (library == nullptr) {
    made.missing = ::dlerror();
  } else {
    find(library, "cblas_sgemm", made.sgemm, made.missing);
    find(library, "cblas_dgemm", made.dgemm, made.missing);
    find(library, "openblas_set_num_threads", made.set_threads, made.missing);
    find(library, "openblas_get_num_threads", made.threads, made.missing);
  }
  if (made.missing.empty()) {
    made.set_threads(1);
  } else {
    made.missing = fmt::format(
        "products of matrices need OpenBLAS, which can't be loaded: {}. Install it (Debian: "
        "libopenblas0)",
        made.missing);
  }
  return made;
}

}  // namespace

const Blas& blas() {
  static const Blas loaded = load();
  return loaded;
}

const char* no_blas_text() { return blas().missing.c_str(); }

int prepare_products() {
  const Blas& library = blas();
  if (!library.missing.empty()) return kNoBlas;
  if (library.threads() != 1) library.set_threads(1);
  return kernels::kDone;
}

void multiply(ArithmeticType kind, Matrix a, Matrix b, int64_t m, int64_t n, int64_t k,
              double alpha, double beta, void* c, int64_t c_row) {
  if (m == 0 || n == 0) return;
  if (m * n * k <= kSmall) {
    loops().product_small[kind](a.data, a.transposed ? 1 : a.leading, a.transposed ? a.leading : 1,
                                b.data, b.transposed ? 1 : b.leading, b.transposed ? b.leading : 1,
                                alpha, beta, c, c_row, m, n, k);
    return;
  }
  auto rows = static_cast<blasint>(m), columns = static_cast<blasint>(n),
       depth = static_cast<blasint>(k), lda = static_cast<blasint>(a.leading),
       ldb = static_cast<blasint>(b.leading), ldc = static_cast<blasint>(c_row);
  CBLAS_TRANSPOSE left = a.transposed ? CblasTrans : CblasNoTrans,
                  right = b.transposed ? CblasTrans : CblasNoTrans;
  if (kind == kF64) {
    blas().dgemm(CblasRowMajor, left, right, rows, columns, depth, alpha,
                 static_cast<const double*>(a.data), lda, static_cast<const double*>(b.data), ldb,
                 beta, static_cast<double*>(c), ldc);
  } else {
    blas().sgemm(CblasRowMajor, left, right, rows, columns, depth, static_cast<float>(alpha),
                 static_cast<const float*>(a.data), lda, static_cast<const float*>(b.data), ldb,
                 static_cast<float>(beta), static_cast<float*>(c), ldc);
  }
}

}  // namespace flow::cpu
