// How far apart the rows of two results of attention are (cudnn_attention.cc).
#include "kernels/cuda/attention.cuh"
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

}  // namespace flow::cuda
