// Price paths.
#include <algorithm>

#include "kernels/cpu/elementwise.hpp"
#include "kernels/shared/gbm.hpp"

namespace flow::cpu {
namespace {

// Calls f(path, first step, count, logarithms) for chunks of each path.
template <typename F>
void for_paths(const Stream& stream, const Gbm& options, int64_t paths, F f) {
  GbmStep step = gbm_step(options.rate, options.volatility, options.years, options.steps);
  int64_t grain = std::max<int64_t>(1, kGrainCostly / std::max<int64_t>(1, options.steps));
  const Loops& use = loops();
  parallel_for(stream.threads, paths, grain, [&](int64_t first, int64_t last) {
    alignas(64) double numbers[kChunk];
    // Several short paths share a chunk.
    int64_t total = (last - first) * options.steps, held = 0, taken = 0;
    uint64_t number = gbm_number(static_cast<uint64_t>(options.first_path + first),
                                 static_cast<uint64_t>(options.steps), 0);
    for (int64_t path = first; path < last; path++) {
      double logarithm = 0;
      for (int64_t at = 0; at < options.steps;) {
        if (taken == held) {
          held = std::min(kChunk, total);
          use.normals(options.seed, number, RandomUse::gbm, numbers, held);
          number += static_cast<uint64_t>(held);
          total -= held;
          taken = 0;
        }
        int64_t count = std::min(options.steps - at, held - taken);
        logarithm = use.path_steps(numbers + taken, step.drift, step.diffusion, logarithm, count);
        f(path, at, count, numbers + taken);
        taken += count;
        at += count;
      }
    }
  });
}

int gbm_paths(Stream& stream, const Gbm& options, const View& out) {
  if (out.dtype != DType::f32 && out.dtype != DType::f64) return kUnsupported;
  const Loops& use = loops();
  auto store = [&](int64_t path, int64_t column, const double* prices, int64_t count) {
    int64_t at = path * (options.steps + 1) + column;
    if (out.dtype == DType::f64) {
      std::copy(prices, prices + count, out.at<double>() + at);
    } else {
      use.convert[kF64][kF32](prices, out.at<float>() + at, count);
    }
  };
  if (options.steps == 0) {
    for (int64_t path = 0; path < out.shape[0]; path++) store(path, 0, &options.start, 1);
    return kDone;
  }
  for_paths(stream, options, out.shape[0],
            [&](int64_t path, int64_t first, int64_t count, const double* logarithms) {
              double prices[kChunk];
              use.prices(logarithms, options.start, prices, count);
              if (first == 0) store(path, 0, &options.start, 1);
              store(path, first + 1, prices, count);
            });
  return kDone;
}

int gbm_ends(Stream& stream, const Gbm& options, const View& out) {
  if (out.dtype != DType::f32 && out.dtype != DType::f64) return kUnsupported;
  const Loops& use = loops();
  auto store = [&](int64_t path, double price) {
    if (out.dtype == DType::f64) {
      out.at<double>()[path] = price;
    } else {
      out.at<float>()[path] = static_cast<float>(price);
    }
  };
  if (options.steps == 0) {
    for (int64_t path = 0; path < out.count(); path++) store(path, options.start);
    return kDone;
  }
  for_paths(stream, options, out.count(),
            [&](int64_t path, int64_t first, int64_t count, const double* logarithms) {
              if (first + count != options.steps) return;
              double price = 0;
              use.prices(logarithms + count - 1, options.start, &price, 1);
              store(path, price);
            });
  return kDone;
}

}  // namespace

void add_finance_rows(Kernels& table) {
  table.gbm_paths = gbm_paths;
  table.gbm_ends = gbm_ends;
}

}  // namespace flow::cpu
