// Gather and scatter. The values for one destination are added in an order that the index alone
// decides: a stable sort by destination makes them adjacent. Rows are added in segments of the
// sorted index, and the sums of a destination that has several segments are joined in their order.
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/launchers.hpp"
#include "kernels/cuda/scan.cuh"

namespace flow::cuda {
namespace {

// An index of either type, counted from `base`; -1 if it is out of range, and its position is
// stored as the fault.
struct Index {
  const char* data;
  bool wide;  // i64, otherwise i32
  int64_t base, limit;
  int64_t* fault;

  FLOW_DEVICE int64_t at(int64_t offset, int64_t position) const {
    int64_t number = wide ? reinterpret_cast<const int64_t*>(data)[offset]
                          : int64_t{reinterpret_cast<const int32_t*>(data)[offset]};
    if (number >= base && number - base < limit) return number - base;
    leave_fault(fault, position);
    return -1;
  }
};
Index index_of(const Stream& stream, const View& index, int64_t base, int64_t limit) {
  return {index.data, index.dtype == DType::i64, base, limit, stream.fault};
}

struct alignas(16) Sixteen {
  uint64_t low, high;
};

// ---- gather

struct GatherRows {
  IndexMath<2> rows;  // of index, of out
  Index index;
  int64_t width, row_stride, from_stride, to_stride;
  Divide by_width;
  bool small;
};

template <typename T>
__global__ void __launch_bounds__(kBlockThreads)
    gather_rows_kernel(GatherRows g, const T* table, T* out) {
  int64_t total = g.rows.count * g.width;
  for (int64_t i = thread_of_grid(); i < total; i += threads_of_grid()) {
    int64_t row = g.small ? g.by_width(static_cast<uint32_t>(i)) : i / g.width;
    int64_t column = i - row * g.width, offset[2];
    g.rows.at(row, offset);
    int64_t from = g.index.at(offset[0], row);
    T value{};
    if (from >= 0) value = table[from * g.row_stride + column * g.from_stride];
    out[offset[1] + column * g.to_stride] = value;
  }
}

template <typename T>
int gather_rows_as(Stream& stream, GatherRows g, const View& table, const View& out,
                   int64_t elements) {
  // In units of T, which are `elements` elements each.
  g.width /= elements;
  g.row_stride /= elements;
  for (int dim = 0; dim < g.rows.rank; dim++) g.rows.strides[1][dim] /= elements;
  int64_t total = g.rows.count * g.width;
  g.small = total < (int64_t{1} << 31);
  g.by_width = Divide(g.small ? static_cast<uint32_t>(g.width) : 1);
  return launch(stream, gather_rows_kernel<T>, grid_of(blocks_for(total)), kBlockThreads, 0, g,
                table.at<T>(), out.at<T>());
}

struct GatherLast {
  IndexMath<3> index_math;  // of in's rows, of index, of out
  Index index;
  int64_t stride;
};

template <typename T>
__global__ void __launch_bounds__(kBlockThreads)
    gather_last_kernel(GatherLast g, const T* in, T* out) {
  for (int64_t i = thread_of_grid(); i < g.index_math.count; i += threads_of_grid()) {
    int64_t offset[3];
    g.index_math.at(i, offset);
    int64_t from = g.index.at(offset[1], i);
    T value{};
    if (from >= 0) value = in[offset[0] + from * g.stride];
    out[offset[2]] = value;
  }
}

// Calls f with a value of a type of that size.
template <typename F>
int visit_size(size_t size, F f) {
  switch (size) {
    case 1:
      return f(uint8_t{});
    case 2:
      return f(uint16_t{});
    case 4:
      return f(uint32_t{});
    default:
      return f(uint64_t{});
  }
}

// ---- a stable sort of (place, position), four bits of the place at a time

constexpr int kEach = 16;                     // pairs per thread
constexpr int kTile = kBlockThreads * kEach;  // pairs per block
constexpr int kDigitBits = 4, kDigits = 1 << kDigitBits;

struct Pairs {
  uint64_t* place;
  int64_t* position;
};

struct DigitCounts {
  uint32_t at[kDigits][kBlockThreads];
};

FLOW_DEVICE int digit_of(uint64_t place, int shift) {
  return static_cast<int>((place >> shift) & (kDigits - 1));
}

FLOW_DEVICE void count_digits(DigitCounts& counts, const Pairs& from, int64_t first, int64_t count,
                              int shift) {
  int thread = static_cast<int>(threadIdx.x);
  for (int digit = 0; digit < kDigits; digit++) counts.at[digit][thread] = 0;
  for (int j = 0; j < kEach; j++) {
    int64_t i = first + thread * kEach + j;
    if (i < count) counts.at[digit_of(from.place[i], shift)][thread]++;
  }
}

__global__ void __launch_bounds__(kBlockThreads)
    count_digits_kernel(Pairs from, int64_t count, int shift, int64_t* totals) {
  auto& counts = shared_room<DigitCounts>();
  int thread = static_cast<int>(threadIdx.x);
  count_digits(counts, from, int64_t{blockIdx.x} * kTile, count, shift);
  __syncthreads();
  if (thread < kDigits) {
    uint32_t sum = 0;
    for (int i = 0; i < kBlockThreads; i++) sum += counts.at[thread][i];
    totals[int64_t{thread} * gridDim.x + blockIdx.x] = sum;
  }
}

// Exclusive prefix sum. One block.
__global__ void __launch_bounds__(kBlockThreads)
    sums_before_kernel(int64_t* numbers, int64_t count) {
  int64_t before = 0;
  for (int64_t first = 0; first < count; first += kBlockThreads) {
    int64_t i = first + threadIdx.x, all;
    int64_t mine = i < count ? numbers[i] : 0;
    int64_t sum = before + before_in_block(mine, all);
    if (i < count) numbers[i] = sum;
    before += all;
  }
}

__global__ void __launch_bounds__(kBlockThreads)
    move_pairs_kernel(Pairs from, Pairs to, int64_t count, int shift, const int64_t* starts) {
  auto& counts = shared_room<DigitCounts>();
  int thread = static_cast<int>(threadIdx.x);
  int64_t first = int64_t{blockIdx.x} * kTile;
  count_digits(counts, from, first, count, shift);
  // For each digit, its count in the threads before this one.
  for (int digit = 0; digit < kDigits; digit++) {
    uint32_t all;
    counts.at[digit][thread] = before_in_block(counts.at[digit][thread], all);
  }
  for (int j = 0; j < kEach; j++) {
    int64_t i = first + thread * kEach + j;
    if (i >= count) break;
    int digit = digit_of(from.place[i], shift);
    int64_t at = starts[int64_t{digit} * gridDim.x + blockIdx.x] + counts.at[digit][thread]++;
    to.place[at] = from.place[i];
    to.position[at] = from.position[i];
  }
}

struct PairSorter {
  Pairs pairs, others;
  int64_t* totals;
  int64_t count, blocks;

