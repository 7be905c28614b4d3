// Matrix products in tiles of shared memory. The caller defines the operands and the result:
// strided matrices, or images seen through a convolution's window.
#pragma once
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/launchers.hpp"

namespace flow::cuda {

constexpr int kGemmRows = 64, kGemmColumns = 64, kGemmDepth = 16, kGemmEach = 4;

struct Gemm {
  int64_t rows, columns, depth, batches;
  int64_t splits;         // of the depth; each writes a separate partial product to `parts`
  int64_t split_depth;    // a multiple of kGemmDepth
  bool a_along, b_along;  // adjacent in memory means adjacent in depth (a), in columns (b)
};

template <typename C>
struct GemmTiles {
  C a[kGemmDepth][kGemmRows + 4];
  C b[kGemmDepth][kGemmColumns + 4];
};

// Sides has: type Origin, origin(batch); a(origin, row, k) and b(origin, k, column) within their
// shapes, in C; put(origin, row, column, sum).
template <typename C, typename Sides>
__global__ void __launch_bounds__(kBlockThreads) gemm_kernel(Gemm g, Sides sides, C* parts) {
  auto& tiles = shared_room<GemmTiles<C>>();
  int thread = static_cast<int>(threadIdx.x);
  int64_t across = divide_up(g.columns, kGemmColumns), down = divide_up(g.rows, kGemmRows);
  int64_t total = across * down * g.batches * g.splits;
  for (int64_t tile = blockIdx.x; tile < total; tile += gridDim.x) {
    int64_t column0 = tile % across * kGemmColumns, row0 = tile / across % down * kGemmRows;
    int64_t batch = tile / (across * down) % g.batches, split = tile / (across * down) / g.batches;
    auto origin = sides.origin(batch);
    C sums[kGemmEach][kGemmEach] = {};
    int64_t last = least((split + 1) * g.split_depth, g.depth);
    for (int64_t k0 = split * g.split_depth; k0 < last; k0 += kGemmDepth) {
      for (int j = 0; j < kGemmRows * kGemmDepth / kBlockThreads; j++) {
        int at = thread + j * kBlockThreads;
        int row = g.a_along ? at / kGemmDepth : at % kGemmRows;
        int k = g.a_along ? at % kGemmDepth : at / kGemmRows;
        bool inside = row0 + row < g.rows && k0 + k < last;
        tiles.a[k][row] = inside ? sides.a(origin, row0 + row, k0 + k) : C(0);
      }
      for (int j = 0; j < kGemmColumns * kGemmDepth / kBlockThreads; j++) {
        int at = thread + j * kBlockThreads;
        int column = g.b_along ? at % kGemmColumns : at / kGemmDepth;
        int k = g.b_along ? at / kGemmColumns : at % kGemmDepth;
        bool inside = column0 + column < g.columns && k0 + k < last;
        tiles.b[k][column] = inside ? sides.b(origin, k0 + k, column0 + column) : C(0);
      }
      __syncthreads();
      int y = thread / 16 * kGemmEach, x = thread % 16 * kGemmEach;
      for (int k = 0; k < kGemmDepth; k++) {
        C a[kGemmEach], b[kGemmEach];
        for (int i = 0; i < kGemmEach; i++) a[i] = tiles.a[k][y + i];
        for (int i = 0; i < kGemmEach; i++) b[i] = tiles.b[k][x + i];
        for (int i = 0; i < kGemmEach; i++)
          for (int j = 0; j < kGemmEach; j++) sums[i][j] += a[i] * b[j];
      }
      __syncthreads();
    }
    for (int i = 0; i < kGemmEach; i++)
      for (int j = 0; j < kGemmEach; j++) {
        int64_t row = row0 + thread / 16 * kGemmEach + i;
        int64_t column = column0 + thread % 16 * kGemmEach + j;
        if (row >= g.rows || column >= g.columns) continue;
        if (parts)
          parts[((split * g.batches + batch) * g.rows + row) * g.columns + column] = sums[i][j];
        else
          sides.put(origin, row, column, sums[i][j]);
      }
  }
}

// Adds the partial products in order.
template <typename C, typename Sides>
__global__ void __launch_bounds__(kBlockThreads) gemm_join_kernel(Gemm g, Sides sides, C* parts) {
  int64_t total = g.batches * g.rows * g.columns;
  for (int64_t i = thread_of_grid(); i < total; i += threads_of_grid()) {
    C sum = 0;
    for (int64_t split = 0; split < g.splits; split++) sum += parts[split * total + i];
    sides.put(sides.origin(i / g.columns / g.rows), i / g.columns % g.rows, i % g.columns, sum);
  }
}

/// If there are too few tiles to fill a device, they split their depth, which needs scratch.
template <typename C, typename Sides>
int launch_gemm(Stream& stream, Gemm g, Sides sides) {
  if (g.rows == 0 || g.columns == 0 || g.batches == 0) return kDone;
  int64_t tiles = divide_up(g.rows, kGemmRows) * divide_up(g.columns, kGemmColumns) * g.batches;
  g.splits = most(1, least(256 / tiles, g.depth / (kGemmDepth * 16)));
  g.split_depth = divide_up(divide_up(most(g.depth, 1), g.splits), kGemmDepth) * kGemmDepth;
  g.splits = divide_up(most(g.depth, 1), g.split_depth);
  C* parts = nullptr;
  if (g.splits > 1) {
    parts = stream.scratch.take<C>(g.splits * g.batches * g.rows * g.columns);
    if (!parts) return kNeedsScratch;
  }
  dim3 grid = grid_of(least(tiles * g.splits, kTilesMax));
  FLOW_LAUNCH(launch(stream, gemm_kernel<C, Sides>, grid, kBlockThreads, 0, g, sides, parts));
  if (!parts) return kDone;
  return launch(stream, gemm_join_kernel<C, Sides>,
                grid_of(blocks_for(g.batches * g.rows * g.columns)), kBlockThreads, 0, g, sides,
                parts);
}

}  // namespace flow::cuda
