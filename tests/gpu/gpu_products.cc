#include "tests/gpu/gpu_products.hpp"

#include <cublasLt.h>
#include <cuda_runtime.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "engine/base/cuda_libraries.hpp"
#include "kernels/cuda/cublaslt.hpp"
#include "tests/gpu/gpu_bench.hpp"

namespace flow::gpu {
namespace {

using namespace kernels;

constexpr size_t kWorkspace = size_t{32} << 20;  // bytes
constexpr int kOffersMax = 8;

#define FLOW_LT_CALLS(call)                                                                        \
  call(Create) call(Destroy) call(MatmulDescCreate) call(MatrixLayoutCreate)                       \
      call(MatmulPreferenceCreate) call(MatmulPreferenceSetAttribute) call(MatmulAlgoGetHeuristic) \
          call(Matmul)

#define FLOW_LT(name) decltype(&cublasLt##name) name;
struct Library {
  FLOW_LT_CALLS(FLOW_LT)
};
#undef FLOW_LT

Result<Library> load() {
  LoadedCudaLibrary file =
      load_cuda_library({cuda::kLtVariable, {"libcublasLt.so.13", "libcublasLt.so.12"}});
  if (!file.handle) return environment_error(file.problem);
  Library library{};
  const char* missing = nullptr;
  auto find = [&](auto& function, const char* name) {
    function =
        reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(file.handle, name));
    if (!function) missing = name;
  };
#define FLOW_LT(name) find(library.name, "cublasLt" #name);
  FLOW_LT_CALLS(FLOW_LT)
#undef FLOW_LT
  if (missing) return environment_error(fmt::format("{} has no {}", file.path, missing));
  return library;
}

// A product of square matrices. Its descriptors live until the program ends.
struct Product {
  Library lt{};
  cublasLtHandle_t handle = nullptr;
  cublasLtMatmulDesc_t product = nullptr;
  cublasLtMatrixLayout_t layout = nullptr;  // of all three matrices
  std::vector<cublasLtMatmulHeuristicResult_t> offers;

  Status prepare(int64_t n);
};

Status Product::prepare(int64_t n) {
  const char* failed = nullptr;
  auto call = [&](const char* name, cublasStatus_t status) {
    if (status != CUBLAS_STATUS_SUCCESS && !failed) failed = name;
    return !failed;
  };
  auto size = static_cast<uint64_t>(n);
  cublasLtMatmulPreference_t wishes = nullptr;
  offers.resize(kOffersMax);
  int count = 0;
  if (call("cublasLtCreate", lt.Create(&handle)) &&
      call("cublasLtMatmulDescCreate",
           lt.MatmulDescCreate(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F)) &&
      call("cublasLtMatrixLayoutCreate",
           lt.MatrixLayoutCreate(&layout, CUDA_R_16BF, size, size, n)) &&
      call("cublasLtMatmulPreferenceCreate", lt.MatmulPreferenceCreate(&wishes)) &&
      call("cublasLtMatmulPreferenceSetAttribute",
           lt.MatmulPreferenceSetAttribute(wishes, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                           &kWorkspace, sizeof kWorkspace)))
    call("cublasLtMatmulAlgoGetHeuristic",
         lt.MatmulAlgoGetHeuristic(handle, product, layout, layout, layout, layout, wishes,
                                   kOffersMax, offers.data(), &count));
  if (failed) return environment_error(fmt::format("{} failed", failed));
  offers.resize(static_cast<size_t>(count));
  return {};
}

}  // namespace

Result<double> raw_product_rate(void* stream, int64_t n) {
  Product square;
  Result<Library> library = load();
  FLOW_TRY(library);
  square.lt = *library;
  FLOW_TRY(square.prepare(n));
  Bench b(stream, kWorkspace);
  const Shape shape{n, n};
  View x = b.random(DType::bf16, shape), y = b.random(DType::bf16, shape);
  View z = b.empty(DType::bf16, shape);
  const float one = 1, zero = 0;
  double best = 0;  // products a second
  for (const auto& offer : square.offers) {
    auto once = [&] {
      return square.lt.Matmul(square.handle, square.product, &one, x.data, square.layout, y.data,
                              square.layout, &zero, z.data, square.layout, z.data, square.layout,
                              &offer.algo, b.stream.scratch.data, kWorkspace,
                              static_cast<cudaStream_t>(stream)) == CUBLAS_STATUS_SUCCESS;
    };
    if (offer.state != CUBLAS_STATUS_SUCCESS || !once()) continue;
    best = std::max(best, 1 / time_of(stream, [&] { once(); }));
  }
  b.clear();
  square.lt.Destroy(square.handle);
  if (best == 0) return environment_error("cuBLASLt offers no algorithm that works");
  auto size = static_cast<double>(n);
  return best * 2 * size * size * size;
}

}  // namespace flow::gpu