  bool take(Scratch& scratch, int64_t count_) {
    count = count_;
    blocks = divide_up(count, kTile);
    for (Pairs* each : {&pairs, &others}) {
      each->place = scratch.take<uint64_t>(count);
      each->position = scratch.take<int64_t>(count);
    }
    totals = scratch.take<int64_t>(blocks * kDigits);
    return others.position && totals;
  }
  /// Sorts by places of at most `largest`; the result is in `pairs`.
  int sort(Stream& stream, uint64_t largest) {
    for (int shift = 0; shift < 64 && largest >> shift; shift += kDigitBits) {
      FLOW_LAUNCH(launch(stream, count_digits_kernel, grid_of(blocks), kBlockThreads, 0, pairs,
                         count, shift, totals));
      FLOW_LAUNCH(launch(stream, sums_before_kernel, grid_of(1), kBlockThreads, 0, totals,
                         blocks * kDigits));
      FLOW_LAUNCH(launch(stream, move_pairs_kernel, grid_of(blocks), kBlockThreads, 0, pairs,
                         others, count, shift, totals));
      std::swap(pairs, others);
    }
    return kDone;
  }
};

// ---- scatter

// The destination row of each index; invalid ones are sorted last.
__global__ void __launch_bounds__(kBlockThreads)
    row_places_kernel(IndexMath<1> index_math, Index index, Pairs pairs) {
  for (int64_t i = thread_of_grid(); i < index_math.count; i += threads_of_grid()) {
    int64_t offset[1];
    index_math.at(i, offset);
    int64_t row = index.at(offset[0], i);
    pairs.place[i] = static_cast<uint64_t>(row < 0 ? index.limit : row);
    pairs.position[i] = i;
  }
}

struct ScatterRows {
  IndexMath<1> grads;
  int64_t width, rows, grad_stride, out_row, out_stride;
  int64_t segments, across;  // parts of the sorted pairs, and of a row
};

constexpr int kSegment = kWarp;  // pairs of a segment
constexpr int kAhead = 4;        // rows whose loads are under way together

// The sums of a segment: of the run that began before it, and of the run that continues after it.
template <typename C>
struct SegmentSums {
  C* of_begun;  // [segments, width] each
  C* of_open;
};

// Adds a sum to a row of the result.
template <int width, typename T, typename C>
FLOW_DEVICE void add_columns(T* to, const C (&sum)[width]) {
  C all[width];
  load_as<width>(to, all);
  for (int j = 0; j < width; j++) all[j] += sum[j];
  store_as<width>(to, all);
}

// A warp has a segment and `width` columns per lane. The rows of a run are added in their order; a
// run in several segments is joined afterwards.
template <int width, typename T>
__global__ void __launch_bounds__(kBlockThreads)
    add_rows_kernel(ScatterRows s, Pairs pairs, const T* grad, T* out,
                    SegmentSums<Compute<T>> sums) {
  using C = Compute<T>;
  int lane = static_cast<int>(threadIdx.x) % kWarp;
  int64_t tasks = s.segments * s.across, warps = threads_of_grid() / kWarp;
  for (int64_t task = thread_of_grid() / kWarp; task < tasks; task += warps) {
    int64_t segment = task / s.across, part = task - segment * s.across;
    int64_t column = (part * kWarp + lane) * width, first = segment * kSegment;
    int count = static_cast<int>(least(s.grads.count - first, kSegment));
    bool inside = column < s.width;
    auto none = static_cast<uint64_t>(s.rows);
    uint64_t my_place = none;
    int64_t my_offset[1] = {0};
    if (lane < count) {
      my_place = pairs.place[first + lane];
      s.grads.at(pairs.position[first + lane], my_offset);
    }
    uint64_t before = first > 0 ? pairs.place[first - 1] : none;
    uint64_t after = first + count < s.grads.count ? pairs.place[first + count] : none;
    bool is_begun = before == __shfl_sync(kAll, my_place, 0);
    C sum[width] = {};
    for (int base = 0; base < count; base += kAhead) {
      Words<T, width> ahead[kAhead];
      FLOW_UNROLL
      for (int k = 0; k < kAhead; k++) {
        int64_t offset = __shfl_sync(kAll, my_offset[0], (base + k) % kWarp);
        if (base + k < count && inside)
          ahead[k] = load_words<width>(grad + offset + column * s.grad_stride);
      }
      FLOW_UNROLL
      for (int k = 0; k < kAhead; k++) {
        int i = base + k;
        uint64_t place = __shfl_sync(kAll, my_place, i % kWarp);
        uint64_t next = __shfl_sync(kAll, my_place, (i + 1) % kWarp);
        if (i + 1 >= count) next = after;
        if (i >= count || place == none) continue;
        if (inside) {
          T stored[width];
          C row[width];
          __builtin_memcpy(stored, &ahead[k], sizeof stored);
          widen(stored, row);
          for (int j = 0; j < width; j++) sum[j] += row[j];
        }
        bool ends = next != place;
        if (!ends && i + 1 < count) continue;
        if (inside && (is_begun || !ends)) {
          C* to = (is_begun ? sums.of_begun : sums.of_open) + segment * s.width + column;
          store<width>(to, sum);
        } else if (inside) {
          add_columns<width>(out + static_cast<int64_t>(place) * s.out_row + column * s.out_stride,
                             sum);
        }
        is_begun = false;
        for (int j = 0; j < width; j++) sum[j] = C(0);
      }
    }
  }
}

// A warp has a segment in which a run begins that ends in a later one.
template <int width, typename T>
__global__ void __launch_bounds__(kBlockThreads)
    join_rows_kernel(ScatterRows s, Pairs pairs, T* out, SegmentSums<Compute<T>> sums) {
  using C = Compute<T>;
  int lane = static_cast<int>(threadIdx.x) % kWarp;
  int64_t tasks = s.segments * s.across, warps = threads_of_grid() / kWarp;
  for (int64_t task = thread_of_grid() / kWarp; task < tasks; task += warps) {
    int64_t segment = task / s.across, part = task - segment * s.across;
    int64_t column = (part * kWarp + lane) * width, first = segment * kSegment;
    if (first + kSegment >= s.grads.count || column >= s.width) continue;
    uint64_t place = pairs.place[first + kSegment - 1];
    bool is_begun = first > 0 && pairs.place[first - 1] == place;  // by an earlier segment
    if (place == static_cast<uint64_t>(s.rows) || is_begun ||
        pairs.place[first + kSegment] != place)
      continue;
    C sum[width], each[width];
    load<width>(sums.of_open + segment * s.width + column, sum);
    for (int64_t k = segment + 1; k < s.segments && pairs.place[k * kSegment] == place; k++) {
      load<width>(sums.of_begun + k * s.width + column, each);
      for (int j = 0; j < width; j++) sum[j] += each[j];
    }
    add_columns<width>(out + static_cast<int64_t>(place) * s.out_row + column * s.out_stride, sum);
  }
}

struct ScatterLast {
  IndexMath<3> index_math;  // of grad, of index, of out's rows
  Index index;
  int64_t width, stride, places;  // width: of index; places: all of out's elements
};

__global__ void __launch_bounds__(kBlockThreads) element_places_kernel(ScatterLast s, Pairs pairs) {
  for (int64_t i = thread_of_grid(); i < s.index_math.count; i += threads_of_grid()) {
    int64_t offset[3];
    s.index_math.at(i, offset);
    int64_t to = s.index.at(offset[1], i);
    int64_t row = i / s.width;
    pairs.place[i] = static_cast<uint64_t>(to < 0 ? s.places : row * s.index.limit + to);
    pairs.position[i] = i;
  }
}

template <typename T>
__global__ void __launch_bounds__(kBlockThreads)
    add_elements_kernel(ScatterLast s, Pairs pairs, const T* grad, T* out) {
  using C = Compute<T>;
  for (int64_t first = thread_of_grid(); first < s.index_math.count; first += threads_of_grid()) {
    uint64_t place = pairs.place[first];
    if (place == static_cast<uint64_t>(s.places)) continue;
    if (first > 0 && pairs.place[first - 1] == place) continue;
    int64_t offset[3];
    s.index_math.at(pairs.position[first], offset);
    T* to = out + offset[2] + static_cast<int64_t>(place) % s.index.limit * s.stride;
    C sum = convert<C>(*to);
    for (int64_t i = first; i < s.index_math.count && pairs.place[i] == place; i++) {
      s.index_math.at(pairs.position[i], offset);
      sum += convert<C>(grad[offset[0]]);
    }
    *to = convert<T>(sum);
  }
}

// One index per row: all destinations differ.
template <typename T>
__global__ void __launch_bounds__(kBlockThreads)
    add_alone_kernel(ScatterLast s, const T* grad, T* out) {
  using C = Compute<T>;
  for (int64_t i = thread_of_grid(); i < s.index_math.count; i += threads_of_grid()) {
    int64_t offset[3];
    s.index_math.at(i, offset);
    int64_t at = s.index.at(offset[1], i);
    if (at < 0) continue;
    T* to = out + offset[2] + at * s.stride;
    *to = convert<T>(convert<C>(*to) + convert<C>(grad[offset[0]]));
  }
}

}  // namespace

int gather_rows(Stream& stream, const View& table, const View& index, int64_t base,
                const View& out) {
  if (out.count() == 0) return kDone;
  int last = out.rank() - 1;
  GatherRows g{index_math_over<2>(index.shape, {index.strides, out.strides}),
               index_of(stream, index, base, table.shape[0]),
               table.shape[1],
               table.strides[0],
               table.strides[1],
               out.strides[last],
               {},
               false};
  size_t size = dtype_size(out.dtype);
  auto elements = static_cast<int64_t>(16 / size);
  bool packs = table.strides[1] == 1 && out.strides[last] == 1 && g.width % elements == 0 &&
               table.strides[0] % elements == 0 &&
               reinterpret_cast<uintptr_t>(table.data) % 16 == 0 &&
               reinterpret_cast<uintptr_t>(out.data) % 16 == 0;
  for (int dim = 0; dim < g.rows.rank; dim++)
    packs = packs && (g.rows.sizes[dim] == 1 || g.rows.strides[1][dim] % elements == 0);
  if (packs) return gather_rows_as<Sixteen>(stream, g, table, out, elements);
  return visit_size(
      size, [&](auto type) { return gather_rows_as<decltype(type)>(stream, g, table, out, 1); });
}

int scatter_add_rows(Stream& stream, const View& grad, const View& index, int64_t base,
                     const View& out) {
  int64_t count = index.count(), width = out.shape[1];
  if (count == 0 || width == 0) return kDone;
  PairSorter sorter{};
  bool fits = sorter.take(stream.scratch, count);
  ScatterRows s{index_math_over<1>(leading(grad.shape, 1), {grad.strides}),
                width,
                out.shape[0],
                grad.strides[grad.rank() - 1],
                out.strides[0],
                out.strides[1],
                divide_up(count, kSegment),
                0};
  return visit_floats(out.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int pack = kPack<T>;
    SegmentSums<Compute<T>> sums{stream.scratch.take<Compute<T>>(s.segments * width),
                                 stream.scratch.take<Compute<T>>(s.segments * width)};
    if (!fits || !sums.of_begun || !sums.of_open) return kNeedsScratch;
    bool packs = width % pack == 0 && s.grad_stride == 1 && s.out_stride == 1 &&
                 s.out_row % pack == 0 && reinterpret_cast<uintptr_t>(grad.data) % 16 == 0 &&
                 reinterpret_cast<uintptr_t>(out.data) % 16 == 0;
    for (int dim = 0; dim < s.grads.rank; dim++)
      packs = packs && (s.grads.sizes[dim] == 1 || s.grads.strides[0][dim] % pack == 0);
    s.across = divide_up(width, kWarp * (packs ? pack : 1));
    FLOW_LAUNCH(launch(stream, row_places_kernel, grid_of(blocks_for(count)), kBlockThreads, 0,
                       index_math_over<1>(index.shape, {index.strides}),
                       index_of(stream, index, base, out.shape[0]), sorter.pairs));
    FLOW_LAUNCH(sorter.sort(stream, static_cast<uint64_t>(out.shape[0])));
    dim3 grid = grid_of(blocks_for(s.segments * s.across * kWarp));
    FLOW_LAUNCH(launch(stream, packs ? add_rows_kernel<pack, T> : add_rows_kernel<1, T>, grid,
                       kBlockThreads, 0, s, sorter.pairs, grad.at<T>(), out.at<T>(), sums));
    return launch(stream, packs ? join_rows_kernel<pack, T> : join_rows_kernel<1, T>, grid,
                  kBlockThreads, 0, s, sorter.pairs, out.at<T>(), sums);
  });
}

