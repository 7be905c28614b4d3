// A libcublasLt that computes on the host, column by column, exactly what the descriptors say, and
// notes calls that the manual forbids.
#include "fake_cublaslt.hpp"

#include <cublasLt.h>
#include <dlfcn.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/shared/scalar.hpp"

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT FakeCublasLt fake_cublaslt;
FakeCublasLt fake_cublaslt;

namespace {

using namespace flow::kernels;

struct Product {
  cublasComputeType_t compute;
  cudaDataType_t scale;
  int32_t a_operation = CUBLAS_OP_N, b_operation = CUBLAS_OP_N;
  uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  void* bias = nullptr;
  void* aux = nullptr;
  int64_t aux_rows = 0;
};
struct Layout {
  cudaDataType_t type;
  uint64_t rows, columns;
  int64_t leading;
  int32_t batches = 1;
  int64_t batch = 0;
};
struct Preference {
  uint32_t alignments[4] = {1, 1, 1, 1};
};

void forbid(const char* what) {
  if (!fake_cublaslt.fault) fake_cublaslt.fault = what;
}

size_t size_of(cudaDataType_t type) { return type == CUDA_R_64F ? 8 : type == CUDA_R_32F ? 4 : 2; }
double read(const void* data, cudaDataType_t type, int64_t at) {
  switch (type) {
    case CUDA_R_64F:
      return static_cast<const double*>(data)[at];
    case CUDA_R_32F:
      return static_cast<const float*>(data)[at];
    case CUDA_R_16F:
      return convert<float>(static_cast<const Half*>(data)[at]);
    default:
      return convert<float>(static_cast<const Brain*>(data)[at]);
  }
}
void write(void* data, cudaDataType_t type, int64_t at, double value) {
  switch (type) {
    case CUDA_R_64F:
      static_cast<double*>(data)[at] = value;
      break;
    case CUDA_R_32F:
      static_cast<float*>(data)[at] = static_cast<float>(value);
      break;
    case CUDA_R_16F:
      static_cast<Half*>(data)[at] = convert<Half>(static_cast<float>(value));
      break;
    default:
      static_cast<Brain*>(data)[at] = convert<Brain>(static_cast<float>(value));
  }
}
// An element of op(x).
double element(const void* data, const Layout& of, int32_t operation, int64_t row, int64_t column,
               int64_t batch) {
  int64_t at = operation == CUBLAS_OP_N ? row + column * of.leading : column + row * of.leading;
  return read(data, of.type, at + batch * of.batch);
}
// Of the compute type: a mantissa of 10 or 7 bits.
double rounded(double x, cublasComputeType_t compute) {
  int bits = compute == CUBLAS_COMPUTE_32F_FAST_TF32   ? 11
             : compute == CUBLAS_COMPUTE_32F_FAST_16BF ? 8
                                                       : 0;
  if (bits == 0 || !std::isfinite(x)) return x;
  int exponent;
  double part = std::frexp(x, &exponent);
  return std::ldexp(std::nearbyint(std::ldexp(part, bits)), exponent - bits);
}

bool has(uint32_t epilogue, uint32_t part) { return (epilogue & part) == part; }

void check(const Product& p, const Layout& result) {
  uint32_t e = p.epilogue;
  if (has(e, CUBLASLT_EPILOGUE_GELU_AUX) || has(e, CUBLASLT_EPILOGUE_DGELU)) {
    if (!p.aux) forbid("an epilogue without its auxiliary matrix");
    if (p.aux_rows % 8 != 0 || p.aux_rows < static_cast<int64_t>(result.rows))
      forbid("the leading dimension of the auxiliary matrix");
    if (reinterpret_cast<uintptr_t>(p.aux) % 16 != 0) forbid("the auxiliary matrix's alignment");
    if (result.batches != 1) forbid("an auxiliary matrix of a batch");
  }
  bool takes_bias = has(e, CUBLASLT_EPILOGUE_BIAS) || e == CUBLASLT_EPILOGUE_BGRADB ||
                    e == CUBLASLT_EPILOGUE_DGELU_BGRAD;
  if (takes_bias != (p.bias != nullptr)) forbid("a bias that does not fit the epilogue");
}

}  // namespace

