// The part of cuDNN's API in use, declared here as in the manual of version 9: a build needs no
// header of cuDNN. tests/kernels/cudnn compares it with the header if there is one.
#pragma once
#include <cstddef>

namespace flow::cuda::dnn {

using CudnnHandle = void*;
using CudnnDescriptor = void*;  // of a tensor, a filter, a convolution or an activation

constexpr int kMajorVersion = 9;
constexpr int kSuccess = 0, kNotSupported = 3000;  // statuses; the next 999 are kinds of the latter
constexpr int kFloat = 0, kDouble = 1, kHalf = 2, kBfloat16 = 9;
constexpr int kDefaultMath = 0, kTensorOpMath = 1, kTensorOpMathAllowConversion = 2, kFmaMath = 3;
constexpr int kNchw = 0;
constexpr int kCrossCorrelation = 1;
constexpr int kNotPropagateNan = 0;
constexpr int kActivationIdentity = 5;
constexpr int kDeterministic = 1;

// Algorithms.
constexpr int kForwardImplicitGemm = 0, kForwardImplicitPrecompGemm = 1, kForwardGemm = 2;
constexpr int kBackwardData1 = 1;
constexpr int kBackwardFilter1 = 1;

/// The result of the heuristics for one algorithm; the same for all three directions.
struct AlgorithmPerf {
  int algorithm;
  int status;
  float time;
  size_t memory;
  int determinism;
  int math;
  int reserved[3];
};

/// FLOW_DNN(name, arguments…) for each function that returns a status.
#define FLOW_DNN_CALLS(FLOW_DNN)                                                                  \
  FLOW_DNN(Create, CudnnHandle*)                                                                  \
  FLOW_DNN(Destroy, CudnnHandle)                                                                  \
  FLOW_DNN(SetStream, CudnnHandle, void* stream)                                                  \
  FLOW_DNN(CreateTensorDescriptor, CudnnDescriptor*)                                              \
  FLOW_DNN(SetTensor4dDescriptor, CudnnDescriptor, int format, int type, int n, int c, int h,     \
           int w)                                                                                 \
  FLOW_DNN(DestroyTensorDescriptor, CudnnDescriptor)                                              \
  FLOW_DNN(CreateFilterDescriptor, CudnnDescriptor*)                                              \
  FLOW_DNN(SetFilter4dDescriptor, CudnnDescriptor, int type, int format, int k, int c, int h,     \
           int w)                                                                                 \
  FLOW_DNN(DestroyFilterDescriptor, CudnnDescriptor)                                              \
  FLOW_DNN(CreateConvolutionDescriptor, CudnnDescriptor*)                                         \
  FLOW_DNN(SetConvolution2dDescriptor, CudnnDescriptor, int padding_h, int padding_w,             \
           int stride_h, int stride_w, int dilation_h, int dilation_w, int mode, int compute)     \
  FLOW_DNN(SetConvolutionGroupCount, CudnnDescriptor, int groups)                                 \
  FLOW_DNN(SetConvolutionMathType, CudnnDescriptor, int math)                                     \
  FLOW_DNN(DestroyConvolutionDescriptor, CudnnDescriptor)                                         \
  FLOW_DNN(CreateActivationDescriptor, CudnnDescriptor*)                                          \
  FLOW_DNN(SetActivationDescriptor, CudnnDescriptor, int mode, int nan, double coefficient)       \
  FLOW_DNN(DestroyActivationDescriptor, CudnnDescriptor)                                          \
  FLOW_DNN(GetConvolutionForwardAlgorithm_v7, CudnnHandle, CudnnDescriptor x, CudnnDescriptor w,  \
           CudnnDescriptor conv, CudnnDescriptor y, int room, int* count, AlgorithmPerf*)         \
  FLOW_DNN(GetConvolutionBackwardDataAlgorithm_v7, CudnnHandle, CudnnDescriptor w,                \
           CudnnDescriptor y, CudnnDescriptor conv, CudnnDescriptor x, int room, int* count,      \
           AlgorithmPerf*)                                                                        \
  FLOW_DNN(GetConvolutionBackwardFilterAlgorithm_v7, CudnnHandle, CudnnDescriptor x,              \
           CudnnDescriptor y, CudnnDescriptor conv, CudnnDescriptor w, int room, int* count,      \
           AlgorithmPerf*)                                                                        \
  FLOW_DNN(GetConvolutionForwardWorkspaceSize, CudnnHandle, CudnnDescriptor x, CudnnDescriptor w, \
           CudnnDescriptor conv, CudnnDescriptor y, int algorithm, size_t*)                       \
  FLOW_DNN(GetConvolutionBackwardDataWorkspaceSize, CudnnHandle, CudnnDescriptor w,               \
           CudnnDescriptor y, CudnnDescriptor conv, CudnnDescriptor x, int algorithm, size_t*)    \
  FLOW_DNN(GetConvolutionBackwardFilterWorkspaceSize, CudnnHandle, CudnnDescriptor x,             \
           CudnnDescriptor y, CudnnDescriptor conv, CudnnDescriptor w, int algorithm, size_t*)    \
  FLOW_DNN(ConvolutionForward, CudnnHandle, const void* alpha, CudnnDescriptor x, const void*,    \
           CudnnDescriptor w, const void*, CudnnDescriptor conv, int algorithm, void* room,       \
           size_t bytes, const void* beta, CudnnDescriptor y, void*)                              \
  FLOW_DNN(ConvolutionBiasActivationForward, CudnnHandle, const void* alpha, CudnnDescriptor x,   \
           const void*, CudnnDescriptor w, const void*, CudnnDescriptor conv, int algorithm,      \
           void* room, size_t bytes, const void* alpha2, CudnnDescriptor z, const void*,          \
           CudnnDescriptor bias, const void*, CudnnDescriptor activation, CudnnDescriptor y,      \
           void*)                                                                                 \
  FLOW_DNN(ConvolutionBackwardData, CudnnHandle, const void* alpha, CudnnDescriptor w,            \
           const void*, CudnnDescriptor y, const void*, CudnnDescriptor conv, int algorithm,      \
           void* room, size_t bytes, const void* beta, CudnnDescriptor x, void*)                  \
  FLOW_DNN(ConvolutionBackwardFilter, CudnnHandle, const void* alpha, CudnnDescriptor x,          \
           const void*, CudnnDescriptor y, const void*, CudnnDescriptor conv, int algorithm,      \
           void* room, size_t bytes, const void* beta, CudnnDescriptor w, void*)

struct DnnCalls {
  size_t (*GetVersion)() = nullptr;
  const char* (*GetErrorString)(int) = nullptr;
#define FLOW_DNN(name, ...) int (*name)(__VA_ARGS__) = nullptr;
  FLOW_DNN_CALLS(FLOW_DNN)
#undef FLOW_DNN
};

}  // namespace flow::cuda::dnn
