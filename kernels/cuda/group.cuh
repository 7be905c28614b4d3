// Sums and extremes over the threads that share a row: a warp or a block. The order of additions is
// fixed, so equal inputs give equal bits.
#pragma once
#include "kernels/cuda/element.cuh"

namespace flow::cuda {

/// The threads that share one row.
struct Group {
  int rank, size;  // size is kWarp, or the block's
  // Which of two shared buffers holds the warps' results. With two, one barrier per exchange is
  // enough: a buffer is written again only after the barrier of the next exchange.
  int turn = 0;
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
  C at[2][kWarp];
};

/// Each thread gets the result of warp `lane`, or `neutral`; `mine` is its own warp's.
template <typename C>
FLOW_DEVICE C exchange(Group& group, C mine, C neutral) {
  auto& results = shared_room<WarpResults<C>>().at[group.turn];
  group.turn ^= 1;
  int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  if (lane == 0) results[warp] = mine;
  __syncthreads();
  return lane < group.size / kWarp ? results[lane] : neutral;
}

/// All threads of the group get the result. `neutral` is the neutral element of f.
template <typename C, typename F>
FLOW_DEVICE C over_group(Group& group, C value, C neutral, F f) {
  value = over_warp(value, f);
  if (group.size == kWarp) return value;
  return over_warp(exchange(group, value, neutral), f);
}
template <typename C>
FLOW_DEVICE C sum_over_group(Group& group, C value) {
  return over_group(group, value, C(0), Add{});
}

template <typename C>
struct Sums {
  C first, second;
};
/// Both sums with one exchange.
template <typename C>
FLOW_DEVICE Sums<C> sums_over_group(Group& group, Sums<C> sums) {
  sums = {over_warp(sums.first, Add{}), over_warp(sums.second, Add{})};
  if (group.size == kWarp) return sums;
  sums = exchange(group, sums, {C(0), C(0)});
  return {over_warp(sums.first, Add{}), over_warp(sums.second, Add{})};
}

template <typename T, int width>
FLOW_DEVICE void unpack(Words<T, width> words, Compute<T> (&to)[width]) {
#ifndef FLOW_EMULATE
  // A half float is converted again for each pass: its float would need another register.
  if constexpr (is_small_float<T> && width == kPack<T>)
    asm volatile(""
                 : "+r"(words.at[0].x), "+r"(words.at[0].y), "+r"(words.at[0].z),
                   "+r"(words.at[0].w));
#endif
  T stored[width];
  __builtin_memcpy(stored, &words, sizeof words);
  widen(stored, to);
}

/// Rows of n operands that a group's threads read in packs, which are all in registers: for several
/// passes over rows that allow packs and are at most `packs_of_thread` packs per thread.
template <typename T, int n, int packs_of_thread>
class KeptRows {
 public:
  /// `to` is the row that is written, or null.
  FLOW_DEVICE KeptRows(Group group, int64_t columns, const T* const (&rows)[n], const T*)
      : rank_(group.rank), step_(group.size), packs_(static_cast<int>(columns) / kPack<T>) {
    FLOW_UNROLL
    for (int k = 0; k < packs_of_thread; k++)
      if (int at = rank_ + k * step_; at < packs_) FLOW_UNROLL
    for (int row = 0; row < n; row++)
      kept_[k][row] = load_words<kPack<T>>(rows[row] + at * kPack<T>);
  }
  /// Calls f(first column, Constant<width>, values[n][width], number of the thread's pack) for all
  /// of this thread's elements.
  template <typename F>
  FLOW_DEVICE void each(F f) const {
    FLOW_UNROLL
    for (int k = 0; k < packs_of_thread; k++)
      if (int at = rank_ + k * step_; at < packs_) {
        Compute<T> values[n][kPack<T>];
        FLOW_UNROLL
        for (int row = 0; row < n; row++) unpack(kept_[k][row], values[row]);
        f(at * kPack<T>, Constant<kPack<T>>{}, values, k);
      }
  }

