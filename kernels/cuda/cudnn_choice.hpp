// Requests to cuDNN, and the selection of its algorithms. Pure.
#pragma once
#include <compare>

#include "kernels/cuda/cudnn.hpp"
#include "kernels/cuda/cudnn_calls.hpp"

namespace flow::cuda::dnn {

/// Maximum workspace of an algorithm. A product on tensor cores stores both images there, with
/// their channels last.
constexpr size_t kWorkspaceMax = size_t{1} << 30;

/// The numbers of a convolution's descriptors, rows before columns: everything that the selection
/// depends on except the device.
struct Numbers {
  ConvolutionDirection way;
  bool has_bias;
  int type, compute;     // cuDNN's
  int x[4], w[4], y[4];  // n c h w; outputs, channels of a group, h, w; n c h w
  int padding[2], stride[2], dilation[2], groups;
  bool reduces = false;  // f32 may be rounded to TF32: MatmulPrecision is not `highest`

  auto operator<=>(const Numbers&) const = default;
};

/// False if cuDNN is not used: an operand is empty, exceeds 31 bits, or is not aligned to the 16
/// bytes that its kernels load at once.
bool numbers_of(const Convolution& convolution, Numbers& numbers);

/// The math mode for the query: f32 is f32 and not TF32, unless the numbers allow it.
int math_of(const Numbers& numbers);

/// The first acceptable algorithm from `from` on, or -1: deterministic, and exact sums of products
/// (Winograd and Fourier algorithms round more).
int next_algorithm(const Numbers& numbers, const AlgorithmPerf* offers, int count, int from);

/// The math mode to use with the algorithm.
int math_of(const Numbers& numbers, const AlgorithmPerf& offer);

}  // namespace flow::cuda::dnn
