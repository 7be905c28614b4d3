// Sums, extremes and running sums. A block's threads are spread over outputs or over the elements
// of one, depending on the memory layout; a long reduction is split over several blocks, whose
// results a second kernel combines in order.
#include "kernels/cuda/group.cuh"
#include "kernels/cuda/launchers.hpp"

namespace flow::cuda {
namespace {

template <typename A>
FLOW_DEVICE A add_wrapped(A a, A b) {
  if constexpr (std::is_integral_v<A>)
    return static_cast<A>(wrapping(a) + wrapping(b));
  else
    return a + b;
}
template <typename A>
FLOW_DEVICE A multiply_wrapped(A a, A b) {
  if constexpr (std::is_integral_v<A>)
    return static_cast<A>(wrapping(a) * wrapping(b));
  else
    return a * b;
}

// All except the variance.
template <typename A>
struct Simple {
  using State = A;
  static constexpr bool kHasColumns = true;
  Reduce op;

  FLOW_DEVICE State start() const {
    constexpr bool is_real = std::is_floating_point_v<A>;
    constexpr A lowest = is_real ? static_cast<A>(-INFINITY) : static_cast<A>(INT64_MIN);
    constexpr A highest = is_real ? static_cast<A>(INFINITY) : static_cast<A>(INT64_MAX);
    switch (op) {
      case Reduce::product:
      case Reduce::all:
        return A(1);
      case Reduce::max:
        return lowest;
      case Reduce::min:
        return highest;
      default:
        return A(0);
    }
  }
  FLOW_DEVICE State join(State a, State b) const {
    with_op([&](auto one) { a = join_by<decltype(one)::value>(a, b); });
    return a;
  }
  template <int width>
  FLOW_DEVICE void add(State& state, const A (&x)[width]) const {
    with_op([&](auto one) {
      constexpr Reduce which = decltype(one)::value;
      for (int j = 0; j < width; j++) state = join_by<which>(state, term_of<which>(x[j]));
    });
  }
  /// x[j] to state[j].
  template <int width>
  FLOW_DEVICE void add_each(State (&state)[width], const A (&x)[width]) const {
    with_op([&](auto one) {
      constexpr Reduce which = decltype(one)::value;
      FLOW_UNROLL
      for (int j = 0; j < width; j++) state[j] = join_by<which>(state[j], term_of<which>(x[j]));
    });
  }
  FLOW_DEVICE bool is_sum() const { return op == Reduce::sum || op == Reduce::mean; }
  FLOW_DEVICE A finish(State state, int64_t length, double) const {
    if constexpr (std::is_floating_point_v<A>) {
      if (op == Reduce::mean) return state / static_cast<A>(length);
      if (op == Reduce::norm) return std::sqrt(state);
    }
    return state;
  }

 private:
  // One branch for all elements of a pack.
  template <typename F>
  FLOW_DEVICE void with_op(F f) const {
    switch (op) {
      case Reduce::product:
        return f(Constant<Reduce::product>{});
      case Reduce::max:
      case Reduce::any:
        return f(Constant<Reduce::max>{});
      case Reduce::min:
      case Reduce::all:
        return f(Constant<Reduce::min>{});
      case Reduce::norm:
        return f(Constant<Reduce::norm>{});
      default:
        return f(Constant<Reduce::sum>{});
    }
  }
  template <Reduce which>
  FLOW_DEVICE static State join_by(State a, State b) {
    if constexpr (which == Reduce::product) return multiply_wrapped(a, b);
    if constexpr (which == Reduce::max) return a > b || is_nan(a) ? a : b;
    if constexpr (which == Reduce::min) return a < b || is_nan(a) ? a : b;
    return add_wrapped(a, b);
  }
  template <Reduce which>
  FLOW_DEVICE static A term_of(A x) {
    return which == Reduce::norm ? multiply_wrapped(x, x) : x;
  }
};

// Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample
// variances".
template <typename A>
struct Variance {
  static constexpr bool kHasColumns = false;
  struct State {
    A count, mean, squares;
  };

