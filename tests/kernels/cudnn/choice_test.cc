// Which requests go to cuDNN, and which of its algorithms is chosen.
#include <catch2/catch.hpp>

#include "kernels/cuda/cudnn_choice.hpp"

namespace flow::cuda::dnn {
namespace {

alignas(16) char memory[64];

Convolution convolution(ConvolutionDirection way, DType dtype) {
  Convolution v{way, {}, {}, {}, {}, nullptr};
  v.o = {{1, 2}, {3, 4}, {5, 6}, 2};
  v.x = dense(dtype, {7, 4, 30, 40}, memory);
  v.w = dense(dtype, {6, 2, 3, 5}, memory);
  v.y = dense(dtype, {7, 6, 26, 12}, memory);
  return v;
}

Numbers numbers(ConvolutionDirection way, DType dtype, bool has_bias = false) {
  Convolution v = convolution(way, dtype);
  View bias = dense(dtype, {6}, memory);
  if (has_bias) v.bias = &bias;
  Numbers n{};
  REQUIRE(numbers_of(v, n));
  return n;
}

AlgorithmPerf good(int algorithm, int math) {
  return {algorithm, kSuccess, 1, 0, kDeterministic, math, {}};
}

bool takes(const Numbers& n, const AlgorithmPerf& offer) {
  return next_algorithm(n, &offer, 1, 0) == 0;
}

TEST_CASE("the parameters of a convolution are its shapes and its window") {
  Numbers n = numbers(ConvolutionDirection::backward_input, DType::bf16);
  CHECK(n == Numbers{ConvolutionDirection::backward_input,
                     false,
                     kBfloat16,
                     kFloat,
                     {7, 4, 30, 40},
                     {6, 2, 3, 5},
                     {7, 6, 26, 12},
                     {3, 4},
                     {1, 2},
                     {5, 6},
                     2});
  CHECK(numbers(ConvolutionDirection::forward, DType::f16).type == kHalf);
  CHECK(numbers(ConvolutionDirection::forward, DType::f32).compute == kFloat);
  CHECK(numbers(ConvolutionDirection::forward, DType::f64).compute == kDouble);
  CHECK(numbers(ConvolutionDirection::forward, DType::f32, true).has_bias);
  CHECK(numbers(ConvolutionDirection::forward, DType::f32) !=
        numbers(ConvolutionDirection::forward, DType::f32, true));
  CHECK(numbers(ConvolutionDirection::forward, DType::f32) !=
        numbers(ConvolutionDirection::backward_weight, DType::f32));
}

TEST_CASE("empty, too large or unaligned operands do not go to cuDNN") {
  Numbers n{};
  Convolution v = convolution(ConvolutionDirection::forward, DType::f32);
  REQUIRE(numbers_of(v, n));
  v.x.shape[0] = v.y.shape[0] = 0;
  CHECK_FALSE(numbers_of(v, n));
  v = convolution(ConvolutionDirection::forward, DType::f32);
  v.x.shape[0] = 447392;  // 2^31 - 2048 elements
  CHECK(numbers_of(v, n));
  v.x.shape[0] = 447393;
  CHECK_FALSE(numbers_of(v, n));
  v = convolution(ConvolutionDirection::forward, DType::f32);
  v.o.padding[1] = int64_t{1} << 31;
  CHECK_FALSE(numbers_of(v, n));
  for (View Convolution::*operand : {&Convolution::x, &Convolution::w, &Convolution::y}) {
    v = convolution(ConvolutionDirection::forward, DType::f32);
    (v.*operand).data += 8;
    CHECK_FALSE(numbers_of(v, n));
  }
}

TEST_CASE("a bias that is not dense and aligned does not go to cuDNN") {
  Numbers n{};
  Convolution v = convolution(ConvolutionDirection::forward, DType::f32);
  View bias = dense(DType::f32, {6}, memory);
  v.bias = &bias;
  CHECK(numbers_of(v, n));
  bias.strides[0] = 2;
  CHECK_FALSE(numbers_of(v, n));
  bias = dense(DType::f32, {6}, memory + 4);
  CHECK_FALSE(numbers_of(v, n));
}

TEST_CASE("algorithms that add in an arbitrary order are never chosen") {
  for (DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16})
    for (ConvolutionDirection way :
         {ConvolutionDirection::forward, ConvolutionDirection::backward_input,
          ConvolutionDirection::backward_weight}) {
      Numbers n = numbers(way, dtype);
      AlgorithmPerf offer = good(1, math_of(n));
      CHECK(takes(n, offer));
      offer.determinism = 0;
      CHECK_FALSE(takes(n, offer));
      // Known by number too: 0 and 3 for the weight's gradient, 0 for the input's.
      for (int algorithm : {0, 3})
        CHECK(takes(n, good(algorithm, math_of(n))) ==
              (way == ConvolutionDirection::forward && algorithm == 0));
      // The FFT and Winograd algorithms.
      for (int algorithm : {4, 5, 6, 7}) CHECK_FALSE(takes(n, good(algorithm, math_of(n))));
    }
}

TEST_CASE("f32 becomes TF32 if the precision allows it") {
  Numbers f32 = numbers(ConvolutionDirection::forward, DType::f32);
  f32.reduces = true;
  CHECK(math_of(f32) == kDefaultMath);
  for (int math : {kDefaultMath, kTensorOpMath, kFmaMath}) {
    CHECK(takes(f32, good(1, math)));
    CHECK(math_of(f32, good(1, math)) == math);
  }
  CHECK_FALSE(takes(f32, good(1, kTensorOpMathAllowConversion)));
}

TEST_CASE("f32 never becomes TF32, and half types use tensor cores") {
  Numbers f32 = numbers(ConvolutionDirection::forward, DType::f32),
          f16 = numbers(ConvolutionDirection::forward, DType::f16);
  CHECK(math_of(f32) == kFmaMath);
  CHECK(math_of(numbers(ConvolutionDirection::forward, DType::f64)) == kFmaMath);
  CHECK(math_of(f16) == kTensorOpMath);
  CHECK(math_of(numbers(ConvolutionDirection::forward, DType::bf16)) == kTensorOpMath);
  for (int math : {kDefaultMath, kTensorOpMath, kTensorOpMathAllowConversion, kFmaMath}) {
    CHECK(takes(f32, good(1, math)) == (math == kDefaultMath || math == kFmaMath));
    CHECK(math_of(f32, good(1, math)) == kFmaMath);
    CHECK(takes(f16, good(1, math)) == (math != kTensorOpMathAllowConversion));
    CHECK(math_of(f16, good(1, math)) == math);
  }
}

TEST_CASE("with a bias there is one algorithm") {
  Numbers n = numbers(ConvolutionDirection::forward, DType::f16, true);
  for (int algorithm = 0; algorithm < 8; algorithm++)
    CHECK(takes(n, good(algorithm, kTensorOpMath)) == (algorithm == kForwardImplicitPrecompGemm));
}

TEST_CASE("the first algorithm that works and whose workspace fits is chosen") {
  Numbers n = numbers(ConvolutionDirection::forward, DType::f32);
  AlgorithmPerf offers[] = {good(7, kFmaMath), good(1, kFmaMath), good(1, kFmaMath),
                            good(2, kFmaMath), good(0, kFmaMath)};
  offers[1].status = kNotSupported;
  offers[2].memory = kWorkspaceMax + 1;
  offers[3].memory = kWorkspaceMax;
  CHECK(next_algorithm(n, offers, 5, 0) == 3);
  CHECK(next_algorithm(n, offers, 5, 4) == 4);
  CHECK(next_algorithm(n, offers, 3, 0) == -1);
  CHECK(next_algorithm(n, offers, 0, 0) == -1);
}

}  // namespace
}  // namespace flow::cuda::dnn
