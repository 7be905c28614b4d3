// Sums and extremes over the threads that share a row: a warp or a block. The order of additions is
// fixed, so equal inputs give equal bits.
#pragma once
#include "kernels/cuda/element.cuh"

namespace flow::cuda {

/// The threads that share one row.
struct Group {
  int rank, size;  // size is kWarp, or the block's
};
FLOW_DEVICE Group group_of(int threads_of_row) {
  return {static_cast<int>(threadIdx.x) % threads_of_row, threads_of_row};
}

struct Add {
  template <typename C>
  FLOW_DEVICE C operator()(C a, C b) const {
    return a + b;
  }
};
/// A NaN is the larger one.
struct Largest {
  template <typename C>
  FLOW_DEVICE C operator()(C a, C b) const {
    return a > b || is_nan(a) ? a : b;
  }
};

/// All threads of the warp get the result.
template <typename C, typename F>
FLOW_DEVICE C over_warp(C value, F f) {
  for (int with = kWarp / 2; with > 0; with /= 2) {
    C other = __shfl_xor_sync(kAll, value, with);
    // The lower lane's operand is first: both lanes of a pair compute the same.
    value = static_cast<int>(threadIdx.x) & with ? f(other, value) : f(value, other);
  }
  return value;
}

template <typename C>
struct WarpResults {
  C at[kWarp];
};

/// All threads of the group get the result. `neutral` is the neutral element of f.
template <typename C, typename F>
FLOW_DEVICE C over_group(Group group, C value, C neutral, F f) {
  value = over_warp(value, f);
  if (group.size == kWarp) return value;
  auto& results = shared_room<WarpResults<C>>();
  int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  if (lane == 0) results.at[warp] = value;
  __syncthreads();
  value = lane < group.size / kWarp ? results.at[lane] : neutral;
  __syncthreads();
  return over_warp(value, f);
}
template <typename C>
FLOW_DEVICE C sum_over_group(Group group, C value) {
  return over_group(group, value, C(0), Add{});
}

/// Calls f(first, Constant<width>) for all of a row's elements, in packs if the addresses allow it.
template <typename T, int n, typename F>
FLOW_DEVICE void each_in_row(Group group, int64_t columns, const void* const (&rows)[n], F f) {
  uintptr_t addresses[n];
  for (int k = 0; k < n; k++) addresses[k] = reinterpret_cast<uintptr_t>(rows[k]);
  RowPacks packs = row_packs(columns, kPack<T>, static_cast<int>(sizeof(T)), addresses);
  for (int64_t i = group.rank; i < packs.packs; i += group.size)
    f(packs.head + i * kPack<T>, Constant<kPack<T>>{});
  int64_t inside = packs.packs * kPack<T>;
  for (int64_t i = group.rank; i < columns - inside; i += group.size)
    f(i < packs.head ? i : i + inside, Constant<1>{});
}

/// The rows of operands: iteration over their leading dimensions.
template <int n>
struct Rows {
  IndexMath<n> index_math;
  int64_t columns;
};
template <int n>
Rows<n> rows_of(const View* const (&views)[n]) {
  const int64_t* strides[n];
  for (int k = 0; k < n; k++) strides[k] = views[k]->strides;
  return {index_math_over<n>(leading(views[0]->shape, 1), strides), views[0]->shape.last()};
}

/// Calls f(row, offsets) for the rows of this thread's group.
template <int n, typename F>
FLOW_DEVICE void each_row(const Rows<n>& rows, Group group, F f) {
  int64_t beside = static_cast<int>(blockDim.x) / group.size;
  int64_t step = static_cast<int64_t>(gridDim.x) * beside;
  int64_t first = blockIdx.x * beside + static_cast<int>(threadIdx.x) / group.size;
  for (int64_t row = first; row < rows.index_math.count; row += step) {
    int64_t offset[n];
    rows.index_math.at(row, offset);
    f(row, offset);
  }
}

/// Online softmax of a row: the largest number so far, and the sum of exp(x - largest).
template <typename C>
struct Softmax {
  C largest, sum;

  FLOW_DEVICE static Softmax empty() { return {-static_cast<C>(INFINITY), C(0)}; }
  FLOW_DEVICE void add(C x) {
    if (x > largest) {
      sum = sum * std::exp(largest - x) + C(1);
      largest = x;
    } else {
      sum += x == largest ? C(1) : std::exp(x - largest);
    }
  }
  /// The logarithm of the sum; NaN if a number is infinite.
  FLOW_DEVICE C log_sum() const {
    bool finite = largest - largest == C(0);
    return finite ? std::log(sum) : largest - largest;
  }
  FLOW_DEVICE double logarithm() const {
    return static_cast<double>(largest) + static_cast<double>(log_sum());
  }
};

/// A logarithm of a sum of exponentials in two parts: a float has too few digits for that of large
/// numbers.
template <typename C>
struct SplitLogarithm {
  C high, low;

  FLOW_DEVICE static SplitLogarithm of(double logarithm) {
    C high = static_cast<C>(logarithm);
    bool finite = high - high == C(0);
    return {high, finite ? static_cast<C>(logarithm - static_cast<double>(high)) : C(0)};
  }
  FLOW_DEVICE C below(C x) const { return (x - high) - low; }
};
struct JoinSoftmax {
  template <typename C>
  FLOW_DEVICE Softmax<C> operator()(Softmax<C> a, Softmax<C> b) const {
    C largest = a.largest > b.largest ? a.largest : b.largest;
    C of_a = a.largest == largest ? a.sum : a.sum * std::exp(a.largest - largest);
    C of_b = b.largest == largest ? b.sum : b.sum * std::exp(b.largest - largest);
    return {largest, of_a + of_b};
  }
};
template <typename C>
FLOW_DEVICE Softmax<C> shuffle_softmax(Softmax<C> value, int with) {
  return {__shfl_xor_sync(kAll, value.largest, with), __shfl_xor_sync(kAll, value.sum, with)};
}
template <typename C>
FLOW_DEVICE Softmax<C> softmax_over_warp(Softmax<C> value) {
  for (int with = kWarp / 2; with > 0; with /= 2) {
    Softmax<C> other = shuffle_softmax(value, with);
    value = static_cast<int>(threadIdx.x) & with ? JoinSoftmax{}(other, value)
                                                 : JoinSoftmax{}(value, other);
  }
  return value;
}
template <typename C>
FLOW_DEVICE Softmax<C> softmax_over_group(Group group, Softmax<C> value) {
  value = softmax_over_warp(value);
  if (group.size == kWarp) return value;
  auto& results = shared_room<WarpResults<Softmax<C>>>();
  int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  if (lane == 0) results.at[warp] = value;
  __syncthreads();
  value = lane < group.size / kWarp ? results.at[lane] : Softmax<C>::empty();
  __syncthreads();
  return softmax_over_warp(value);
}
template <typename T>
FLOW_DEVICE Softmax<Compute<T>> softmax_of_row(Group group, int64_t columns, const T* row) {
  auto softmax = Softmax<Compute<T>>::empty();
  each_in_row<T>(group, columns, {row}, [&](int64_t i, auto width) {
    Compute<T> x[decltype(width)::value];
    load_as<decltype(width)::value>(row + i, x);
    for (Compute<T> each : x) softmax.add(each);
  });
  return softmax_over_group(group, softmax);
}

}  // namespace flow::cuda