 private:
  int rank_, step_, packs_;
  Words<T, kPack<T>> kept_[packs_of_thread][n];
};

#ifndef FLOW_EMULATE
/// The larger ones of two pairs of half floats; a number if the other is NaN.
template <typename T>
FLOW_DEVICE uint32_t larger_pair(uint32_t a, uint32_t b) {
  uint32_t result;
  if constexpr (std::is_same_v<T, Brain>)
    asm("max.bf16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
  else
    asm("max.f16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
  return result;
}
#endif
/// The largest of packs, as fmax finds it.
template <typename T, int n>
FLOW_DEVICE Compute<T> largest_of(const Words<T, kPack<T>> (&packs)[n]) {
  using C = Compute<T>;
  constexpr int width = kPack<T>;
#ifndef FLOW_EMULATE
  if constexpr (is_small_float<T>) {
    constexpr int count = n * width / 2;
    uint32_t pairs[count];
    __builtin_memcpy(pairs, packs, sizeof pairs);
    FLOW_UNROLL
    for (int i = 2; i < count; i++) pairs[i % 2] = larger_pair<T>(pairs[i % 2], pairs[i]);
    pairs[0] = larger_pair<T>(pairs[0], pairs[1]);
    T two[2];
    C both[2];
    __builtin_memcpy(two, pairs, sizeof two);
    widen(two, both);
    return std::fmax(both[0], both[1]);
  }
#endif
  C top = -static_cast<C>(INFINITY);
  FLOW_UNROLL
  for (int k = 0; k < n; k++) {
    C x[width];
    unpack(packs[k], x);
    FLOW_UNROLL
    for (int j = 0; j < width; j++) top = std::fmax(top, x[j]);
  }
  return top;
}

/// As KeptRows, for rows of any length and address: each pass reads them again.
template <typename T, int n>
class StreamedRows {
 public:
  static constexpr int kAhead = 4 / n;  // loads that are under way together

  FLOW_DEVICE StreamedRows(Group group, int64_t columns, const T* const (&rows)[n], const T* to)
      : group_(group), columns_(columns) {
    uintptr_t addresses[n + 1];
    for (int k = 0; k < n; k++) {
      rows_[k] = rows[k];
      addresses[k] = reinterpret_cast<uintptr_t>(rows[k]);
    }
    addresses[n] = to ? reinterpret_cast<uintptr_t>(to) : addresses[0];
    packs_ = row_packs(columns, kPack<T>, static_cast<int>(sizeof(T)), addresses);
  }
  template <typename F>
  FLOW_DEVICE void each(F f) const {
    for (int64_t base = group_.rank; base < packs_.packs; base += group_.size * kAhead) {
      Words<T, kPack<T>> read[kAhead][n];
      FLOW_UNROLL
      for (int k = 0; k < kAhead; k++)
        if (int64_t at = base + k * group_.size; at < packs_.packs) FLOW_UNROLL
      for (int row = 0; row < n; row++)
        read[k][row] = load_words<kPack<T>>(rows_[row] + packs_.head + at * kPack<T>);
      FLOW_UNROLL
      for (int k = 0; k < kAhead; k++)
        if (int64_t at = base + k * group_.size; at < packs_.packs) {
          Compute<T> values[n][kPack<T>];
          FLOW_UNROLL
          for (int row = 0; row < n; row++) unpack(read[k][row], values[row]);
          f(packs_.head + at * kPack<T>, Constant<kPack<T>>{}, values, k);
        }
    }
    each_single(f);
  }
  /// Of one row: calls many(packs[kAhead]) where a thread has as many, and for the other elements
  /// f as each() does.
  template <typename Many, typename F>
  FLOW_DEVICE void each_batch(Many many, F f) const {
    static_assert(n == 1);
    const T* from = rows_[0] + packs_.head;
    int64_t at = group_.rank;
    for (; at + (kAhead - 1) * group_.size < packs_.packs; at += kAhead * group_.size) {
      Words<T, kPack<T>> read[kAhead];
      FLOW_UNROLL
      for (int k = 0; k < kAhead; k++)
        read[k] = load_words<kPack<T>>(from + (at + k * group_.size) * kPack<T>);
      many(read);
    }
    for (; at < packs_.packs; at += group_.size) {
      Compute<T> values[1][kPack<T>];
      unpack(load_words<kPack<T>>(from + at * kPack<T>), values[0]);
      f(packs_.head + at * kPack<T>, Constant<kPack<T>>{}, values, 0);
    }
    each_single(f);
  }

 private:
  template <typename F>
  FLOW_DEVICE void each_single(F f) const {
    int64_t inside = packs_.packs * kPack<T>;
    for (int64_t i = group_.rank; i < columns_ - inside; i += group_.size) {
      int64_t at = i < packs_.head ? i : i + inside;
      Compute<T> values[n][1];
      FLOW_UNROLL
      for (int row = 0; row < n; row++) values[row][0] = convert<Compute<T>>(rows_[row][at]);
      f(at, Constant<1>{}, values, 0);
    }
  }

  Group group_;
  int64_t columns_;
  const T* rows_[n];
  RowPacks packs_;
};

constexpr int kKeptPacks = 4;
/// KeptRows of up to kKeptPacks per thread and row, or StreamedRows.
template <typename T, int n, bool kept>
using ReadRows = std::conditional_t<kept, KeptRows<T, n, kKeptPacks>, StreamedRows<T, n>>;

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
/// Whether each row of each operand consists of packs of T.
template <typename T, int n>
bool rows_are_packs(const Rows<n>& rows, const View* const (&views)[n]) {
  bool packs = rows.columns % kPack<T> == 0;
  for (int k = 0; k < n; k++) {
    packs = packs && reinterpret_cast<uintptr_t>(views[k]->data) % 16 == 0;
    for (int dim = 0; dim < rows.index_math.rank; dim++)
      packs = packs &&
              (rows.index_math.sizes[dim] <= 1 || rows.index_math.strides[k][dim] % kPack<T> == 0);
  }
  return packs;
}
/// For KeptRows with `packs_of_thread` in groups of at most `threads_max`; no threads: they do not
/// fit.
template <typename T, int n>
RowLaunch kept_rows(const Rows<n>& rows, const View* const (&views)[n], int packs_of_thread,
                    int threads_max) {
  if (!rows_are_packs<T>(rows, views)) return {0, 0, 0};
  return kept_rows_for(rows.index_math.count, rows.columns / kPack<T>, packs_of_thread,
                       threads_max);
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

/// exp for a term of a sum whose largest term is 1, or for a result of f16 or bf16: the error is
/// below 2^-22 of that 1. Results below 2^-126 are 0.
template <typename C>
FLOW_DEVICE C quick_exp(C x) {
#ifndef FLOW_EMULATE
  if constexpr (std::is_same_v<C, float>) {
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x * 1.4426950408889634f));
    return result;
  }
#endif
  return std::exp(x);
}

/// Online softmax of a row: the largest number so far, and the sum of exp(x - largest).
template <typename C>
struct Softmax {
  C largest, sum;

  FLOW_DEVICE static Softmax empty() { return {-static_cast<C>(INFINITY), C(0)}; }
  /// What exponents are relative to: finite unless a number is infinite or NaN.
  FLOW_DEVICE C shift() const { return largest == -static_cast<C>(INFINITY) ? C(0) : largest; }
  FLOW_DEVICE void raise_to(C top) {
    if (top > largest) {
      sum *= quick_exp(largest - top);
      largest = top;
    }
  }
  template <int width>
  FLOW_DEVICE void add(const C (&x)[width]) {
    C top = x[0];
    for (int j = 1; j < width; j++) top = std::fmax(top, x[j]);
    raise_to(top);
    for (int j = 0; j < width; j++) sum += quick_exp(x[j] - shift());
  }
  /// Several packs, with one comparison for all of them.
  template <typename T, int n>
  FLOW_DEVICE void add_packs(const Words<T, kPack<T>> (&packs)[n]) {
    raise_to(largest_of<T>(packs));
    C from = shift(), sums[n] = {};
    FLOW_UNROLL
    for (int k = 0; k < n; k++) {
      C x[kPack<T>];
      unpack(packs[k], x);
      FLOW_UNROLL
      for (int j = 0; j < kPack<T>; j++) sums[k] += quick_exp(x[j] - from);
    }
    for (int k = 0; k < n; k++) sum += sums[k];
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
    C of_a = a.largest == largest ? a.sum : a.sum * quick_exp(a.largest - largest);
    C of_b = b.largest == largest ? b.sum : b.sum * quick_exp(b.largest - largest);
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
FLOW_DEVICE Softmax<C> softmax_over_group(Group& group, Softmax<C> value) {
  value = softmax_over_warp(value);
  if (group.size == kWarp) return value;
  return softmax_over_warp(exchange(group, value, Softmax<C>::empty()));
}

}  // namespace flow::cuda
