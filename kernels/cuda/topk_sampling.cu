// Top-k, sampling and histograms.
#include "kernels/cuda/launchers.hpp"
#include "kernels/cuda/scan.cuh"
#include "kernels/shared/philox.hpp"

namespace flow::cuda {
namespace {

// ---- top_k: a block finds the k-th largest key of its part of a row eight bits at a time, gathers
//      what is above it and, by position, what equals it, and sorts those. Parts of one row are
//      then joined by the same kernel, over their k largest each.

// A long row has several parts if there are few rows: about kPartBlocks blocks in all. Results do
// not depend on the device.
#ifdef FLOW_EMULATE  // so few that the tests' small shapes have several parts
constexpr int64_t kPartColumns = 64, kPartBlocks = 64;
#else
constexpr int64_t kPartColumns = 4096, kPartBlocks = 1024;
#endif
// Parts of a row, of at least `least_columns` each.
int64_t parts_of(int64_t rows, int64_t columns, int64_t least_columns) {
  return most(1, least(columns / least_columns, kPartBlocks / most(rows, 1)));
}

// Unsigned keys in the order of the values: equal keys for equal values, NaN above all.
template <typename T>
FLOW_DEVICE auto key_of(T value) {
  if constexpr (is_small_float<T>) {
    return key_of(value.to_float());
  } else if constexpr (std::is_same_v<T, float>) {
    if (is_nan(value)) return ~uint32_t{0};
    uint32_t bits = bits_of(value == 0 ? 0.0f : value);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
  } else if constexpr (std::is_same_v<T, double>) {
    if (is_nan(value)) return ~uint64_t{0};
    uint64_t bits;
    double plain = value == 0 ? 0.0 : value;
    __builtin_memcpy(&bits, &plain, sizeof bits);
    return bits >> 63 ? ~bits : bits | 0x8000000000000000u;
  } else if constexpr (sizeof(T) == 8) {
    return static_cast<uint64_t>(value) ^ 0x8000000000000000u;
  } else if constexpr (sizeof(T) == 4) {
    return static_cast<uint32_t>(value) ^ 0x80000000u;
  } else {
    return uint32_t{value};
  }
}

struct TopKShape {
  int64_t rows, columns, row_stride, stride, k, room;  // room: k rounded up to a power of 2
  int64_t base;
  int64_t parts;         // of a row, each of which has its own k results
  const int64_t* names;  // the index of each element, or null: its place
};

struct Digits {
  uint32_t count[256];
  uint32_t digit, above;
};

// True if a sorts before b: the larger key, then the smaller position.
template <typename Key>
FLOW_DEVICE bool stands_before(Key key_a, int64_t at_a, Key key_b, int64_t at_b) {
  return key_a != key_b ? key_a > key_b : at_a < at_b;
}

template <typename T, typename Key>
__global__ void __launch_bounds__(kBlockThreads)
    top_k_kernel(TopKShape t, const T* in, Key* scratch_keys, int64_t* scratch_places, T* values,
                 int64_t* index) {
  auto& digits = shared_room<Digits>();
  int thread = static_cast<int>(threadIdx.x);
  Key* keys;
  int64_t* places;
  if (scratch_keys) {
    keys = scratch_keys + blockIdx.x * t.room;
    places = scratch_places + blockIdx.x * t.room;
  } else {
    places = reinterpret_cast<int64_t*>(dynamic_room());
    keys = reinterpret_cast<Key*>(places + t.room);
  }
  for (int64_t task = blockIdx.x; task < t.rows * t.parts; task += gridDim.x) {
    int64_t row = task / t.parts, part = task - row * t.parts;
    int64_t start = part * t.columns / t.parts;
    int64_t columns = (part + 1) * t.columns / t.parts - start;
    const T* from = in + row * t.row_stride + start * t.stride;
    Key found = 0, known = 0;  // the k-th largest key, and its known bits
    auto wanted = static_cast<uint32_t>(t.k);
    for (int shift = static_cast<int>(sizeof(Key)) * 8 - 8; shift >= 0; shift -= 8) {
      digits.count[thread] = 0;
      __syncthreads();
      for (int64_t i = thread; i < columns; i += kBlockThreads) {
        Key key = key_of(from[i * t.stride]);
        if ((key & known) == found) atomicAdd(&digits.count[(key >> shift) & 255], 1u);
      }
      __syncthreads();
      if (thread == 0) {
        uint32_t above = 0, digit = 255;
        while (above + digits.count[digit] < wanted) above += digits.count[digit--];
        digits.digit = digit;
        digits.above = above;
      }
      __syncthreads();
      found |= static_cast<Key>(digits.digit) << shift;
      known |= static_cast<Key>(255) << shift;
      wanted -= digits.above;
      __syncthreads();
    }
    // `wanted` of those that equal `found` are taken.
    int64_t taken = 0;
    uint32_t equals = 0;
    for (int64_t first = 0; first < columns && taken < t.k; first += kBlockThreads) {
      int64_t i = first + thread;
      Key key = i < columns ? key_of(from[i * t.stride]) : Key{0};
      uint32_t equal = i < columns && key == found, all_equal, all_taken;
      uint32_t number = equals + before_in_block(equal, all_equal);
      uint32_t take = i < columns && (key > found || (equal && number < wanted));
      int64_t place = taken + before_in_block(take, all_taken);
      if (take) {
        keys[place] = key;
        places[place] = i;
      }
      equals += all_equal;
      taken += all_taken;
    }
    for (int64_t i = t.k + thread; i < t.room; i += kBlockThreads) {
      keys[i] = 0;
      places[i] = INT64_MAX;
    }
    __syncthreads();
    // Batcher's bitonic sort.
    for (int64_t size = 2; size <= t.room; size *= 2)
      for (int64_t apart = size / 2; apart > 0; apart /= 2) {
        for (int64_t i = thread; i < t.room / 2; i += kBlockThreads) {
          int64_t a = i / apart * apart * 2 + i % apart, b = a + apart;
          bool forward = (a & size) == 0;
          if (stands_before(keys[b], places[b], keys[a], places[a]) == forward) {
            Key key = keys[a];
            keys[a] = keys[b];
            keys[b] = key;
            int64_t place = places[a];
            places[a] = places[b];
            places[b] = place;
          }
        }
        __syncthreads();
      }
    for (int64_t i = thread; i < t.k; i += kBlockThreads) {
      int64_t place = places[i];
      values[task * t.k + i] = from[place * t.stride];
      index[task * t.k + i] = t.names ? t.names[row * t.columns + place] : t.base + start + place;
    }
    __syncthreads();
  }
}

constexpr size_t kSortShared = 40 * 1024;
constexpr int64_t kSortBlocks = 256;  // blocks that sort in scratch at a time

// ---- sample

// A row is processed in parts: their largest logits, then the sums of their weights, then the part
// in which the drawn share of the total ends.
struct SampleShape {
  Rows<2> rows;
  int64_t parts;
  double temperature;
  double* largest;  // [rows, parts]
  double* sums;     // [rows, parts]

