// Maps the number of an element to its offset in several strided operands: dimensions that are
// contiguous in all of them are merged, and small numbers use 32 bits and multiplications instead
// of 64 bits and divisions.
#pragma once
#include <cstdint>

#include "kernels/shared/hd.hpp"
#include "kernels/shared/view.hpp"

namespace flow::kernels {

/// Division of numbers below 2^31 by a fixed divisor: Granlund and Montgomery, "Division by
/// invariant integers using multiplication".
struct Divide {
  uint32_t by = 1, factor = 1, shift = 0;

  Divide() = default;
  explicit Divide(uint32_t number) : by(number) {
    while ((uint64_t{1} << shift) < number) shift++;
    factor = static_cast<uint32_t>(
        ((uint64_t{1} << 32) * ((uint64_t{1} << shift) - number)) / number + 1);
  }
  FLOW_HD uint32_t operator()(uint32_t n) const {
    auto high = static_cast<uint32_t>((uint64_t{n} * factor) >> 32);
    return (high + n) >> shift;
  }
};

template <int n>
struct IndexMath {
  int rank = 0;       // dimension 0 is the innermost
  bool small = true;  // numbers and offsets fit in 31 bits
  int64_t count = 0;
  int64_t sizes[kRankMax] = {};
  Divide divide[kRankMax];
  int64_t strides[n][kRankMax] = {};

  /// Offset of element `number` in each operand, in elements.
  FLOW_HD void at(int64_t number, int64_t (&offset)[n]) const {
    for (int k = 0; k < n; k++) offset[k] = 0;
    if (small) {
      auto rest = static_cast<uint32_t>(number);
      int32_t sum[n] = {};
      for (int dim = 0; dim < rank; dim++) {
        uint32_t over = dim + 1 < rank ? divide[dim](rest) : 0;
        auto index = static_cast<int32_t>(rest - over * static_cast<uint32_t>(sizes[dim]));
        for (int k = 0; k < n; k++) sum[k] += index * static_cast<int32_t>(strides[k][dim]);
        rest = over;
      }
      for (int k = 0; k < n; k++) offset[k] = sum[k];
      return;
    }
    for (int dim = 0; dim < rank; dim++) {
      int64_t over = dim + 1 < rank ? number / sizes[dim] : 0;
      int64_t index = number - over * sizes[dim];
      for (int k = 0; k < n; k++) offset[k] += index * strides[k][dim];
      number = over;
    }
  }

  /// Call after sizes or strides were changed.
  void update_divisors() {
    constexpr int64_t most = (int64_t{1} << 31) - 1;
    small = count <= most;
    for (int k = 0; k < n; k++) {
      int64_t reach = 0;
      for (int dim = 0; dim < rank; dim++) {
        int64_t stride = strides[k][dim] < 0 ? -strides[k][dim] : strides[k][dim];
        if (stride > most || (sizes[dim] - 1) * static_cast<double>(stride) > most)
          small = false;
        else
          reach += (sizes[dim] - 1) * stride;
      }
      small = small && reach <= most;
    }
    for (int dim = 0; dim < rank && small; dim++)
      divide[dim] = Divide(static_cast<uint32_t>(sizes[dim] < 1 ? 1 : sizes[dim]));
  }
};

/// Over the dimensions of `shape`; strides[k] are operand k's, one per dimension.
template <int n>
IndexMath<n> index_math_over(const Shape& shape, const int64_t* const (&strides)[n]) {
  IndexMath<n> index_math;
  index_math.count = shape.count();
  for (int dim = shape.rank - 1; dim >= 0; dim--) {
    if (shape[dim] == 1) continue;
    int last = index_math.rank - 1;
    bool merge = last >= 0;
    for (int k = 0; k < n && merge; k++)
      merge = strides[k][dim] == index_math.strides[k][last] * index_math.sizes[last];
    if (merge) {
      index_math.sizes[last] *= shape[dim];
      continue;
    }
    index_math.sizes[index_math.rank] = shape[dim];
    for (int k = 0; k < n; k++) index_math.strides[k][index_math.rank] = strides[k][dim];
    index_math.rank++;
  }
  if (index_math.rank == 0) {
    index_math.rank = 1;
    index_math.sizes[0] = 1;
    for (int k = 0; k < n; k++) index_math.strides[k][0] = 1;
  }
  index_math.update_divisors();
  return index_math;
}

/// All dimensions except the last `but`.
inline Shape leading(const Shape& shape, int but) {
  Shape out;
  for (int dim = 0; dim + but < shape.rank; dim++) out.push(shape[dim]);
  return out;
}

/// Converts iteration over elements to iteration over packs of `width` elements that are contiguous
/// and aligned in each operand, or one repeated element. False, without a change, if an operand
/// does not allow that. With one dimension, the last count % width elements are left over.
template <int n>
bool index_packs(IndexMath<n>& index_math, int width, char* const (&data)[n],
                 const size_t (&size)[n]) {
  if (index_math.rank > 1 && index_math.sizes[0] % width != 0) return false;
  for (int k = 0; k < n; k++) {
    if (index_math.strides[k][0] == 0) continue;
    if (index_math.strides[k][0] != 1) return false;
    if (reinterpret_cast<uintptr_t>(data[k]) % (static_cast<size_t>(width) * size[k]) != 0)
      return false;
    for (int dim = 1; dim < index_math.rank; dim++)
      if (index_math.strides[k][dim] % width != 0) return false;
  }
  index_math.sizes[0] /= width;
  index_math.count = index_math.rank == 1 ? index_math.sizes[0] : index_math.count / width;
  for (int k = 0; k < n; k++) index_math.strides[k][0] *= width;
  index_math.update_divisors();
  return true;
}

}  // namespace flow::kernels
