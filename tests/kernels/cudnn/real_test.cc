// The cuDNN of this machine, if it has one: its header agrees with our declarations, and its
// descriptors, which need no GPU, have our shapes.
#include <catch2/catch.hpp>
#include <type_traits>

#include "kernels/cuda/cudnn_library.hpp"

#if __has_include(<cudnn.h>)
#define FLOW_HAS_CUDNN_HEADER
#include <cudnn.h>
#endif

#include <dlfcn.h>

namespace flow::cuda::dnn {
namespace {

#ifdef FLOW_HAS_CUDNN_HEADER

// As the call passes it: a pointer, or a number of some size.
template <typename A, typename B>
constexpr bool is_alike =
    sizeof(A) == sizeof(B) && std::is_pointer_v<A> ==
                                  std::is_pointer_v<B>&& std::is_floating_point_v<A> ==
                                  std::is_floating_point_v<B>;

template <typename A, typename B>
struct Alike : std::false_type {};
template <typename A, typename... As, typename B, typename... Bs>
struct Alike<A (*)(As...), B (*)(Bs...)> {
  static constexpr bool value = [] {
    if constexpr (sizeof...(As) == sizeof...(Bs))
      return is_alike<A, B> && (is_alike<As, Bs> && ... && true);
    else
      return false;
  }();
};

TEST_CASE("cuDNN's functions are declared as its header declares them") {
#define FLOW_DNN(name, ...) CHECK(Alike<decltype(DnnCalls::name), decltype(&cudnn##name)>::value);
  FLOW_DNN_CALLS(FLOW_DNN)
#undef FLOW_DNN
  CHECK(Alike<decltype(DnnCalls::GetVersion), decltype(&cudnnGetVersion)>::value);
  CHECK(Alike<decltype(DnnCalls::GetErrorString), decltype(&cudnnGetErrorString)>::value);
  CHECK_FALSE(Alike<decltype(DnnCalls::Create), decltype(&cudnnSetStream)>::value);
  CHECK_FALSE(Alike<decltype(DnnCalls::SetActivationDescriptor),
                    decltype(&cudnnSetFilter4dDescriptor)>::value);
}

template <typename Theirs>
void check_offer() {
  CHECK(sizeof(AlgorithmPerf) == sizeof(Theirs));
  CHECK(offsetof(AlgorithmPerf, algorithm) == offsetof(Theirs, algo));
  CHECK(offsetof(AlgorithmPerf, status) == offsetof(Theirs, status));
  CHECK(offsetof(AlgorithmPerf, memory) == offsetof(Theirs, memory));
  CHECK(offsetof(AlgorithmPerf, determinism) == offsetof(Theirs, determinism));
  CHECK(offsetof(AlgorithmPerf, math) == offsetof(Theirs, mathType));
}

TEST_CASE("cuDNN's structs and constants match its header") {
  check_offer<cudnnConvolutionFwdAlgoPerf_t>();
  check_offer<cudnnConvolutionBwdDataAlgoPerf_t>();
  check_offer<cudnnConvolutionBwdFilterAlgoPerf_t>();
  CHECK(kMajorVersion == CUDNN_MAJOR);
  CHECK(kSuccess == CUDNN_STATUS_SUCCESS);
  CHECK(kNotSupported == CUDNN_STATUS_NOT_SUPPORTED);
  CHECK(kFloat == CUDNN_DATA_FLOAT);
  CHECK(kDouble == CUDNN_DATA_DOUBLE);
  CHECK(kHalf == CUDNN_DATA_HALF);
  CHECK(kBfloat16 == CUDNN_DATA_BFLOAT16);
  CHECK(kDefaultMath == CUDNN_DEFAULT_MATH);
  CHECK(kTensorOpMath == CUDNN_TENSOR_OP_MATH);
  CHECK(kTensorOpMathAllowConversion == CUDNN_TENSOR_OP_MATH_ALLOW_CONVERSION);
  CHECK(kFmaMath == CUDNN_FMA_MATH);
  CHECK(kNchw == CUDNN_TENSOR_NCHW);
  CHECK(kCrossCorrelation == CUDNN_CROSS_CORRELATION);
  CHECK(kNotPropagateNan == CUDNN_NOT_PROPAGATE_NAN);
  CHECK(kActivationIdentity == CUDNN_ACTIVATION_IDENTITY);
  CHECK(kDeterministic == CUDNN_DETERMINISTIC);
  CHECK(kForwardImplicitGemm == CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM);
  CHECK(kForwardImplicitPrecompGemm == CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM);
  CHECK(kForwardGemm == CUDNN_CONVOLUTION_FWD_ALGO_GEMM);
  CHECK(kBackwardData1 == CUDNN_CONVOLUTION_BWD_DATA_ALGO_1);
  CHECK(kBackwardFilter1 == CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1);
}

TEST_CASE("the constants of cuDNN's graphs match its header") {
  CHECK(kInt32 == CUDNN_DATA_INT32);
  CHECK(kBoolean == CUDNN_DATA_BOOLEAN);
  CHECK(kReduceAdd == CUDNN_REDUCE_TENSOR_ADD);
  CHECK(kReduceMax == CUDNN_REDUCE_TENSOR_MAX);
  CHECK(kHeuristicsA == CUDNN_HEUR_MODE_A);
  CHECK(kNoteNondeterministic == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC);
  CHECK(kNotesMax >= CUDNN_NUMERICAL_NOTE_TYPE_COUNT);
#define FLOW_SAME(ours, theirs) CHECK(static_cast<int>(ours) == theirs)
  FLOW_SAME(DescriptorKind::pointwise, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  FLOW_SAME(DescriptorKind::engine, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  FLOW_SAME(DescriptorKind::engine_config, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
  FLOW_SAME(DescriptorKind::heuristics, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  FLOW_SAME(DescriptorKind::plan, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
  FLOW_SAME(DescriptorKind::pointwise_operation, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  FLOW_SAME(DescriptorKind::graph, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  FLOW_SAME(DescriptorKind::variant_pack, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  FLOW_SAME(DescriptorKind::tensor, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  FLOW_SAME(DescriptorKind::product, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
  FLOW_SAME(DescriptorKind::product_operation, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
  FLOW_SAME(DescriptorKind::reduction, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
  FLOW_SAME(DescriptorKind::reduction_operation, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
  FLOW_SAME(DescriptorKind::reshape_operation, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
  FLOW_SAME(AttributeType::handle, CUDNN_TYPE_HANDLE);
  FLOW_SAME(AttributeType::data_type, CUDNN_TYPE_DATA_TYPE);
  FLOW_SAME(AttributeType::boolean, CUDNN_TYPE_BOOLEAN);
  FLOW_SAME(AttributeType::int64, CUDNN_TYPE_INT64);
  FLOW_SAME(AttributeType::pointer, CUDNN_TYPE_VOID_PTR);
  FLOW_SAME(AttributeType::heuristics_mode, CUDNN_TYPE_HEUR_MODE);
  FLOW_SAME(AttributeType::numerical_note, CUDNN_TYPE_NUMERICAL_NOTE);
  FLOW_SAME(AttributeType::pointwise_mode, CUDNN_TYPE_POINTWISE_MODE);
  FLOW_SAME(AttributeType::descriptor, CUDNN_TYPE_BACKEND_DESCRIPTOR);
  FLOW_SAME(AttributeType::reduction_operator, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE);
  FLOW_SAME(AttributeType::characters, CUDNN_TYPE_CHAR);
  FLOW_SAME(Attribute::pointwise_mode, CUDNN_ATTR_POINTWISE_MODE);
  FLOW_SAME(Attribute::pointwise_compute, CUDNN_ATTR_POINTWISE_MATH_PREC);
  FLOW_SAME(Attribute::pointwise_axis, CUDNN_ATTR_POINTWISE_AXIS);
  FLOW_SAME(Attribute::heuristics_mode, CUDNN_ATTR_ENGINEHEUR_MODE);
  FLOW_SAME(Attribute::heuristics_graph, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
  FLOW_SAME(Attribute::heuristics_results, CUDNN_ATTR_ENGINEHEUR_RESULTS);
  FLOW_SAME(Attribute::config_engine, CUDNN_ATTR_ENGINECFG_ENGINE);
  FLOW_SAME(Attribute::plan_handle, CUDNN_ATTR_EXECUTION_PLAN_HANDLE);
  FLOW_SAME(Attribute::plan_config, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
  FLOW_SAME(Attribute::plan_workspace, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE);
  FLOW_SAME(Attribute::pointwise_descriptor, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
  FLOW_SAME(Attribute::pointwise_x, CUDNN_ATTR_OPERATION_POINTWISE_XDESC);
  FLOW_SAME(Attribute::pointwise_b, CUDNN_ATTR_OPERATION_POINTWISE_BDESC);
  FLOW_SAME(Attribute::pointwise_y, CUDNN_ATTR_OPERATION_POINTWISE_YDESC);
  FLOW_SAME(Attribute::pointwise_t, CUDNN_ATTR_OPERATION_POINTWISE_TDESC);
  FLOW_SAME(Attribute::graph_handle, CUDNN_ATTR_OPERATIONGRAPH_HANDLE);
  FLOW_SAME(Attribute::graph_operations, CUDNN_ATTR_OPERATIONGRAPH_OPS);
  FLOW_SAME(Attribute::tensor_alignment, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT);
  FLOW_SAME(Attribute::tensor_type, CUDNN_ATTR_TENSOR_DATA_TYPE);
  FLOW_SAME(Attribute::tensor_dimensions, CUDNN_ATTR_TENSOR_DIMENSIONS);
  FLOW_SAME(Attribute::tensor_strides, CUDNN_ATTR_TENSOR_STRIDES);
  FLOW_SAME(Attribute::tensor_id, CUDNN_ATTR_TENSOR_UNIQUE_ID);
  FLOW_SAME(Attribute::tensor_is_virtual, CUDNN_ATTR_TENSOR_IS_VIRTUAL);
  FLOW_SAME(Attribute::tensor_is_by_value, CUDNN_ATTR_TENSOR_IS_BY_VALUE);
  FLOW_SAME(Attribute::pack_ids, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
  FLOW_SAME(Attribute::pack_pointers, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
  FLOW_SAME(Attribute::pack_workspace, CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
  FLOW_SAME(Attribute::engine_notes, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE);
  FLOW_SAME(Attribute::product_compute, CUDNN_ATTR_MATMUL_COMP_TYPE);
  FLOW_SAME(Attribute::product_a, CUDNN_ATTR_OPERATION_MATMUL_ADESC);
  FLOW_SAME(Attribute::product_b, CUDNN_ATTR_OPERATION_MATMUL_BDESC);
  FLOW_SAME(Attribute::product_c, CUDNN_ATTR_OPERATION_MATMUL_CDESC);
  FLOW_SAME(Attribute::product_descriptor, CUDNN_ATTR_OPERATION_MATMUL_DESC);
  FLOW_SAME(Attribute::reduction_operator, CUDNN_ATTR_REDUCTION_OPERATOR);
  FLOW_SAME(Attribute::reduction_compute, CUDNN_ATTR_REDUCTION_COMP_TYPE);
  FLOW_SAME(Attribute::reduction_x, CUDNN_ATTR_OPERATION_REDUCTION_XDESC);
  FLOW_SAME(Attribute::reduction_y, CUDNN_ATTR_OPERATION_REDUCTION_YDESC);
  FLOW_SAME(Attribute::reduction_descriptor, CUDNN_ATTR_OPERATION_REDUCTION_DESC);
  FLOW_SAME(Attribute::reshape_x, CUDNN_ATTR_OPERATION_RESHAPE_XDESC);
  FLOW_SAME(Attribute::reshape_y, CUDNN_ATTR_OPERATION_RESHAPE_YDESC);
  FLOW_SAME(Pointwise::add, CUDNN_POINTWISE_ADD);
  FLOW_SAME(Pointwise::multiply, CUDNN_POINTWISE_MUL);
  FLOW_SAME(Pointwise::divide, CUDNN_POINTWISE_DIV);
  FLOW_SAME(Pointwise::subtract, CUDNN_POINTWISE_SUB);
  FLOW_SAME(Pointwise::exponential, CUDNN_POINTWISE_EXP);
  FLOW_SAME(Pointwise::logarithm, CUDNN_POINTWISE_LOG);
  FLOW_SAME(Pointwise::greater_or_equal, CUDNN_POINTWISE_CMP_GE);
  FLOW_SAME(Pointwise::index, CUDNN_POINTWISE_GEN_INDEX);
  FLOW_SAME(Pointwise::select, CUDNN_POINTWISE_BINARY_SELECT);
#if CUDNN_VERSION >= 90800
  FLOW_SAME(DescriptorKind::device_properties, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
  FLOW_SAME(Attribute::heuristics_device, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP);
  FLOW_SAME(Attribute::plan_device, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP);
  FLOW_SAME(Attribute::device_json, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION);
#endif
#undef FLOW_SAME
}

#else

TEST_CASE("cuDNN's functions are declared as its header declares them") {
  WARN("skipped: the compiler finds no cudnn.h");
}

TEST_CASE("cuDNN's structs and constants match its header") {
  WARN("skipped: the compiler finds no cudnn.h");
}

TEST_CASE("the constants of cuDNN's graphs match its header") {
  WARN("skipped: the compiler finds no cudnn.h");
}

#endif

// The shapes of a row, as the rows of the table receive them.
Convolution row_of(int64_t size, const Conv2d& o, int64_t kernel) {
  alignas(16) static char memory[16];
  auto after = [&](int64_t in, int dim) {
    return (in + 2 * o.padding[dim] - o.dilation[dim] * (kernel - 1) - 1) / o.stride[dim] + 1;
  };
  Convolution v{ConvolutionDirection::forward, o, {}, {}, {}, nullptr};
  v.x = dense(DType::f32, {3, 4, size, size + 3}, memory);
  v.w = dense(DType::f32, {6, 4 / o.groups, kernel, kernel}, memory);
  v.y = dense(DType::f32, {3, 6, after(size, 0), after(size + 3, 1)}, memory);
  return v;
}

using OutputOf = int (*)(CudnnDescriptor conv, CudnnDescriptor x, CudnnDescriptor w, int* n, int* c,
                         int* h, int* width);

TEST_CASE("the descriptors of the machine's cuDNN have the result's shape") {
  DnnLibrary library("");
  if (!library.works()) {
    WARN("skipped: this machine has no cuDNN that can be used: " << library.problem());
    return;
  }
  void* file = dlopen("libcudnn.so.9", RTLD_NOW | RTLD_LOCAL);
  if (!file) file = dlopen("/usr/local/cuda/lib64/libcudnn.so.9", RTLD_NOW | RTLD_LOCAL);
  REQUIRE(file);
  auto output_of = reinterpret_cast<OutputOf>(dlsym(file, "cudnnGetConvolution2dForwardOutputDim"));
  REQUIRE(output_of);
  int compared = 0;
  for (int64_t size : {5, 8, 17})
    for (int64_t kernel : {1, 2, 3, 5})
      for (int64_t stride : {1, 2, 3})
        for (int64_t padding : {0, 1, 2})
          for (int64_t dilation : {1, 2})
            for (int64_t groups : {1, 2}) {
              Conv2d o{{stride, 1}, {padding, 2}, {dilation, 1}, groups};
              Convolution row = row_of(size, o, kernel);
              if (size + 2 * padding < dilation * (kernel - 1) + 1)
                continue;  // the window does not fit
              Numbers numbers{};
              REQUIRE(numbers_of(row, numbers));
              numbers.has_bias = groups == 2;
              ConvolutionDescriptors descriptors(library.calls());
              REQUIRE(descriptors.make(numbers));
              int shape[4] = {};
              REQUIRE(output_of(descriptors.convolution, descriptors.x, descriptors.w, &shape[0],
                                &shape[1], &shape[2], &shape[3]) == kSuccess);
              for (int dim = 0; dim < 4; dim++) REQUIRE(shape[dim] == row.y.shape[dim]);
              compared++;
            }
  CHECK(compared > 350);
}

TEST_CASE("without a GPU flow's kernels compute the convolution, not the machine's cuDNN") {
  DnnLibrary library("");
  if (!library.works()) {
    WARN("skipped: this machine has no cuDNN that can be used: " << library.problem());
    return;
  }
  void* handle = nullptr;
  if (library.calls().Create(&handle) == kSuccess) {
    library.calls().Destroy(handle);
    WARN("skipped: this machine has a GPU, where gpu_check checks more");
    return;
  }
  Stream stream;
  CHECK(library.run(stream, 0, row_of(8, {}, 3)) == kUnsupported);
}

}  // namespace
}  // namespace flow::cuda::dnn
