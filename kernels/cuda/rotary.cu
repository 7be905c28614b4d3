// Rotary positions: a kernel computes the cosines and sines of all positions once, another rotates
// the pairs of all heads by them.
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/launchers.hpp"

namespace flow::cuda {
namespace {

// Positions per thread: the power of a pair is computed once for them.
constexpr int64_t kPositions = 8;

// A thread has one pair and some of the rows.
template <typename C>
__global__ void __launch_bounds__(kBlockThreads)
    angles_kernel(int64_t rows, int64_t half, int64_t first, double theta, double sign, C* cosines,
                  C* sines) {
  int64_t groups = threads_of_grid() / half;  // of threads, one for each pair
  int64_t group = thread_of_grid() / half, pair = thread_of_grid() - group * half;
  if (group >= groups) return;
  double turn = std::pow(theta, -static_cast<double>(pair) / static_cast<double>(half));
  for (int64_t row = group; row < rows; row += groups) {
    double angle = static_cast<double>(first + row) * turn;
    cosines[row * half + pair] = static_cast<C>(std::cos(angle));
    sines[row * half + pair] = static_cast<C>(sign * std::sin(angle));
  }
}

// Iterates over the first halves of all rows: of x, of out, of the angles.
template <int width, typename T>
__global__ void __launch_bounds__(kBlockThreads)
    rotary_kernel(IndexMath<3> index_math, int64_t half, const T* x, T* out,
                  const Compute<T>* cosines, const Compute<T>* sines) {
  using C = Compute<T>;
  for (int64_t i = thread_of_grid(); i < index_math.count; i += threads_of_grid()) {
    int64_t offset[3];
    index_math.at(i, offset);
    C a[width], b[width], cosine[width], sine[width];
    load_as<width>(x + offset[0], a);
    load_as<width>(x + offset[0] + half, b);
    load<width>(cosines + offset[2], cosine);
    load<width>(sines + offset[2], sine);
    C first[width], second[width];
    for (int j = 0; j < width; j++) {
      first[j] = a[j] * cosine[j] - b[j] * sine[j];
      second[j] = b[j] * cosine[j] + a[j] * sine[j];
    }
    store_as<width>(out + offset[1], first);
    store_as<width>(out + offset[1] + half, second);
  }
}

}  // namespace

int rotary(Stream& stream, const View& x, int64_t first, double theta, bool inverse,
           const View& out) {
  if (x.count() == 0) return kDone;
  return visit_floats(x.dtype, [&](auto type) {
    using T = decltype(type);
    using C = Compute<T>;
    constexpr int width = kPack<T>;
    int64_t rows = x.shape[2], half = x.shape[3] / 2;
    C* cosines = stream.scratch.take<C>(rows * half);
    C* sines = stream.scratch.take<C>(rows * half);
    if (!sines) return kNeedsScratch;
    Shape halves{x.shape[0], x.shape[1], rows, half};
    const int64_t of_angles[] = {0, 0, half, 1};
    auto walk = index_math_over<3>(halves, {x.strides, out.strides, of_angles});
    char* const data[] = {x.data, out.data, reinterpret_cast<char*>(cosines)};
    bool packs =
        half % width == 0 && index_packs(walk, width, data, {sizeof(T), sizeof(T), sizeof(C)});
    int64_t threads = most(divide_up(rows, kPositions) * half, half);
    FLOW_LAUNCH(launch(stream, angles_kernel<C>, grid_of(divide_up(threads, kBlockThreads)),
                       kBlockThreads, 0, rows, half, first, theta, inverse ? -1.0 : 1.0, cosines,
                       sines));
    return launch(stream, packs ? rotary_kernel<width, T> : rotary_kernel<1, T>,
                  grid_of(blocks_for(walk.count)), kBlockThreads, 0, walk, half, x.at<T>(),
                  out.at<T>(), cosines, sines);
  });
}

}  // namespace flow::cuda
