// cuBLASLt, loaded by the first product. It is column-major: our matrices are transposed for it, so
// c = a b is requested as c' = b' a'.
#include "kernels/cuda/cublaslt.hpp"

#include <cublasLt.h>
#include <cuda_runtime.h>
#include <dlfcn.h>

#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "engine/base/cuda_libraries.hpp"
#include "kernels/cuda/errors.hpp"

namespace flow::cuda {
namespace {

constexpr int kDevicesMax = 64;

struct LtLibrary {
#define FLOW_LT(name) decltype(&cublasLt##name) name = nullptr
  FLOW_LT(GetVersion);
  FLOW_LT(Create);
  FLOW_LT(Matmul);
  FLOW_LT(MatmulAlgoGetHeuristic);
  FLOW_LT(MatmulDescCreate);
  FLOW_LT(MatmulDescDestroy);
  FLOW_LT(MatmulDescSetAttribute);
  FLOW_LT(MatrixLayoutCreate);
  FLOW_LT(MatrixLayoutDestroy);
  FLOW_LT(MatrixLayoutSetAttribute);
  FLOW_LT(MatmulPreferenceCreate);
  FLOW_LT(MatmulPreferenceDestroy);
  FLOW_LT(MatmulPreferenceSetAttribute);
#undef FLOW_LT
  LtUse use;

  LtLibrary() {
    LoadedCudaLibrary file =
        load_cuda_library({kLtVariable, {"libcublasLt.so.13", "libcublasLt.so.12"}});
    use = {file.handle != nullptr, file.is_off, file.is_named, file.path, file.problem};
    if (!use.works) return;
    auto find = [&](auto& function, const char* name) {
      function =
          reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(file.handle, name));
      if (function) return;
      use.works = false;
      use.problem = file.path + " has no " + name;
    };
#define FLOW_LT(name) find(name, "cublasLt" #name)
    FLOW_LT(GetVersion);
    FLOW_LT(Create);
    FLOW_LT(Matmul);
    FLOW_LT(MatmulAlgoGetHeuristic);
    FLOW_LT(MatmulDescCreate);
    FLOW_LT(MatmulDescDestroy);
    FLOW_LT(MatmulDescSetAttribute);
    FLOW_LT(MatrixLayoutCreate);
    FLOW_LT(MatrixLayoutDestroy);
    FLOW_LT(MatrixLayoutSetAttribute);
    FLOW_LT(MatmulPreferenceCreate);
    FLOW_LT(MatmulPreferenceDestroy);
    FLOW_LT(MatmulPreferenceSetAttribute);
#undef FLOW_LT
  }
};

const LtLibrary& library() {
  static const LtLibrary loaded;
  return loaded;
}

cudaDataType type_of(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return CUDA_R_64F;
    case DType::f16:
      return CUDA_R_16F;
    case DType::bf16:
      return CUDA_R_16BF;
    default:
      return CUDA_R_32F;
  }
}

cublasComputeType_t compute_type_of(const LtProduct& p) {
  if (p.in == DType::f64) return CUBLAS_COMPUTE_64F;
  if (p.in != DType::f32 || p.precision == MatmulPrecision::highest) return CUBLAS_COMPUTE_32F;
  return p.precision == MatmulPrecision::high ? CUBLAS_COMPUTE_32F_FAST_TF32
                                              : CUBLAS_COMPUTE_32F_FAST_16BF;
}

// An operand as the library sees it: rows x columns, and whether it is transposed.
struct OperandLayout {
  bool works, transposed;
  int64_t step;
};
OperandLayout operand_layout_of(int64_t rows, int64_t columns, int64_t by_row, int64_t by_column) {
  if (by_row == 1 || rows == 1) {
    int64_t step = columns == 1 ? rows : by_column;
    if (step >= rows && step > 0) return {true, false, step};
  }
  if (by_column == 1 || columns == 1) {
    int64_t step = rows == 1 ? columns : by_row;
    if (step >= columns && step > 0) return {true, true, step};
  }
  return {false, false, 0};
}

// The operands are swapped: the library's left one is b.
struct LtLayouts {
  OperandLayout left, right;
  int64_t step;  // of the result
  bool work;
};
LtLayouts layouts_of(const LtProduct& p) {
  OperandLayout left = operand_layout_of(p.n, p.k, p.b_column, p.b_k),
                right = operand_layout_of(p.k, p.m, p.a_k, p.a_row);
  int64_t step = p.m == 1 ? p.n : p.c_row;
  return {left, right, step, left.works && right.works && step >= p.n};
}