int gather_last(Stream& stream, const View& in, const View& index, int64_t base, const View& out) {
  if (out.count() == 0) return kDone;
  int last = out.rank() - 1;
  View rows = in;  // the index selects in the last dimension
  rows.strides[last] = 0;
  GatherLast g{index_math_over<3>(out.shape, {rows.strides, index.strides, out.strides}),
               index_of(stream, index, base, in.shape[last]), in.strides[last]};
  return visit_size(dtype_size(out.dtype), [&](auto type) {
    using T = decltype(type);
    return launch(stream, gather_last_kernel<T>, grid_of(blocks_for(g.index_math.count)),
                  kBlockThreads, 0, g, in.at<T>(), out.at<T>());
  });
}

int scatter_add_last(Stream& stream, const View& grad, const View& index, int64_t base,
                     const View& out) {
  if (grad.count() == 0) return kDone;
  int last = out.rank() - 1;
  View rows = out;
  rows.strides[last] = 0;
  ScatterLast s{index_math_over<3>(grad.shape, {grad.strides, index.strides, rows.strides}),
                index_of(stream, index, base, out.shape[last]), index.shape[last],
                out.strides[last], out.count()};
  dim3 grid = grid_of(blocks_for(s.index_math.count));
  if (s.width == 1)
    return visit_floats(out.dtype, [&](auto type) {
      using T = decltype(type);
      return launch(stream, add_alone_kernel<T>, grid, kBlockThreads, 0, s, grad.at<T>(),
                    out.at<T>());
    });
  PairSorter sorter{};
  if (!sorter.take(stream.scratch, s.index_math.count)) return kNeedsScratch;
  FLOW_LAUNCH(launch(stream, element_places_kernel, grid, kBlockThreads, 0, s, sorter.pairs));
  FLOW_LAUNCH(sorter.sort(stream, static_cast<uint64_t>(s.places)));
  return visit_floats(out.dtype, [&](auto type) {
    using T = decltype(type);
    return launch(stream, add_elements_kernel<T>, grid, kBlockThreads, 0, s, sorter.pairs,
                  grad.at<T>(), out.at<T>());
  });
}

}  // namespace flow::cuda
