// How far apart the rows of two results of attention are (cudnn_attention_check.cc).
#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/cudnn_attention.hpp"
#include "kernels/cuda/group.cuh"

namespace flow::cuda {
namespace {

// A warp per row.
template <typename T>
__global__ void __launch_bounds__(kBlockThreads)
    row_differences_kernel(int64_t rows, int64_t heads, int64_t queries, int width, Heads<T> a,
                           Heads<T> b, float* differences, float* squares) {
  int lane = static_cast<int>(threadIdx.x) % kWarp;
  int64_t warps = threads_of_grid() / kWarp;
  for (int64_t i = thread_of_grid() / kWarp; i < rows; i += warps) {
    int64_t row = i % queries, head = i / queries % heads, batch = i / queries / heads;
    const T* of_a = a.at(batch, head) + row * a.row;
    const T* of_b = b.at(batch, head) + row * b.row;
    float apart = 0, square = 0;
    for (int j = lane; j < width; j += kWarp) {
      float x = convert<float>(of_a[j]), y = convert<float>(of_b[j]);
      apart += (x - y) * (x - y);
      square += y * y;
    }
    apart = over_warp(apart, Add{});
    square = over_warp(square, Add{});
    if (lane != 0) continue;
    differences[i] = apart;
    squares[i] = square;
  }
}

// A warp per row. The bits, not the numbers: 0 and -0 differ, and equal NaNs do not.
__global__ void __launch_bounds__(kBlockThreads)
    differing_bits_kernel(int64_t rows, int64_t heads, int64_t queries, int width,
                          Heads<uint16_t> a, Heads<uint16_t> b, float* counts) {
  int lane = static_cast<int>(threadIdx.x) % kWarp;
  int64_t warps = threads_of_grid() / kWarp;
  for (int64_t i = thread_of_grid() / kWarp; i < rows; i += warps) {
    int64_t row = i % queries, head = i / queries % heads, batch = i / queries / heads;
    const uint16_t* of_a = a.at(batch, head) + row * a.row;
    const uint16_t* of_b = b.at(batch, head) + row * b.row;
    float count = 0;
    for (int j = lane; j < width; j += kWarp) count += of_a[j] != of_b[j] ? 1.0f : 0.0f;
    count = over_warp(count, Add{});
    if (lane == 0) counts[i] = count;
  }
}

}  // namespace

int row_differences(Stream& stream, const View& a, const View& b, float* differences,
                    float* squares) {
  int64_t rows = a.shape[0] * a.shape[1] * a.shape[2];
  if (rows == 0) return kDone;
  return visit_floats(a.dtype, [&](auto type) {
    using T = decltype(type);
    if constexpr (is_small_float<T>)
      return launch(stream, row_differences_kernel<T>, grid_of(blocks_for(rows * kWarp)),
                    kBlockThreads, 0, rows, a.shape[1], a.shape[2], static_cast<int>(a.shape[3]),
                    heads_of<T>(a), heads_of<T>(b), differences, squares);
    return kUnsupported;
  });
}

int differing_bits(Stream& stream, const View& a, const View& b, float* counts) {
  int64_t rows = a.shape[0] * a.shape[1] * a.shape[2];
  if (rows == 0) return kDone;
  if (dtype_size(a.dtype) != sizeof(uint16_t)) return kUnsupported;
  return launch(stream, differing_bits_kernel, grid_of(blocks_for(rows * kWarp)), kBlockThreads, 0,
                rows, a.shape[1], a.shape[2], static_cast<int>(a.shape[3]), heads_of<uint16_t>(a),
                heads_of<uint16_t>(b), counts);
}

}  // namespace flow::cuda