// The largest power of two, up to 256, that divides all addresses of an operand.
uint32_t alignment_of(const void* data, int64_t batch_bytes) {
  uintptr_t bits = reinterpret_cast<uintptr_t>(data) | static_cast<uintptr_t>(batch_bytes) | 256;
  return static_cast<uint32_t>(bits & (~bits + 1));
}

// A product's descriptors and the algorithm chosen for it. To make them costs as much as the rest
// of a call, so they are kept.
struct LtPlan {
  const LtLibrary& lt;
  cublasLtMatmulDesc_t product = nullptr;
  cublasLtMatrixLayout_t left = nullptr, right = nullptr, result = nullptr;
  bool is_there = false;  // the library does the product
  cublasLtMatmulAlgo_t algorithm{};

  explicit LtPlan(const LtLibrary& library) : lt(library) {}
  LtPlan(const LtPlan&) = delete;
  ~LtPlan() {
    if (product) lt.MatmulDescDestroy(product);
    for (auto each : {left, right, result})
      if (each) lt.MatrixLayoutDestroy(each);
  }
  template <typename T>
  bool set(cublasLtMatmulDescAttributes_t name, T value) {
    return lt.MatmulDescSetAttribute(product, name, &value, sizeof value) == CUBLAS_STATUS_SUCCESS;
  }
  bool layout(cublasLtMatrixLayout_t& to, DType dtype, int64_t rows, int64_t columns, int64_t step,
              int64_t batches, int64_t batch) {
    if (lt.MatrixLayoutCreate(&to, type_of(dtype), static_cast<uint64_t>(rows),
                              static_cast<uint64_t>(columns), step) != CUBLAS_STATUS_SUCCESS)
      return false;
    auto count = static_cast<int32_t>(batches);
    return lt.MatrixLayoutSetAttribute(to, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count,
                                       sizeof count) == CUBLAS_STATUS_SUCCESS &&
           lt.MatrixLayoutSetAttribute(to, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &batch,
                                       sizeof batch) == CUBLAS_STATUS_SUCCESS;
  }
};

std::mutex mutex;  // guards the members below, and the plans' pointers during a call
std::array<cublasLtHandle_t, kDevicesMax> handles{};
// Everything that a plan depends on, as numbers.
using ProductKey = std::array<int64_t, 22>;
constexpr size_t kPlansMax = 4096;  // then all are dropped
// Never destroyed: at exit the library may have ended already.
auto& plans = *new std::map<ProductKey, std::unique_ptr<LtPlan>>;

// False if the library does not support the epilogue. A result has one epilogue only.
bool epilogue_of(const LtProduct& p, cublasLtEpilogue_t& epilogue) {
  bool bias = p.bias != nullptr;
  if (p.row_sums) {  // a is the library's b
    epilogue = CUBLASLT_EPILOGUE_BGRADB;
    return !bias && !p.before && !p.column_sums && p.activation == Unary::identity;
  }
  if (p.is_gradient) {
    epilogue = p.column_sums ? CUBLASLT_EPILOGUE_DGELU_BGRAD : CUBLASLT_EPILOGUE_DGELU;
    return !bias && p.activation == Unary::gelu_tanh;
  }
  if (p.column_sums) return false;
  if (p.before) {
    epilogue = bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
    return p.activation == Unary::gelu_tanh;
  }
  switch (p.activation) {
    case Unary::identity:
      epilogue = bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
      return true;
    case Unary::relu:
      epilogue = bias ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_RELU;
      return true;
    case Unary::gelu_tanh:  // the library calls it GELU
      epilogue = bias ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
      return true;
    default:
      return false;
  }
}

// The vector that the library calls the bias: it reads it, or writes sums to it.
const void* bias_of(const LtProduct& p) {
  return p.row_sums ? p.row_sums : p.column_sums ? p.column_sums : p.bias;
}

