// The part of cuDNN's API in use, declared here as in the manual of version 9: a build needs no
// header of cuDNN. tests/kernels/cudnn compares it with the header if there is one.
#pragma once
#include <cstddef>
#include <cstdint>

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

// ---- Graphs of operations ("backend" API), for attention.

constexpr int kInt32 = 4, kBoolean = 11;
constexpr int kReduceAdd = 0, kReduceMax = 3;
constexpr int kHeuristicsA = 3;
constexpr int kNoteNondeterministic = 4, kNotesMax = 32;

enum class DescriptorKind : int {
  pointwise = 0,
  engine = 2,
  engine_config = 3,
  heuristics = 4,
  plan = 5,
  pointwise_operation = 13,
  graph = 15,
  variant_pack = 16,
  tensor = 17,
  product = 18,
  product_operation = 19,
  reduction = 21,
  reduction_operation = 22,
  reshape_operation = 31,
  device_properties = 38,
};

/// The types of attributes.
enum class AttributeType : int {
  handle = 0,
  data_type = 1,
  boolean = 2,
  int64 = 3,
  pointer = 6,
  heuristics_mode = 8,
  numerical_note = 11,
  pointwise_mode = 14,
  descriptor = 15,
  reduction_operator = 18,
  characters = 24,
};

enum class Attribute : int {
  pointwise_mode = 0,
  pointwise_compute = 1,
  pointwise_axis = 9,
  heuristics_mode = 200,
  heuristics_graph = 201,
  heuristics_results = 202,
  heuristics_device = 204,
  config_engine = 300,
  plan_handle = 400,
  plan_config = 401,
  plan_workspace = 402,
  plan_device = 407,
  pointwise_descriptor = 750,
  pointwise_x = 751,
  pointwise_b = 752,
  pointwise_y = 753,
  pointwise_t = 758,
  graph_handle = 800,
  graph_operations = 801,
  tensor_alignment = 900,
  tensor_type = 901,
  tensor_dimensions = 902,
  tensor_strides = 903,
  tensor_id = 906,
  tensor_is_virtual = 907,
  tensor_is_by_value = 908,
  pack_ids = 1000,
  pack_pointers = 1001,
  pack_workspace = 1003,
  engine_notes = 1303,
  product_compute = 1500,
  product_a = 1520,
  product_b = 1521,
  product_c = 1522,
  product_descriptor = 1523,
  reduction_operator = 1600,
  reduction_compute = 1601,
  reduction_x = 1610,
  reduction_y = 1611,
  reduction_descriptor = 1612,
  reshape_x = 2200,
  reshape_y = 2201,
  device_json = 2702,
};

enum class Pointwise : int {
  add = 0,
  multiply = 1,
  divide = 6,
  subtract = 9,
  exponential = 13,
  logarithm = 15,
  greater_or_equal = 303,
  index = 501,
  select = 601,
};

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
  FLOW_DNN(BackendCreateDescriptor, DescriptorKind, CudnnDescriptor*)                             \
  FLOW_DNN(BackendDestroyDescriptor, CudnnDescriptor)                                             \
  FLOW_DNN(BackendSetAttribute, CudnnDescriptor, Attribute, AttributeType, int64_t count,         \
           const void*)                                                                           \
  FLOW_DNN(BackendGetAttribute, CudnnDescriptor, Attribute, AttributeType, int64_t room,          \
           int64_t* count, void*)                                                                 \
  FLOW_DNN(BackendFinalize, CudnnDescriptor)                                                      \
  FLOW_DNN(BackendExecute, CudnnHandle, CudnnDescriptor plan, CudnnDescriptor pack)               \
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