  FLOW_DEVICE State start() const { return {A(0), A(0), A(0)}; }
  template <int width>
  FLOW_DEVICE void add(State& state, const A (&values)[width]) const {
    for (A x : values) {
      state.count += A(1);
      A delta = x - state.mean;
      state.mean += delta / state.count;
      state.squares += delta * (x - state.mean);
    }
  }
  FLOW_DEVICE State join(State a, State b) const {
    if (b.count == A(0)) return a;
    if (a.count == A(0)) return b;
    A count = a.count + b.count, delta = b.mean - a.mean;
    return {count, a.mean + delta * (b.count / count),
            a.squares + b.squares + delta * delta * (a.count / count * b.count)};
  }
  FLOW_DEVICE A finish(State state, int64_t length, double correction) const {
    auto divisor = static_cast<A>(static_cast<double>(length) - correction);
    return state.squares / (divisor > A(0) ? divisor : A(0));
  }
};

template <typename A>
FLOW_DEVICE void put_as(DType dtype, char* data, int64_t at, A value) {
  if constexpr (std::is_same_v<A, double>) {
    reinterpret_cast<double*>(data)[at] = value;
  } else if constexpr (std::is_same_v<A, float>) {
    if (dtype == DType::f32) reinterpret_cast<float*>(data)[at] = value;
    if (dtype == DType::f16) reinterpret_cast<Half*>(data)[at] = convert<Half>(value);
    if (dtype == DType::bf16) reinterpret_cast<Brain*>(data)[at] = convert<Brain>(value);
  } else {
    if (dtype == DType::i64) reinterpret_cast<int64_t*>(data)[at] = value;
    if (dtype == DType::i32) reinterpret_cast<int32_t*>(data)[at] = convert<int32_t>(value);
    if (dtype == DType::u8 || dtype == DType::boolean)
      reinterpret_cast<uint8_t*>(data)[at] = convert<uint8_t>(value);
  }
}

struct ReductionShape {
  IndexMath<2> kept;     // of in, of out
  IndexMath<1> reduced;  // in packs, if possible
  int64_t length;        // elements
  int64_t single;        // from here to `length` one by one
  int64_t chunk;         // steps of the reduced iteration per split
  bool is_line;          // the reduced elements are at equal distances
  int wide, deep;
  double correction;
  DType out_type;
};

template <typename State>
struct BlockStates {
  State at[kBlockThreads];
};

constexpr int kAhead = 4;  // loads of a thread that are under way together

template <typename T, int width, typename A>
FLOW_DEVICE void unpack_as(const Words<T, width>& words, A (&to)[width]) {
  T stored[width];
  __builtin_memcpy(stored, &words, sizeof words);
  widen(stored, to);
}

// Adds the packs at `from + i * distance` for i = first, first + step, … below last, of which
// `exist` elements exist. Sums of floats are nearly all there is to reduce by columns: without a
// branch or a division per pack, and with twice as many loads under way as for other operations.
template <bool whole, int width, typename T, typename A>
FLOW_DEVICE void sum_line(const T* from, int64_t distance, int64_t first, int64_t last, int step,
                          int64_t exist, A (&sum)[width]) {
  constexpr int ahead = 2 * kAhead;
  from += first * distance;
  int64_t jump = step * distance;
  for (int64_t i = first; i < last; i += ahead * step, from += ahead * jump) {
    Words<T, width> read[ahead];
    FLOW_UNROLL
    for (int k = 0; k < ahead; k++) {
      read[k] = {};
      if (i + k * step >= last) continue;
      if constexpr (whole) {
        read[k] = load_words<width>(from + k * jump);
      } else {
        T part[width] = {};
        FLOW_UNROLL
        for (int j = 0; j < width; j++)
          if (j < exist) part[j] = from[k * jump + j];
        __builtin_memcpy(&read[k], part, sizeof part);
      }
    }
    FLOW_UNROLL
    for (int k = 0; k < ahead; k++) {
      A values[width];
      if constexpr (std::is_same_v<A, Compute<T>>)
        unpack(read[k], values);
      else
        unpack_as<T>(read[k], values);
      FLOW_UNROLL
      for (int j = 0; j < width; j++) sum[j] += values[j];
    }
  }
}

// The states of the `deep` threads of an output, in order, in that of the first.
template <typename F, typename State>
FLOW_DEVICE void join_in_block(F f, const ReductionShape& r, BlockStates<State>& states,
                               State mine) {
  int thread = static_cast<int>(threadIdx.x), y = thread / r.wide;
  states.at[thread] = mine;
  for (int half = r.deep / 2; half > 0; half /= 2) {
    __syncthreads();
    if (y < half) states.at[thread] = f.join(states.at[thread], states.at[thread + half * r.wide]);
  }
}

template <int width, typename T, typename A, typename F>
__global__ void __launch_bounds__(kBlockThreads)
    reduce_kernel(F f, ReductionShape r, const T* in, char* out, typename F::State* parts) {
  using State = typename F::State;
  auto& states = shared_room<BlockStates<State>>();
  int thread = static_cast<int>(threadIdx.x), x = thread % r.wide, y = thread / r.wide;
  int64_t first = blockIdx.y * r.chunk, last = least(first + r.chunk, r.reduced.count);
  for (int64_t base = int64_t{blockIdx.x} * r.wide; base < r.kept.count;
       base += int64_t{gridDim.x} * r.wide) {
    int64_t output = base + x;
    State state = f.start();
    int64_t offset[2] = {0, 0};
    if (output < r.kept.count) {
      r.kept.at(output, offset);
      const T* from = in + offset[0];
      bool is_sum = false;
      if constexpr (width == 1 && F::kHasColumns && std::is_floating_point_v<A>) {
        is_sum = r.is_line && f.is_sum();
        A sum[1] = {0};
        if (is_sum) {
          sum_line<true>(from, r.reduced.strides[0][0], first + y, last, r.deep, 1, sum);
          state = sum[0];
        }
      }
      for (int64_t base_of_step = first + y; base_of_step < last && !is_sum;
           base_of_step += int64_t{kAhead} * r.deep) {
        Words<T, width> read[kAhead];
        FLOW_UNROLL
        for (int k = 0; k < kAhead; k++)
          if (int64_t i = base_of_step + k * r.deep; i < last) {
            int64_t at[1];
            r.reduced.at(i, at);
            read[k] = load_words<width>(from + at[0]);
          }
        FLOW_UNROLL
        for (int k = 0; k < kAhead; k++)
          if (base_of_step + k * r.deep < last) {
            A values[width];
            unpack_as<T>(read[k], values);
            f.add(state, values);
          }
      }
      if (blockIdx.y == 0)
        for (int64_t i = r.single + y; i < r.length; i += r.deep) {
          A value[1] = {convert<A>(from[i])};
          f.add(state, value);
        }
    }
    join_in_block(f, r, states, state);
    if (y == 0 && output < r.kept.count) {
      if (parts)
        parts[blockIdx.y * r.kept.count + output] = states.at[thread];
      else
        put_as<A>(r.out_type, out, offset[1], f.finish(states.at[thread], r.length, r.correction));
    }
    __syncthreads();
  }
}

template <typename State, int width>
struct ColumnStates {
  State at[kBlockThreads / kWarp][kWarp * width];
};

// For outputs that are adjacent in the operand: a lane has a pack of them, and the block's warps
// share the elements of each.
template <typename T, typename A, typename F>
__global__ void __launch_bounds__(kBlockThreads)
    reduce_columns_kernel(F f, ReductionShape r, const T* in, char* out, typename F::State* parts) {
  using State = typename F::State;
  constexpr int width = kPack<T>, warps = kBlockThreads / kWarp;
  auto& states = shared_room<ColumnStates<State, width>>();
  int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp, warp = thread / kWarp;
  int64_t first = blockIdx.y * r.chunk, last = least(first + r.chunk, r.reduced.count);
  constexpr int across = kWarp * width;
  for (int64_t base = int64_t{blockIdx.x} * across; base < r.kept.count;
       base += int64_t{gridDim.x} * across) {
    State state[width];
    for (int j = 0; j < width; j++) state[j] = f.start();
    int64_t offset[2] = {0, 0};
    if (int64_t output = base + lane * width; output < r.kept.count) {
      r.kept.at(output, offset);
      const T* from = in + offset[0];
      bool is_sum = false;
      if constexpr (std::is_floating_point_v<A>) {
        is_sum = r.is_line && f.is_sum();
        int64_t exist = r.kept.count - output, distance = r.reduced.strides[0][0];
        if (is_sum && exist >= width)
          sum_line<true>(from, distance, first + warp, last, warps, width, state);
        else if (is_sum)
          sum_line<false>(from, distance, first + warp, last, warps, exist, state);
      }
      for (int64_t step = first + warp; step < last && !is_sum; step += kAhead * warps) {
        Words<T, width> read[kAhead];
        FLOW_UNROLL
        for (int k = 0; k < kAhead; k++)
          if (int64_t i = step + k * warps; i < last) {
            int64_t at[1];
            r.reduced.at(i, at);
            read[k] = load_words<width>(from + at[0]);
          }
        FLOW_UNROLL
        for (int k = 0; k < kAhead; k++)
          if (step + k * warps < last) {
            A values[width];
            unpack_as<T>(read[k], values);
            f.add_each(state, values);
          }
      }
    }
    for (int j = 0; j < width; j++) states.at[warp][lane * width + j] = state[j];
    __syncthreads();
    for (int column = thread; column < across; column += kBlockThreads)
      if (int64_t output = base + column; output < r.kept.count) {
        State all = states.at[0][column];
        for (int k = 1; k < warps; k++) all = f.join(all, states.at[k][column]);
        r.kept.at(output, offset);
        if (parts)
          parts[blockIdx.y * r.kept.count + output] = all;
        else
          put_as<A>(r.out_type, out, offset[1], f.finish(all, r.length, r.correction));
      }
    __syncthreads();
  }
}

// `wide` outputs times `deep` threads that share the splits of each.
template <typename A, typename F>
__global__ void __launch_bounds__(kBlockThreads)
    join_kernel(F f, ReductionShape r, const typename F::State* parts, int64_t splits, char* out) {
  auto& states = shared_room<BlockStates<typename F::State>>();
  int thread = static_cast<int>(threadIdx.x), x = thread % r.wide, y = thread / r.wide;
  for (int64_t base = int64_t{blockIdx.x} * r.wide; base < r.kept.count;
       base += int64_t{gridDim.x} * r.wide) {
    int64_t output = base + x;
    auto state = f.start();
    if (output < r.kept.count)
      for (int64_t first = y; first < splits; first += int64_t{kAhead} * r.deep) {
        typename F::State read[kAhead];
        FLOW_UNROLL
        for (int k = 0; k < kAhead; k++)
          if (int64_t split = first + k * r.deep; split < splits)
            read[k] = parts[split * r.kept.count + output];
        FLOW_UNROLL
        for (int k = 0; k < kAhead; k++)
          if (first + k * r.deep < splits) state = f.join(state, read[k]);
      }
    join_in_block(f, r, states, state);
    if (y == 0 && output < r.kept.count) {
      int64_t offset[2];
      r.kept.at(output, offset);
      put_as<A>(r.out_type, out, offset[1], f.finish(states.at[thread], r.length, r.correction));
    }
    __syncthreads();
  }
}

// Whether adjacent outputs are packs of adjacent elements. `part`: the last pack may have fewer.
template <typename T>
bool has_packs_of_outputs(const ReductionShape& r, const char* data, bool part) {
  bool packs = r.kept.strides[0][0] == 1 &&
               ((part && r.kept.rank == 1) || r.kept.sizes[0] % kPack<T> == 0) &&
               reinterpret_cast<uintptr_t>(data) % 16 == 0;
  for (int dim = 1; dim < r.kept.rank; dim++)
    packs = packs && r.kept.strides[0][dim] % kPack<T> == 0;
  for (int dim = 0; dim < r.reduced.rank; dim++)
    packs = packs && r.reduced.strides[0][dim] % kPack<T> == 0;
  return packs;
}

template <typename T, typename A, typename F>
int reduce_by(Stream& stream, F f, const View& in, double correction, const View& out) {
  if (out.count() == 0) return kDone;
  ReductionShape r;
  const int64_t* kept[] = {in.strides, out.strides};
  const int64_t* reduced[] = {in.strides + out.rank()};
  Shape rest;
  for (int dim = out.rank(); dim < in.rank(); dim++) rest.push(in.shape[dim]);
  r.kept = index_math_over<2>(out.shape, kept);
  r.reduced = index_math_over<1>(rest, reduced);
  r.length = rest.count();
  if (r.length == 0) r.reduced.count = 0;
  r.correction = correction;
  r.out_type = out.dtype;
  auto size = [](int64_t stride) { return stride < 0 ? -stride : stride; };
  bool by_output = r.kept.count > 1 && r.length > 1 &&
                   size(r.kept.strides[0][0]) < size(r.reduced.strides[0][0]);
  bool packs = r.length > 0 && r.reduced.strides[0][0] == 1;
  for (int dim = 0; dim < r.kept.rank; dim++)
    packs = packs && (r.kept.sizes[dim] <= 1 || r.kept.strides[0][dim] % kPack<T> == 0);
  packs = packs && index_packs(r.reduced, kPack<T>, {in.data}, {sizeof(T)});
  r.is_line = r.reduced.rank == 1;
  bool columns = false;
  if constexpr (F::kHasColumns)
    columns = by_output && has_packs_of_outputs<T>(
                               r, in.data, std::is_floating_point_v<A> && r.is_line && f.is_sum());
  r.single = packs && r.reduced.rank == 1 ? r.reduced.count * kPack<T> : r.length;
  ReduceLaunch shape = reduce_for(columns ? divide_up(r.kept.count, kPack<T>) : r.kept.count,
                                  r.reduced.count, by_output);
  // A block of columns is to have enough rows for all its loads.
  if (columns) shape.splits = least(shape.splits, divide_up(kSplitsMax / 2, shape.blocks));
  r.wide = shape.wide;
  r.deep = shape.deep;
  r.chunk = divide_up(most(r.reduced.count, 1), shape.splits);
  typename F::State* parts = nullptr;
  if (shape.splits > 1) {
    parts = stream.scratch.take<typename F::State>(shape.splits * r.kept.count);
    if (!parts) return kNeedsScratch;
  }
  auto kernel = packs ? reduce_kernel<kPack<T>, T, A, F> : reduce_kernel<1, T, A, F>;
  if constexpr (F::kHasColumns)
    if (columns) kernel = reduce_columns_kernel<T, A, F>;
  FLOW_LAUNCH(launch(stream, kernel, grid_of(shape.blocks, shape.splits), kBlockThreads, 0, f, r,
                     in.at<T>(), out.data, parts));
  if (!parts) return kDone;
  constexpr int kJoinWide = 8;  // few outputs of a block, for many blocks
  r.wide = r.kept.count < kJoinWide ? 1 : kJoinWide;
  r.deep = kBlockThreads / r.wide;
  return launch(stream, join_kernel<A, F>, grid_of(blocks_for(r.kept.count, r.wide)), kBlockThreads,
                0, f, r, parts, shape.splits, out.data);
}

// ---- extreme

template <typename A>
struct IndexedValue {
  A value;
  int64_t index;  // -1: none
};

// The first one among equals; NaN before all.
struct Better {
  bool largest;