EXPORT size_t cublasLtGetVersion() { return 130000; }
EXPORT cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  static int object;
  *handle = reinterpret_cast<cublasLtHandle_t>(&object);
  return CUBLAS_STATUS_SUCCESS;
}
EXPORT cublasStatus_t cublasLtDestroy(cublasLtHandle_t) { return CUBLAS_STATUS_SUCCESS; }
EXPORT cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* made,
                                               cublasComputeType_t compute, cudaDataType_t scale) {
  *made = reinterpret_cast<cublasLtMatmulDesc_t>(new Product{compute, scale});
  fake_cublaslt.alive++;
  return CUBLAS_STATUS_SUCCESS;
}
EXPORT cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t product) {
  delete reinterpret_cast<Product*>(product);
  fake_cublaslt.alive--;
  return CUBLAS_STATUS_SUCCESS;
}
EXPORT cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t product,
                                                     cublasLtMatmulDescAttributes_t name,
                                                     const void* value, size_t bytes) {
  auto* p = reinterpret_cast<Product*>(product);
  auto set = [&](auto& member) {
    if (bytes != sizeof member) return CUBLAS_STATUS_INVALID_VALUE;
    std::memcpy(&member, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
  };
  switch (name) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return set(p->a_operation);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return set(p->b_operation);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return set(p->epilogue);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return set(p->bias);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
      return set(p->aux);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
      return set(p->aux_rows);
    default:
      return CUBLAS_STATUS_INVALID_VALUE;
  }
}
EXPORT cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* made, cudaDataType type,
                                                 uint64_t rows, uint64_t columns, int64_t leading) {
  if (leading < static_cast<int64_t>(rows)) return CUBLAS_STATUS_INVALID_VALUE;
  *made = reinterpret_cast<cublasLtMatrixLayout_t>(new Layout{type, rows, columns, leading});
  fake_cublaslt.alive++;
  return CUBLAS_STATUS_SUCCESS;
}
EXPORT cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete reinterpret_cast<Layout*>(layout);
  fake_cublaslt.alive--;
  return CUBLAS_STATUS_SUCCESS;
}
EXPORT cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                       cublasLtMatrixLayoutAttribute_t name,
                                                       const void* value, size_t bytes) {
  auto* of = reinterpret_cast<Layout*>(layout);
  if (name == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT && bytes == sizeof of->batches)
    std::memcpy(&of->batches, value, bytes);
  else if (name == CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET && bytes == sizeof of->batch)
    std::memcpy(&of->batch, value, bytes);
  else
    return CUBLAS_STATUS_INVALID_VALUE;
  return CUBLAS_STATUS_SUCCESS;
}
EXPORT cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* made) {
  *made = reinterpret_cast<cublasLtMatmulPreference_t>(new Preference);
  return CUBLAS_STATUS_SUCCESS;
}
EXPORT cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete reinterpret_cast<Preference*>(preference);
  return CUBLAS_STATUS_SUCCESS;
}
EXPORT cublasStatus_t cublasLtMatmulPreferenceSetAttribute(
    cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t name,
    const void* value, size_t bytes) {
  auto* of = reinterpret_cast<Preference*>(preference);
  int place = name == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES   ? 0
              : name == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES ? 1
              : name == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES ? 2
              : name == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES ? 3
                                                                   : -1;
  if (place >= 0 && bytes == sizeof(uint32_t)) std::memcpy(&of->alignments[place], value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}
// The algorithm carries the alignments that it was chosen for.
EXPORT cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t, cublasLtMatmulDesc_t product, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
    cublasLtMatrixLayout_t, cublasLtMatrixLayout_t result, cublasLtMatmulPreference_t preference,
    int, cublasLtMatmulHeuristicResult_t* offers, int* count) {
  auto* p = reinterpret_cast<Product*>(product);
  *count = 0;
  if (fake_cublaslt.refuses_epilogues && p->epilogue != CUBLASLT_EPILOGUE_DEFAULT)
    return CUBLAS_STATUS_NOT_SUPPORTED;
  check(*p, *reinterpret_cast<Layout*>(result));
  offers[0] = {};
  std::memcpy(offers[0].algo.data, reinterpret_cast<Preference*>(preference)->alignments,
              sizeof(Preference));
  offers[0].state = CUBLAS_STATUS_SUCCESS;
  *count = 1;
  return CUBLAS_STATUS_SUCCESS;
}
// Runs `work`, which reads and writes operands: of the host, or of an emulated GPU.
template <typename Work>
static void with_operands(Work work) {
  using Access = void (*)(void (*)(void*), void*);
  static const auto access = reinterpret_cast<Access>(dlsym(RTLD_DEFAULT, "flow_emulator_access"));
  if (access)
    access([](void* call) { (*static_cast<Work*>(call))(); }, &work);
  else
    work();
}