// The library's requirements for the other operands of an epilogue.
bool fits_epilogue(const LtProduct& p) {
  constexpr int64_t kElements = 8;
  constexpr uintptr_t kBytes = 16;
  auto is_aligned = [](const void* data) {
    return reinterpret_cast<uintptr_t>(data) % kBytes == 0;
  };
  bool takes_batches = !p.before && !p.row_sums && !p.column_sums;
  // Its GELU is an approximation, whose error only f16 and bf16 hide.
  if (p.before && p.in != DType::f16 && p.in != DType::bf16) return false;
  // A bias and the operand of an activation have the result's type.
  if ((p.bias || p.before) && p.in != p.out) return false;
  return (takes_batches || p.batches == 1) && is_aligned(bias_of(p)) && is_aligned(p.before) &&
         p.before_row % kElements == 0 && (!p.before || p.before_row >= p.n);
}

// Alignment of the operands' addresses, in bytes.
struct Alignments {
  uint32_t left, right, result;
};

bool describe_product(LtPlan& plan, const LtProduct& p, const OperandLayout& left,
                      const OperandLayout& right, int64_t step, cublasLtEpilogue_t epilogue) {
  bool wide = p.in == DType::f64;
  auto operation = [](const OperandLayout& operand) {
    return static_cast<int32_t>(operand.transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  };
  auto layout = [&](cublasLtMatrixLayout_t& to, const OperandLayout& operand, int64_t rows,
                    int64_t columns, int64_t batch) {
    return plan.layout(to, p.in, operand.transposed ? columns : rows,
                       operand.transposed ? rows : columns, operand.step, p.batches, batch);
  };
  return plan.lt.MatmulDescCreate(&plan.product, compute_type_of(p),
                                  wide ? CUDA_R_64F : CUDA_R_32F) == CUBLAS_STATUS_SUCCESS &&
         plan.set(CUBLASLT_MATMUL_DESC_TRANSA, operation(left)) &&
         plan.set(CUBLASLT_MATMUL_DESC_TRANSB, operation(right)) &&
         plan.set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue) &&
         (!bias_of(p) || plan.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias_of(p))) &&
         (!p.before || (plan.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, p.before) &&
                        plan.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, p.before_row))) &&
         layout(plan.left, left, p.n, p.k, p.b_batch) &&
         layout(plan.right, right, p.k, p.m, p.a_batch) &&
         plan.layout(plan.result, p.out, p.n, p.m, step, p.batches, p.c_batch);
}

bool choose_algorithm(LtPlan& plan, cublasLtHandle_t handle, size_t workspace,
                      const Alignments& alignments) {
  const LtLibrary& lt = plan.lt;
  cublasLtMatmulPreference_t wishes = nullptr;
  if (lt.MatmulPreferenceCreate(&wishes) != CUBLAS_STATUS_SUCCESS) return false;
  auto wish = [&](cublasLtMatmulPreferenceAttributes_t name, auto value) {
    return lt.MatmulPreferenceSetAttribute(wishes, name, &value, sizeof value) ==
           CUBLAS_STATUS_SUCCESS;
  };
  cublasLtMatmulHeuristicResult_t offer{};
  int offers = 0;
  // Partial sums are added in the compute type.
  uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  bool has =
      wish(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace) &&
      wish(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, schemes) &&
      wish(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignments.left) &&
      wish(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignments.right) &&
      wish(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignments.result) &&
      wish(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignments.result) &&
      lt.MatmulAlgoGetHeuristic(handle, plan.product, plan.left, plan.right, plan.result,
                                plan.result, wishes, 1, &offer, &offers) == CUBLAS_STATUS_SUCCESS &&
      offers > 0 && offer.state == CUBLAS_STATUS_SUCCESS;
  lt.MatmulPreferenceDestroy(wishes);
  plan.algorithm = offer.algo;
  return has;
}

std::unique_ptr<LtPlan> plan_of(const LtLibrary& lt, cublasLtHandle_t handle, const LtProduct& p,
                                const OperandLayout& left, const OperandLayout& right, int64_t step,
                                cublasLtEpilogue_t epilogue, size_t workspace,
                                const Alignments& alignments) {
  auto plan = std::make_unique<LtPlan>(lt);
  plan->is_there = describe_product(*plan, p, left, right, step, epilogue) &&
                   choose_algorithm(*plan, handle, workspace, alignments);
  return plan;
}

}  // namespace

size_t lt_version() { return library().use.works ? library().GetVersion() : 0; }

LtUse lt_use() { return library().use; }

std::string lt_absence() {
  const LtUse& use = library().use;
  if (use.works) return "cuBLASLt does not support its type, strides or epilogue";
  if (use.is_off) return "cuBLASLt is " + use.problem;
  return std::string(
             "cuBLASLt cannot be used. Install it with the CUDA toolkit or as pip's "
             "nvidia-cublas, or name its libcublasLt.so by ") +
         kLtVariable + ": " + use.problem;
}

