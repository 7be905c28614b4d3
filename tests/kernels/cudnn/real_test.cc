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

#else

TEST_CASE("cuDNN's functions are declared as its header declares them") {
  WARN("skipped: the compiler finds no cudnn.h");
}

TEST_CASE("cuDNN's structs and constants match its header") {
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
