// Prefix sums over a block's threads.
#pragma once
#include "kernels/cuda/group.cuh"

namespace flow::cuda {

/// The sum of the values of earlier threads, and of all threads in `total`. All threads of a block
/// call it; integers.
template <typename A>
FLOW_DEVICE A before_in_block(A value, A& total) {
  auto& results = shared_room<WarpResults<A>>().at[0];
  int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  A sum = value;
  for (int by = 1; by < kWarp; by *= 2) {
    A lower = __shfl_up_sync(kAll, sum, by);
    if (lane >= by) sum += lower;
  }
  if (lane == kWarp - 1) results[warp] = sum;
  __syncthreads();
  A before = 0;
  total = 0;
  for (int i = 0; i < static_cast<int>(blockDim.x) / kWarp; i++) {
    if (i < warp) before += results[i];
    total += results[i];
  }
  __syncthreads();
  return before + sum - value;
}

}  // namespace flow::cuda