void lt_prepare() {
  const LtLibrary& lt = library();
  int device = 0;
  if (!lt.use.works || cudaGetDevice(&device) != cudaSuccess || device >= kDevicesMax) return;
  std::lock_guard lock(mutex);
  cublasLtHandle_t& handle = handles[static_cast<size_t>(device)];
  if (!handle && lt.Create(&handle) != CUBLAS_STATUS_SUCCESS) handle = nullptr;
}

bool lt_reads(const LtProduct& p) {
  const LtUse& use = library().use;  // a named library that does not work is an error of lt_product
  return (use.works || use.is_named) && layouts_of(p).work;
}

int lt_product(Stream& stream, const LtProduct& p) {
  const LtLibrary& lt = library();
  if (!lt.use.works) return lt.use.is_named ? kLtErrors : kUnsupported;
  if (p.batches > INT32_MAX) return kUnsupported;
  cublasLtEpilogue_t epilogue;
  if (!epilogue_of(p, epilogue)) return kUnsupported;
  if (p.in == DType::f64 && epilogue != CUBLASLT_EPILOGUE_DEFAULT) return kUnsupported;
  if (!fits_epilogue(p)) return kUnsupported;
  LtLayouts layouts = layouts_of(p);
  if (!layouts.work) return kUnsupported;
  const OperandLayout &left = layouts.left, &right = layouts.right;
  int64_t step = layouts.step;

  size_t workspace = lt_workspace(p);
  char* room = nullptr;
  if (workspace > 0) {
    room = stream.scratch.take<char>(static_cast<int64_t>(workspace));
    if (!room) return kNeedsScratch;
  }

  auto size = static_cast<int64_t>(dtype_size(p.in));
  auto out_size = static_cast<int64_t>(dtype_size(p.out));
  Alignments alignments{alignment_of(p.b, p.b_batch * size), alignment_of(p.a, p.a_batch * size),
                        alignment_of(p.c, p.c_batch * out_size)};
  int device = 0;
  if (cudaError_t error = cudaGetDevice(&device)) return static_cast<int>(error);
  if (device >= kDevicesMax) return kUnsupported;

  std::lock_guard lock(mutex);
  cublasLtHandle_t& handle = handles[static_cast<size_t>(device)];
  if (!handle && lt.Create(&handle) != CUBLAS_STATUS_SUCCESS) return kUnsupported;
  ProductKey key{device,
                 static_cast<int64_t>(p.in),
                 static_cast<int64_t>(p.out),
                 p.m,
                 p.n,
                 p.k,
                 p.batches,
                 left.transposed,
                 left.step,
                 right.transposed,
                 right.step,
                 step,
                 p.a_batch,
                 p.b_batch,
                 p.c_batch,
                 static_cast<int64_t>(epilogue),
                 alignments.left,
                 alignments.right,
                 alignments.result,
                 p.beta != 0,
                 p.before_row,
                 static_cast<int64_t>(compute_type_of(p))};
  auto found = plans.find(key);
  if (found == plans.end()) {
    if (plans.size() >= kPlansMax) plans.clear();
    found = plans
                .emplace(key,
                         plan_of(lt, handle, p, left, right, step, epilogue, workspace, alignments))
                .first;
  }
  LtPlan& plan = *found->second;
  if (!plan.is_there) return kUnsupported;
  const void* bias = bias_of(p);
  if (bias && !plan.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias)) return kUnsupported;
  if (p.before && !plan.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, p.before))
    return kUnsupported;

  bool wide = p.in == DType::f64;
  float alpha = static_cast<float>(p.alpha), beta = static_cast<float>(p.beta);
  auto factor = [&](const double& in_double, const float& in_float) {
    return wide ? static_cast<const void*>(&in_double) : static_cast<const void*>(&in_float);
  };
  auto status =
      lt.Matmul(handle, plan.product, factor(p.alpha, alpha), p.b, plan.left, p.a, plan.right,
                factor(p.beta, beta), p.c, plan.result, p.c, plan.result, &plan.algorithm, room,
                workspace, static_cast<cudaStream_t>(stream.native));
  return status == CUBLAS_STATUS_SUCCESS ? kDone : kLtErrors + static_cast<int>(status);
}

}  // namespace flow::cuda
