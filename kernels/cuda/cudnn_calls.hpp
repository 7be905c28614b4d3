// The part of cuDNN's API in use, declared here as in the manual of version 9: a build needs no
// header of cuDNN. tests/kernels/cudnn compares it with the header if there is one.
#pragma once
#include <cstddef>

namespace flow::cuda::dnn {

using Handle = void*;
using Descriptor = void*;  // of a tensor, a filter, a convolution or an activation

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
#define FLOW_DNN_CALLS(FLOW_DNN)                                                                   \
  FLOW_DNN(Create, Handle*)                                                                        \
  FLOW_DNN(Destroy, Handle)                                                                        \
  FLOW_DNN(SetStream, Handle, void* stream)                                                        \
  FLOW_DNN(CreateTensorDescriptor, Descriptor*)                                                    \
  FLOW_DNN(SetTensor4dDescriptor, Descriptor, int format, int type, int n, int c, int h, int w)    \
  FLOW_DNN(DestroyTensorDescriptor, Descriptor)                                                    \
  FLOW_DNN(CreateFilterDescriptor, Descriptor*)                                                    \
  FLOW_DNN(SetFilter4dDescriptor, Descriptor, int type, int format, int k, int c, int h, int w)    \
  FLOW_DNN(DestroyFilterDescriptor, Descriptor)                                                    \
  FLOW_DNN(CreateConvolutionDescriptor, Descriptor*)                                               \
  FLOW_DNN(SetConvolution2dDescriptor, Descriptor, int padding_h, int padding_w, int stride_h,     \
           int stride_w, int dilation_h, int dilation_w, int mode, int compute)                    \
  FLOW_DNN(SetConvolutionGroupCount, Descriptor, int groups)                                       \
  FLOW_DNN(SetConvolutionMathType, Descriptor, int math)                                           \
  FLOW_DNN(DestroyConvolutionDescriptor, Descriptor)                                               \
  FLOW_DNN(CreateActivationDescriptor, Descriptor*)                                                \
  FLOW_DNN(SetActivationDescriptor, Descriptor, int mode, int nan, double coefficient)             \
  FLOW_DNN(DestroyActivationDescriptor, Descriptor)                                                \
  FLOW_DNN(GetConvolutionForwardAlgorithm_v7, Handle, Descriptor x, Descriptor w, Descriptor conv, \
           Descriptor y, int room, int* count, AlgorithmPerf*)                                     \
  FLOW_DNN(GetConvolutionBackwardDataAlgorithm_v7, Handle, Descriptor w, Descriptor y,             \
           Descriptor conv, Descriptor x, int room, int* count, AlgorithmPerf*)                    \
  FLOW_DNN(GetConvolutionBackwardFilterAlgorithm_v7, Handle, Descriptor x, Descriptor y,           \
           Descriptor conv, Descriptor w, int room, int* count, AlgorithmPerf*)                    \
  FLOW_DNN(GetConvolutionForwardWorkspaceSize, Handle, Descriptor x, Descriptor w,                 \
           Descriptor conv, Descriptor y, int algorithm, size_t*)                                  \
  FLOW_DNN(GetConvolutionBackwardDataWorkspaceSize, Handle, Descriptor w, Descriptor y,            \
           Descriptor conv, Descriptor x, int algorithm, size_t*)                                  \
  FLOW_DNN(GetConvolutionBackwardFilterWorkspaceSize, Handle, Descriptor x, Descriptor y,          \
           Descriptor conv, Descriptor w, int algorithm, size_t*)                                  \
  FLOW_DNN(ConvolutionForward, Handle, const void* alpha, Descriptor x, const void*, Descriptor w, \
           const void*, Descriptor conv, int algorithm, void* room, size_t bytes,                  \
           const void* beta, Descriptor y, void*)                                                  \
  FLOW_DNN(ConvolutionBiasActivationForward, Handle, const void* alpha, Descriptor x, const void*, \
           Descriptor w, const void*, Descriptor conv, int algorithm, void* room, size_t bytes,    \
           const void* alpha2, Descriptor z, const void*, Descriptor bias, const void*,            \
           Descriptor activation, Descriptor y, void*)                                             \
  FLOW_DNN(ConvolutionBackwardData, Handle, const void* alpha, Descriptor w, const void*,          \
           Descriptor y, const void*, Descriptor conv, int algorithm, void* room, size_t bytes,    \
           const void* beta, Descriptor x, void*)                                                  \
  FLOW_DNN(ConvolutionBackwardFilter, Handle, const void* alpha, Descriptor x, const void*,        \
           Descriptor y, const void*, Descriptor conv, int algorithm, void* room, size_t bytes,    \
           const void* beta, Descriptor w, void*)

struct DnnCalls {
  size_t (*GetVersion)() = nullptr;
  const char* (*GetErrorString)(int) = nullptr;
#define FLOW_DNN(name, ...) int (*name)(__VA_ARGS__) = nullptr;
  FLOW_DNN_CALLS(FLOW_DNN)
#undef FLOW_DNN
};

}  // namespace flow::cuda::dnn
