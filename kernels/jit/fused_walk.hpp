// Iteration of a fused chain over its operands: made by the host, passed to the kernel.
#pragma once
#include <cstdint>

#include "kernels/shared/index_math.hpp"
#include "kernels/shared/launch.hpp"

namespace flow::jit {

/// As cuda::ElementWalk (kernels/cuda/element.cuh): n operands, in packs if their layouts allow it.
/// The last one is the result.
template <int n>
struct FusedWalk {
  kernels::IndexMath<n> index_math;
  char* data[n];
  bool repeats[n];      // one element for all of a pack
  int64_t single, all;  // elements from `single` to `all` are processed one by one
};

/// Makes the walk over the views, in packs of `width` if all of them allow it. Returns the width,
/// or 0 if there are no elements.
template <int n>
int make_walk(FusedWalk<n>& walk, int width, const kernels::View* const (&views)[n]) {
  const kernels::Shape& shape = views[n - 1]->shape;
  if (shape.count() == 0) return 0;
  const int64_t* strides[n];
  size_t sizes[n];
  for (int k = 0; k < n; k++) {
    strides[k] = views[k]->strides;
    sizes[k] = dtype_size(views[k]->dtype);
    walk.data[k] = views[k]->data;
  }
  walk.index_math = kernels::index_math_over<n>(shape, strides);
  int64_t count = walk.index_math.count;
  for (int k = 0; k < n; k++) walk.repeats[k] = walk.index_math.strides[k][0] == 0;
  walk.single = walk.all = 0;
  if (!kernels::index_packs(walk.index_math, width, walk.data, sizes)) return 1;
  walk.single = walk.index_math.rank == 1 ? walk.index_math.count * width : count;
  walk.all = count;
  return width;
}

}  // namespace flow::jit
