// Iterates over several views of one shape, run by run.
#pragma once
#include <array>
#include <cstdint>

#include "kernels/shared/view.hpp"

namespace flow::cpu {

using namespace kernels;

/// Calls f(rows, length) for every innermost run of `n` views of one shape; the run's strides are
/// `views[i].strides[0]` of the result of `collapse`. Adjacent dimensions that are contiguous in
/// all views are one run.
template <size_t n, typename F>
void for_each_run(std::array<View, n> views, F f) {
  // Merge dimensions from the right wherever every view allows it.
  Shape shape;
  std::array<std::array<int64_t, kRankMax>, n> strides{};  // innermost first
  for (int dim = views[0].rank() - 1; dim >= 0; dim--) {
    int64_t size = views[0].shape[dim];
    if (size == 1) continue;
    bool merge = shape.rank > 0;
    for (size_t i = 0; i < n && merge; i++)
      merge = views[i].strides[dim] == strides[i][shape.rank - 1] * shape[shape.rank - 1];
    if (merge) {
      shape[shape.rank - 1] *= size;
      continue;
    }
    for (size_t i = 0; i < n; i++) strides[i][shape.rank] = views[i].strides[dim];
    shape.push(size);
  }
  if (views[0].count() == 0) return;
  std::array<int64_t, n> sizes, run_strides{};
  std::array<char*, n> at;
  for (size_t i = 0; i < n; i++) {
    sizes[i] = static_cast<int64_t>(dtype_size(views[i].dtype));
    at[i] = views[i].data;
    run_strides[i] = strides[i][0];
  }
  int64_t length = shape.rank > 0 ? shape[0] : 1;
  std::array<int64_t, kRankMax> index{};
  for (;;) {
    f(at, run_strides, length);
    int dim = 1;
    for (; dim < shape.rank; dim++) {
      for (size_t i = 0; i < n; i++) at[i] += strides[i][dim] * sizes[i];
      if (++index[dim] < shape[dim]) break;
      for (size_t i = 0; i < n; i++) at[i] -= strides[i][dim] * sizes[i] * shape[dim];
      index[dim] = 0;
    }
    if (dim >= shape.rank) return;
  }
}

}  // namespace flow::cpu