  template <typename A>
  FLOW_DEVICE bool beats(A a, A b) const {
    if (is_nan(a) || is_nan(b)) return is_nan(a) && !is_nan(b);
    return largest ? a > b : a < b;
  }
  template <typename A>
  FLOW_DEVICE IndexedValue<A> operator()(IndexedValue<A> a, IndexedValue<A> b) const {
    if (a.index < 0 || b.index < 0) return a.index < 0 ? b : a;
    if (beats(a.value, b.value)) return a;
    if (beats(b.value, a.value)) return b;
    return a.index < b.index ? a : b;
  }
};

template <typename A>
FLOW_DEVICE IndexedValue<A> best_of_warp(IndexedValue<A> mine, Better better) {
  for (int with = kWarp / 2; with > 0; with /= 2) {
    IndexedValue<A> other{static_cast<A>(__shfl_xor_sync(kAll, mine.value, with)),
                          __shfl_xor_sync(kAll, mine.index, with)};
    mine = better(mine, other);
  }
  return mine;
}

template <typename T>
__global__ void __launch_bounds__(kRowThreadsMax)
    extreme_kernel(Rows<3> rows, int threads_of_row, Better better, int64_t base, int64_t stride,
                   const T* in, T* value, int64_t* index) {
  using A = Compute<T>;
  Group group = group_of(threads_of_row);
  each_row(rows, group, [&](int64_t, const int64_t(&offset)[3]) {
    const T* from = in + offset[0];
    IndexedValue<A> best{A(0), -1};
    for (int64_t i = group.rank; i < rows.columns; i += group.size)
      best = better(best, IndexedValue<A>{convert<A>(from[i * stride]), i});
    best = best_of_warp(best, better);
    if (group.size > kWarp) {
      best = exchange(group, best, IndexedValue<A>{A(0), -1});
      best = best_of_warp(best, better);
    }
    if (group.rank == 0) {
      value[offset[1]] = from[best.index * stride];
      index[offset[2]] = base + best.index;
    }
  });
}

// ---- running sums

template <typename T>
struct RunningOf {
  using type = Compute<T>;
};
template <>
struct RunningOf<int64_t> {
  using type = uint64_t;
};
template <>
struct RunningOf<int32_t> {
  using type = uint32_t;
};

constexpr int64_t kChunk = 16384;  // elements of a row that one block sums
constexpr int kEach = 4;           // adjacent ones per thread

struct RunningSum {
  Rows<2> rows;
  int64_t in_stride, out_stride, chunks;
};

template <typename T>
__global__ void __launch_bounds__(kBlockThreads)
    chunk_sums_kernel(RunningSum r, const T* in, typename RunningOf<T>::type* sums) {
  using A = typename RunningOf<T>::type;
  Group group{static_cast<int>(threadIdx.x), kBlockThreads};
  int64_t total = r.rows.index_math.count * r.chunks;
  for (int64_t number = blockIdx.x; number < total; number += gridDim.x) {
    int64_t offset[2], first = number % r.chunks * kChunk;
    r.rows.index_math.at(number / r.chunks, offset);
    A sum = 0;
    for (int64_t i = first + threadIdx.x; i < least(first + kChunk, r.rows.columns);
         i += kBlockThreads)
      sum += static_cast<A>(convert<Compute<T>>(in[offset[0] + i * r.in_stride]));
    sum = sum_over_group(group, sum);
    if (threadIdx.x == 0) sums[number] = sum;
  }
}

// Replaces each sum by the sum of all chunks before it.
template <typename A>
__global__ void __launch_bounds__(kBlockThreads)
    before_chunks_kernel(int64_t rows, int64_t chunks, A* sums) {
  for (int64_t row = thread_of_grid(); row < rows; row += threads_of_grid()) {
    A before = 0;
    for (int64_t i = row * chunks; i < (row + 1) * chunks; i++) {
      A sum = sums[i];
      sums[i] = before;
      before += sum;
    }
  }
}

template <typename T>
__global__ void __launch_bounds__(kBlockThreads)
    cumsum_kernel(RunningSum r, const T* in, const typename RunningOf<T>::type* sums, T* out) {
  using A = typename RunningOf<T>::type;
  auto& results = shared_room<WarpResults<A>>().at[0];
  int thread = static_cast<int>(threadIdx.x), warp = thread / kWarp, lane = thread % kWarp;
  int64_t total = r.rows.index_math.count * r.chunks;
  for (int64_t number = blockIdx.x; number < total; number += gridDim.x) {
    int64_t offset[2], first = number % r.chunks * kChunk;
    r.rows.index_math.at(number / r.chunks, offset);
    A before = sums ? sums[number] : A(0);
    int64_t last = least(first + kChunk, r.rows.columns);
    for (int64_t base = first; base < last; base += kBlockThreads * kEach) {
      int64_t at = base + thread * kEach;
      A own[kEach];
      for (int j = 0; j < kEach; j++) {
        A x = 0;
        if (at + j < last)
          x = static_cast<A>(convert<Compute<T>>(in[offset[0] + (at + j) * r.in_stride]));
        own[j] = j > 0 ? own[j - 1] + x : x;
      }
      A sum = own[kEach - 1];
      for (int by = 1; by < kWarp; by *= 2) {
        A lower = __shfl_up_sync(kAll, sum, by);
        if (lane >= by) sum += lower;
      }
      if (lane == kWarp - 1) results[warp] = sum;
      A lower = __shfl_up_sync(kAll, sum, 1);
      __syncthreads();
      A start = before;
      for (int i = 0; i < kBlockThreads / kWarp; i++) {
        if (i < warp) start += results[i];
        before += results[i];
      }
      if (lane > 0) start += lower;
      for (int j = 0; j < kEach; j++)
        if (at + j < last)
          out[offset[1] + (at + j) * r.out_stride] =
              convert<T>(static_cast<Compute<T>>(start + own[j]));
      __syncthreads();
    }
  }
}

}  // namespace

int reduce(Stream& stream, Reduce op, const View& in, double correction, const View& out) {
  if (!is_float(in.dtype))
    return visit(in.dtype, [&](auto type) {
      using T = decltype(type);
      if constexpr (std::is_integral_v<T> || std::is_same_v<T, Bool>)
        return reduce_by<T, int64_t>(stream, Simple<int64_t>{op}, in, correction, out);
      return kUnsupported;
    });
  return visit_floats(in.dtype, [&](auto type) {
    using T = decltype(type);
    if (op == Reduce::var) {
      if (out.dtype == DType::f64)
        return reduce_by<T, double>(stream, Variance<double>{}, in, correction, out);
      if constexpr (!std::is_same_v<T, double>)
        return reduce_by<T, float>(stream, Variance<float>{}, in, correction, out);
    }
    if (out.dtype == DType::f64)
      return reduce_by<T, double>(stream, Simple<double>{op}, in, correction, out);
    if constexpr (!std::is_same_v<T, double>)
      return reduce_by<T, float>(stream, Simple<float>{op}, in, correction, out);
    return kUnsupported;
  });
}

int extreme(Stream& stream, bool largest, const View& in, int64_t base, const View& value,
            const View& index) {
  if (value.count() == 0) return kDone;
  if (in.dtype == DType::boolean) return kUnsupported;
  return visit(in.dtype, [&](auto type) {
    using T = decltype(type);
    if constexpr (!std::is_same_v<T, Bool>) {
      Rows<3> rows = rows_of<3>({&in, &value, &index});
      RowLaunch shape = rows_for(rows.index_math.count, rows.columns);
      return launch(stream, extreme_kernel<T>, grid_of(shape.blocks), shape.threads, 0, rows,
                    shape.threads_of_row, Better{largest}, base, in.strides[in.rank() - 1],
                    in.at<T>(), value.at<T>(), index.at<int64_t>());
    }
    return kUnsupported;
  });
}

int cumsum(Stream& stream, const View& in, const View& out) {
  if (in.count() == 0) return kDone;
  auto run = [&](auto type) {
    using T = decltype(type);
    using A = typename RunningOf<T>::type;
    RunningSum r{rows_of<2>({&in, &out}), in.strides[in.rank() - 1], out.strides[out.rank() - 1],
                 1};
    r.chunks = divide_up(r.rows.columns, kChunk);
    int64_t blocks = blocks_for(r.rows.index_math.count * r.chunks, 1);
    A* sums = nullptr;
    if (r.chunks > 1) {
      sums = stream.scratch.take<A>(r.rows.index_math.count * r.chunks);
      if (!sums) return kNeedsScratch;
      FLOW_LAUNCH(launch(stream, chunk_sums_kernel<T>, grid_of(blocks), kBlockThreads, 0, r,
                         in.at<T>(), sums));
      FLOW_LAUNCH(launch(stream, before_chunks_kernel<A>,
                         grid_of(blocks_for(r.rows.index_math.count)), kBlockThreads, 0,
                         r.rows.index_math.count, r.chunks, sums));
    }
    return launch(stream, cumsum_kernel<T>, grid_of(blocks), kBlockThreads, 0, r, in.at<T>(), sums,
                  out.at<T>());
  };
  if (is_float(in.dtype)) return visit_floats(in.dtype, run);
  if (in.dtype == DType::i64) return run(int64_t{});
  if (in.dtype == DType::i32) return run(int32_t{});
  return kUnsupported;
}

}  // namespace flow::cuda
