// The generated kernels of fused chains, compiled for the emulator.
#pragma once
#include <cstring>
#include <vector>

#include "kernels/cuda/element.cuh"
#include "kernels/jit/fused_walk.hpp"

namespace flow::suite {

struct GeneratedChain {
  size_t chain;  // of all_chains()
  DType dtype;
  int width;
  /// With the numbers in the type of arithmetic. Returns the width that the views allow: the kernel
  /// ran if it is `width`.
  int (*run)(const void* numbers, const kernels::View* inputs, const kernels::View& out);
};
/// Of the file that fused_chains wrote.
const std::vector<GeneratedChain>& generated_chains();

template <int n, int width, typename Numbers, void (*kernel)(Numbers, jit::FusedWalk<n>)>
int run_chain(const void* numbers, const kernels::View* inputs, const kernels::View& out) {
  const kernels::View* views[n];
  for (int i = 0; i + 1 < n; i++) views[i] = &inputs[i];
  views[n - 1] = &out;
  jit::FusedWalk<n> walk;
  int allowed = jit::make_walk(walk, static_cast<int>(16 / dtype_size(out.dtype)), views);
  if (allowed != width) return allowed;
  Numbers given;
  std::memcpy(&given, numbers, sizeof given);
  kernels::Stream stream;
  dim3 grid = cuda::grid_of(kernels::blocks_for(walk.index_math.count));
  int code = cuda::launch(stream, kernel, grid, kernels::kBlockThreads, 0, given, walk);
  return code == 0 ? allowed : -1;
}

}  // namespace flow::suite
