#include "kernels/cuda/cudnn_choice.hpp"

#include <cstdint>
#include <limits>

namespace flow::cuda::dnn {
namespace {

constexpr uintptr_t kAlignment = 16;
constexpr int64_t kMost = std::numeric_limits<int>::max();

bool type_of(DType dtype, int& type) {
  switch (dtype) {
    case DType::f32:
      type = kFloat;
      return true;
    case DType::f64:
      type = kDouble;
      return true;
    case DType::f16:
      type = kHalf;
      return true;
    case DType::bf16:
      type = kBfloat16;
      return true;
    default:
      return false;
  }
}

bool is_aligned(const View& view) {
  return reinterpret_cast<uintptr_t>(view.data) % kAlignment == 0;
}

bool put_shape(const View& view, int (&to)[4]) {
  if (view.count() == 0 || view.count() > kMost || !is_aligned(view)) return false;
  for (int dim = 0; dim < 4; dim++) to[dim] = static_cast<int>(view.shape[dim]);
  return true;
}

bool put_pair(const int64_t (&from)[2], int (&to)[2]) {
  for (int dim = 0; dim < 2; dim++) {
    if (from[dim] > kMost) return false;
    to[dim] = static_cast<int>(from[dim]);
  }
  return true;
}

bool is_half(const Numbers& numbers) { return numbers.type == kHalf || numbers.type == kBfloat16; }

bool is_sum_of_products(const Numbers& numbers, int algorithm) {
  switch (numbers.way) {
    case ConvolutionDirection::forward:
      // With a bias and no activation cuDNN supports only this one.
      if (numbers.has_bias) return algorithm == kForwardImplicitPrecompGemm;
      return algorithm == kForwardImplicitGemm || algorithm == kForwardImplicitPrecompGemm ||
             algorithm == kForwardGemm;
    case ConvolutionDirection::backward_input:
      return algorithm == kBackwardData1;
    default:
      return algorithm == kBackwardFilter1;
  }
}

// f32 and f64 use math_of(numbers), regardless of the reported math, so algorithms that need tensor
// cores are excluded.
bool is_math_of(const Numbers& numbers, int math) {
  if (is_half(numbers) || numbers.reduces) return math != kTensorOpMathAllowConversion;
  return math == kDefaultMath || math == kFmaMath;
}

}  // namespace

bool numbers_of(const Convolution& v, Numbers& numbers) {
  Numbers n{};
  n.way = v.way;
  n.has_bias = v.bias != nullptr;
  if (!type_of(v.x.dtype, n.type)) return false;
  n.compute = n.type == kDouble ? kDouble : kFloat;
  if (!put_shape(v.x, n.x) || !put_shape(v.w, n.w) || !put_shape(v.y, n.y)) return false;
  if (!put_pair(v.o.padding, n.padding) || !put_pair(v.o.stride, n.stride) ||
      !put_pair(v.o.dilation, n.dilation) || v.o.groups > kMost)
    return false;
  n.groups = static_cast<int>(v.o.groups);
  if (v.bias && (!is_aligned(*v.bias) || (v.bias->strides[0] != 1 && v.bias->count() > 1)))
    return false;
  numbers = n;
  return true;
}

int math_of(const Numbers& numbers) {
  if (is_half(numbers)) return kTensorOpMath;
  return numbers.reduces ? kDefaultMath : kFmaMath;  // the default is TF32
}

int math_of(const Numbers& numbers, const AlgorithmPerf& offer) {
  return is_half(numbers) || numbers.reduces ? offer.math : math_of(numbers);
}

int next_algorithm(const Numbers& numbers, const AlgorithmPerf* offers, int count, int from) {
  for (int i = from; i < count; i++) {
    const AlgorithmPerf& offer = offers[i];
    if (offer.status == kSuccess && offer.determinism == kDeterministic &&
        offer.memory <= kWorkspaceMax && is_math_of(numbers, offer.math) &&
        is_sum_of_products(numbers, offer.algorithm))
      return i;
  }
  return -1;
}

}  // namespace flow::cuda::dnn