EXPORT cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t product,
                                     const void* alpha, const void* a, cublasLtMatrixLayout_t of_a,
                                     const void* b, cublasLtMatrixLayout_t of_b, const void* beta,
                                     const void* c, cublasLtMatrixLayout_t, void* d,
                                     cublasLtMatrixLayout_t of_d,
                                     const cublasLtMatmulAlgo_t* algorithm, void*, size_t,
                                     cudaStream_t) {
  const auto& p = *reinterpret_cast<Product*>(product);
  const auto& left = *reinterpret_cast<Layout*>(of_a);
  const auto& right = *reinterpret_cast<Layout*>(of_b);
  const auto& out = *reinterpret_cast<Layout*>(of_d);
  check(p, out);
  Preference asked;
  std::memcpy(&asked, algorithm->data, sizeof asked);
  const void* addresses[] = {a, b, c, d};
  for (int i = 0; i < 4; i++)
    if (reinterpret_cast<uintptr_t>(addresses[i]) % asked.alignments[i] != 0)
      forbid("an operand that is not aligned as promised");
  fake_cublaslt.products[static_cast<int>(p.epilogue)]++;
  fake_cublaslt.compute_types[p.compute]++;
  fake_cublaslt.leading[out.leading]++;
  auto rows = static_cast<int64_t>(out.rows), columns = static_cast<int64_t>(out.columns);
  auto depth = static_cast<int64_t>(p.a_operation == CUBLAS_OP_N ? left.columns : left.rows);
  fake_cublaslt.rows[rows]++;
  fake_cublaslt.depths[depth]++;
  bool wide = p.scale == CUDA_R_64F;
  double by = wide ? *static_cast<const double*>(alpha) : *static_cast<const float*>(alpha);
  double plus = wide ? *static_cast<const double*>(beta) : *static_cast<const float*>(beta);
  uint32_t e = p.epilogue;
  with_operands([&] {
    std::vector<double> sums(static_cast<size_t>(rows));
    for (int64_t batch = 0; batch < out.batches; batch++)
      for (int64_t column = 0; column < columns; column++)
        for (int64_t row = 0; row < rows; row++) {
          double value = 0;
          for (int64_t k = 0; k < depth; k++)
            value += rounded(element(a, left, p.a_operation, row, k, batch), p.compute) *
                     rounded(element(b, right, p.b_operation, k, column, batch), p.compute);
          int64_t at = row + column * out.leading + batch * out.batch;
          value = by * value + (plus == 0 ? 0 : plus * read(c, out.type, at));
          if (has(e, CUBLASLT_EPILOGUE_BIAS)) value += read(p.bias, out.type, row);
          if (has(e, CUBLASLT_EPILOGUE_RELU)) value = value < 0 ? 0 : value;
          if (has(e, CUBLASLT_EPILOGUE_DGELU)) {
            double x = read(p.aux, out.type, row + column * p.aux_rows);
            value = unary_backward_of<Unary::gelu_tanh>(x, x, value);
            sums[static_cast<size_t>(row)] += value;
          } else if (has(e, CUBLASLT_EPILOGUE_GELU)) {
            if (has(e, CUBLASLT_EPILOGUE_GELU_AUX))
              write(p.aux, out.type, row + column * p.aux_rows, value);
            value = unary_of<Unary::gelu_tanh>(value);
          }
          write(d, out.type, at, value);
        }
    if (e == CUBLASLT_EPILOGUE_DGELU_BGRAD)
      for (int64_t row = 0; row < rows; row++)
        write(p.bias, out.type, row, sums[static_cast<size_t>(row)]);
    if (e == CUBLASLT_EPILOGUE_BGRADB)
      for (int64_t column = 0; column < columns; column++) {
        double sum = 0;
        for (int64_t k = 0; k < depth; k++) sum += element(b, right, p.b_operation, k, column, 0);
        write(p.bias, out.type, column, sum);
      }
  });
  return CUBLAS_STATUS_SUCCESS;
}
