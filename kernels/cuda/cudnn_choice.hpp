// What is asked of cuDNN, and which of its algorithms are taken. Pure.
#pragma once
#include <compare>

#include "kernels/cuda/cudnn.hpp"
#include "kernels/cuda/cudnn_calls.hpp"

namespace flow::cuda::dnn {

/// Room for what an algorithm keeps beside the operands. A product on tensor cores keeps both
/// pictures there, with their channels last.
constexpr size_t kWorkspaceMax = size_t{1} << 30;

/// The numbers of a convolution's descriptors, rows before columns: all that a choice depends on
/// beside the device.
struct Numbers {
  Way way;
  bool has_bias;
  int type, compute;     // cuDNN's
  int x[4], w[4], y[4];  // n c h w; outputs, channels of a group, h, w; n c h w
  int padding[2], stride[2], dilation[2], groups;

  auto operator<=>(const Numbers&) const = default;
};

/// False where cuDNN is not asked: something is empty, beyond 31 bits, or not aligned to the 16
/// bytes that its kernels load at once.
bool numbers_of(const Convolution& convolution, Numbers& numbers);

/// The math that algorithms are asked for with: f32 is f32 and not TF32.
int math_of(const Numbers& numbers);

/// The first of the offers, from `from` on, that may be taken, or -1: the same bits each time, sums
/// of products and nothing less exact (Winograd's and Fourier's ways round more).
int next_offer(const Numbers& numbers, const Offer* offers, int count, int from);

/// The math that an offer is run with.
int math_of(const Numbers& numbers, const Offer& offer);

}  // namespace flow::cuda::dnn