  FLOW_DEVICE int64_t start_of(int64_t part) const { return part * rows.columns / parts; }
  FLOW_DEVICE double largest_of(int64_t row) const {
    double all = -INFINITY;
    for (int64_t part = 0; part < parts; part++) all = Largest{}(all, largest[row * parts + part]);
    return all;
  }
  /// If an infinity or a NaN dominates, nothing can be drawn.
  FLOW_DEVICE bool draws(double top) const { return temperature > 0 && top - top == 0; }
  template <typename T>
  FLOW_DEVICE double weight(T logit, double top) const {
    return std::exp((convert<double>(logit) - top) / temperature);
  }
};

/// Calls f(row, part, its logits, their count) for the parts of this block.
template <typename T, typename F>
FLOW_DEVICE void each_part(const SampleShape& s, const T* logits, F f) {
  for (int64_t task = blockIdx.x; task < s.rows.index_math.count * s.parts; task += gridDim.x) {
    int64_t row = task / s.parts, part = task - row * s.parts, offset[2];
    s.rows.index_math.at(row, offset);
    int64_t start = s.start_of(part);
    f(row, part, logits + offset[0] + start, s.start_of(part + 1) - start);
    __syncthreads();  // shared memory is used again
  }
}

template <typename T>
__global__ void __launch_bounds__(kBlockThreads)
    sample_largest_kernel(SampleShape s, const T* logits) {
  each_part(s, logits, [&](int64_t row, int64_t part, const T* from, int64_t count) {
    Group group{static_cast<int>(threadIdx.x), kBlockThreads};
    double largest = -INFINITY;
    for (int64_t i = group.rank; i < count; i += group.size)
      largest = Largest{}(largest, convert<double>(from[i]));
    largest = over_group(group, largest, -static_cast<double>(INFINITY), Largest{});
    if (group.rank == 0) s.largest[row * s.parts + part] = largest;
  });
}

template <typename T>
__global__ void __launch_bounds__(kBlockThreads)
    sample_sums_kernel(SampleShape s, const T* logits) {
  each_part(s, logits, [&](int64_t row, int64_t part, const T* from, int64_t count) {
    Group group{static_cast<int>(threadIdx.x), kBlockThreads};
    double top = s.largest_of(row), sum = 0;
    if (s.draws(top))
      for (int64_t i = group.rank; i < count; i += group.size) sum += s.weight(from[i], top);
    sum = sum_over_group(group, sum);
    if (group.rank == 0) s.sums[row * s.parts + part] = sum;
  });
}

// A block has a part, and does nothing unless it is the drawn one.
template <typename T>
__global__ void __launch_bounds__(kBlockThreads)
    sample_kernel(SampleShape s, Seed seed, uint64_t first, int64_t base, const T* logits,
                  int64_t* index) {
  struct Result {
    unsigned long long place;
  };
  auto& result = shared_room<Result>();
  each_part(s, logits, [&](int64_t row, int64_t part, const T* from, int64_t count) {
    int rank = static_cast<int>(threadIdx.x);
    double top = s.largest_of(row), total = 0, start = 0, target = 0;
    int64_t drawn = s.parts;
    if (s.draws(top)) {
      for (int64_t i = 0; i < s.parts; i++) total += s.sums[row * s.parts + i];
      target =
          uniform_double(seed.number(), first + static_cast<uint64_t>(row), RandomUse::sample) *
          total;
      double before = 0;
      for (int64_t i = 0; i < s.parts && drawn == s.parts; i++) {
        double sum = s.sums[row * s.parts + i];
        if (sum > 0 && before + sum > target) drawn = i, start = before;
        before += sum;
      }
    }
    // Nothing is drawn, or the sums were rounded to less than the target: the first of the largest.
    bool is_largest = drawn == s.parts;
    for (int64_t i = 0; i < s.parts && drawn == s.parts; i++) {
      double of_part = s.largest[row * s.parts + i];
      if (of_part == top || (is_nan(of_part) && is_nan(top))) drawn = i;
    }
    if (drawn != part) return;
    if (rank == 0) result.place = ~0ull;
    __syncthreads();
    double before = start;
    bool found = false;
    for (int64_t chunk = 0; chunk < count && !is_largest && !found; chunk += kBlockThreads) {
      int64_t i = chunk + rank;
      double weight = i < count ? s.weight(from[i], top) : 0, all;
      double mine = before + before_in_block(weight, all);
      if (weight > 0 && mine + weight > target)
        atomicMin(&result.place, static_cast<unsigned long long>(i));
      before += all;
      __syncthreads();
      found = result.place != ~0ull;
      __syncthreads();
    }
    if (!found) {
      double largest = s.largest[row * s.parts + part];
      for (int64_t i = rank; i < count; i += kBlockThreads) {
        auto x = convert<double>(from[i]);
        if (x == largest || (is_nan(x) && is_nan(largest))) {
          atomicMin(&result.place, static_cast<unsigned long long>(i));
          break;
        }
      }
      __syncthreads();
    }
    if (rank == 0) {
      int64_t offset[2];
      s.rows.index_math.at(row, offset);
      index[offset[1]] = base + s.start_of(part) + static_cast<int64_t>(result.place);
    }
  });
}

// ---- histogram

constexpr int64_t kBinsShared = 8192;

struct Bins {
  IndexMath<1> index_math;
  double low, high, scale;
  int64_t count;
};

template <typename T>
FLOW_DEVICE int64_t bin_of(const Bins& bins, T value) {
  auto x = convert<double>(value);
  if (!(x >= bins.low && x <= bins.high)) return -1;
  auto bin = static_cast<int64_t>((x - bins.low) * bins.scale);
  return bin < bins.count ? bin : bins.count - 1;
}

template <typename T>
__global__ void __launch_bounds__(kBlockThreads)
    histogram_kernel(Bins bins, const T* in, unsigned long long* counts) {
  bool shared = bins.count <= kBinsShared;
  auto* room = reinterpret_cast<unsigned*>(dynamic_room());
  for (int64_t i = threadIdx.x; shared && i < bins.count; i += kBlockThreads) room[i] = 0;
  __syncthreads();
  for (int64_t i = thread_of_grid(); i < bins.index_math.count; i += threads_of_grid()) {
    int64_t offset[1];
    bins.index_math.at(i, offset);
    int64_t bin = bin_of(bins, in[offset[0]]);
    if (bin < 0) continue;
    if (shared)
      atomicAdd(&room[bin], 1u);
    else
      atomicAdd(&counts[bin], 1ull);
  }
  __syncthreads();
  for (int64_t i = threadIdx.x; shared && i < bins.count; i += kBlockThreads)
    if (room[i] > 0) atomicAdd(&counts[i], static_cast<unsigned long long>(room[i]));
}

}  // namespace

int top_k(Stream& stream, const View& in, int64_t base, const View& values, const View& index) {
  if (in.dtype == DType::boolean) return kUnsupported;
  if (values.count() == 0) return kDone;
  return visit(in.dtype, [&](auto type) {
    using T = decltype(type);
    if constexpr (!std::is_same_v<T, Bool>) {
      using Key = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;
      TopKShape t{in.shape[0], in.shape[1], in.strides[0], in.strides[1], values.shape[1], 1,
                  base,        1,           nullptr};
      while (t.room < t.k) t.room *= 2;
      size_t bytes = static_cast<size_t>(t.room) * (sizeof(Key) + sizeof(int64_t));
      Key* keys = nullptr;
      int64_t* places = nullptr;
      if (bytes > kSortShared) {
        bytes = 0;
        int64_t blocks = least(least(t.rows, kBlocksMax), kSortBlocks);
        keys = stream.scratch.take<Key>(blocks * t.room);
        places = stream.scratch.take<int64_t>(blocks * t.room);
        if (!keys || !places) return kNeedsScratch;
      } else {
        t.parts = parts_of(t.rows, t.columns, most(kPartColumns, 4 * t.k));
      }
      auto run = [&](const T* from, T* to, int64_t* index_to) {
        int64_t blocks =
            least(t.rows * t.parts, keys ? least(kBlocksMax, kSortBlocks) : kBlocksMax);
        return launch(stream, top_k_kernel<T, Key>, grid_of(blocks), kBlockThreads, bytes, t, from,
                      keys, places, to, index_to);
      };
      if (t.parts == 1) return run(in.at<T>(), values.at<T>(), index.at<int64_t>());
      int64_t found = t.parts * t.k;  // of each row
      T* part_values = stream.scratch.take<T>(t.rows * found);
      int64_t* part_index = stream.scratch.take<int64_t>(t.rows * found);
      if (!part_values || !part_index) return kNeedsScratch;
      FLOW_LAUNCH(run(in.at<T>(), part_values, part_index));
      t.columns = t.row_stride = found;
      t.stride = t.parts = 1;
      t.names = part_index;
      return run(part_values, values.at<T>(), index.at<int64_t>());
    }
    return kUnsupported;
  });
}

int sample(Stream& stream, const View& logits, double temperature, Seed seed, uint64_t first,
           int64_t base, const View& index) {
  if (index.count() == 0) return kDone;
  if (logits.count() == 0) return kUnsupported;
  return visit_floats(logits.dtype, [&](auto type) {
    using T = decltype(type);
    Rows<2> rows = rows_of<2>({&logits, &index});
    int64_t count = rows.index_math.count, parts = parts_of(count, rows.columns, kPartColumns);
    SampleShape s{rows, parts, temperature, stream.scratch.take<double>(count * parts),
                  stream.scratch.take<double>(count * parts)};
    if (!s.largest || !s.sums) return kNeedsScratch;
    dim3 grid = grid_of(least(count * parts, kBlocksMax));
    FLOW_LAUNCH(
        launch(stream, sample_largest_kernel<T>, grid, kBlockThreads, 0, s, logits.at<T>()));
    FLOW_LAUNCH(launch(stream, sample_sums_kernel<T>, grid, kBlockThreads, 0, s, logits.at<T>()));
    return launch(stream, sample_kernel<T>, grid, kBlockThreads, 0, s, seed, first, base,
                  logits.at<T>(), index.at<int64_t>());
  });
}

int histogram(Stream& stream, const View& in, double low, double high, const View& counts) {
  FLOW_LAUNCH(fill(stream, counts, Number::of(int64_t{0})));
  if (in.count() == 0 || counts.count() == 0) return kDone;
  auto run = [&](auto type) {
    using T = decltype(type);
    double scale = static_cast<double>(counts.count()) / (high - low);
    Bins bins{index_math_over<1>(in.shape, {in.strides}), low, high, scale, counts.count()};
    size_t bytes = bins.count <= kBinsShared ? static_cast<size_t>(bins.count) * 4 : 0;
    // A block adds up its counts at its end: fewer, longer blocks are better.
    int64_t blocks = blocks_for(bins.index_math.count, kBlockThreads * 16, 1024);
    return launch(stream, histogram_kernel<T>, grid_of(blocks), kBlockThreads, bytes, bins,
                  in.at<T>(), counts.at<unsigned long long>());
  };
  if (is_float(in.dtype)) return visit_floats(in.dtype, run);
  if (in.dtype == DType::boolean) return kUnsupported;
  return visit_number(in.dtype, run);
}

}  // namespace flow::cuda
