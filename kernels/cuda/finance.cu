// Price paths: a thread computes one path, a warp stores the paths of its threads together.
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/launchers.hpp"
#include "kernels/shared/gbm.hpp"

namespace flow::cuda {
namespace {

struct Paths {
  double start;
  GbmStep step;
  int64_t steps, count;
  uint64_t seed, first;
};

// The logarithm of one path's price, step by step.
struct PathWalk {
  double logarithm = 0;
  NormalPair pair{};
  uint64_t have = ~uint64_t{0};  // number of the cached pair

  FLOW_DEVICE void move(const Paths& p, uint64_t path, int64_t step) {
    uint64_t number = gbm_number(path, static_cast<uint64_t>(p.steps), static_cast<uint64_t>(step));
    if (number / 2 != have) {
      have = number / 2;
      pair = normal_pair(p.seed, have, RandomUse::gbm);
    }
    logarithm = gbm_add(logarithm, p.step, number % 2 == 0 ? pair.first : pair.second);
  }
};

constexpr int kThreads = 128;

template <typename T>
__global__ void __launch_bounds__(kThreads) ends_kernel(Paths p, T* out) {
  for (int64_t i = thread_of_grid(); i < p.count; i += threads_of_grid()) {
    PathWalk path_walk;
    for (int64_t step = 0; step < p.steps; step++)
      path_walk.move(p, p.first + static_cast<uint64_t>(i), step);
    out[i] = convert<T>(gbm_price(p.start, path_walk.logarithm));
  }
}

template <typename T>
struct Prices {  // of a warp's paths, 32 steps of each
  T at[kThreads / kWarp][kWarp][kWarp + 1];
};

template <typename T>
__global__ void __launch_bounds__(kThreads) paths_kernel(Paths p, T* out) {
  auto& prices = shared_room<Prices<T>>();
  int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  int64_t columns = p.steps + 1;
  int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t base = int64_t{blockIdx.x} * kThreads + warp * kWarp; base < p.count; base += step) {
    PathWalk path_walk;
    uint64_t path = p.first + static_cast<uint64_t>(base + lane);
    for (int64_t from = 0; from < columns; from += kWarp) {
      for (int j = 0; j < kWarp && from + j < columns; j++) {
        if (from + j > 0) path_walk.move(p, path, from + j - 1);
        prices.at[warp][lane][j] = from + j == 0
                                       ? convert<T>(p.start)
                                       : convert<T>(gbm_price(p.start, path_walk.logarithm));
      }
      __syncwarp();
      for (int j = 0; j < kWarp && base + j < p.count; j++)
        if (from + lane < columns)
          out[(base + j) * columns + from + lane] = prices.at[warp][j][lane];
      __syncwarp();
    }
  }
}

Paths paths_of(const Gbm& gbm, const View& out) {
  return {gbm.start, gbm_step(gbm.rate, gbm.volatility, gbm.years, gbm.steps),
          gbm.steps, out.shape[0],
          gbm.seed,  static_cast<uint64_t>(gbm.first_path)};
}

}  // namespace

int gbm_paths(Stream& stream, const Gbm& gbm, const View& out) {
  if (out.count() == 0) return kDone;
  Paths p = paths_of(gbm, out);
  dim3 grid = grid_of(blocks_for(p.count, kThreads));
  if (out.dtype == DType::f32)
    return launch(stream, paths_kernel<float>, grid, kThreads, 0, p, out.at<float>());
  if (out.dtype == DType::f64)
    return launch(stream, paths_kernel<double>, grid, kThreads, 0, p, out.at<double>());
  return kUnsupported;
}

int gbm_ends(Stream& stream, const Gbm& gbm, const View& out) {
  if (out.count() == 0) return kDone;
  Paths p = paths_of(gbm, out);
  dim3 grid = grid_of(blocks_for(p.count, kThreads));
  if (out.dtype == DType::f32)
    return launch(stream, ends_kernel<float>, grid, kThreads, 0, p, out.at<float>());
  if (out.dtype == DType::f64)
    return launch(stream, ends_kernel<double>, grid, kThreads, 0, p, out.at<double>());
  return kUnsupported;
}

}  // namespace flow::cuda
