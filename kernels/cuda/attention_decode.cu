// Attention of few queries to many keys, as in decoding with a cache. A block attends some queries
// of a group to the keys of one split, and a second kernel joins the splits in order (Dao et al.,
// "Flash-Decoding"): the order of the sums depends on the shapes alone. Each key and value is read
// once, 16 bytes at a time, for up to kDecodeRows queries that share it.
#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/group.cuh"
#include "kernels/cuda/launchers.hpp"

namespace flow::cuda {
namespace {

constexpr int kDecodeThreads = 128;
constexpr int kDecodeWarps = kDecodeThreads / kWarp;
constexpr int kLaneElements = 8;  // of a key that one lane has
// Queries per block: limited by the registers for their sums.
template <typename C>
constexpr int kDecodeRows = sizeof(C) == 8 ? 2 : 4;
// Keys whose loads a lane has in flight: 64 bytes of keys and 64 of values (128 each for f64); half
// as many if a block has several rows.
template <typename T, int rows>
constexpr int kAhead = (is_small_float<T> ? 4 : 2) / (rows > 1 ? 2 : 1);

template <typename C>
struct DecodeSizes {
  AttentionSizes<C> all;
  int lanes;                   // of a key: a power of 2
  int64_t rows;                // queries of all heads of a group
  int64_t splits, split_keys;  // of the keys

  FLOW_DEVICE int64_t head_of(int64_t group, int64_t row) const {
    return group * (all.heads / all.groups) + row / all.queries;
  }
  /// The number of a group's row among all rows [b, h, t].
  FLOW_DEVICE int64_t row_of_all(int64_t batch, int64_t group, int64_t row) const {
    return (batch * all.heads + head_of(group, row)) * all.queries + row % all.queries;
  }
  /// Of element `j` of a lane.
  template <int pack>
  FLOW_DEVICE int column(int lane, int j) const {
    return (lane + j / pack * lanes) * pack + j % pack;
  }
};

// Of each row and split: its largest score, the sum of its weights, and the weighted values.
template <typename C>
struct SplitResults {
  C *largest, *total, *sums;

  FLOW_DEVICE void store(int64_t place, int width, int column, C peak, C all, C sum) const {
    sums[place * width + column] = sum;
    if (column > 0) return;
    largest[place] = peak;
    total[place] = all;
  }
};

template <typename C>
FLOW_DEVICE C rescale_factor(C largest, C peak) {
  return largest == peak ? C(1) : std::exp(largest - peak);  // both may be -infinity
}

template <int pack, typename T, typename C>
FLOW_DEVICE void unpack_words(Words<T, pack> words, C (&to)[pack]) {
  T stored[pack];
  __builtin_memcpy(stored, &words, sizeof words);
  widen(stored, to);
}

// The elements of `row` that are this lane's; 0 beyond the width, and for no row (null).
template <int pack, typename T, int packs = kLaneElements / pack>
FLOW_DEVICE void load_part(const T* row, int lane, int lanes, int width,
                           Words<T, pack> (&to)[packs]) {
  FLOW_UNROLL
  for (int p = 0; p < packs; p++) {
    int at = (lane + p * lanes) * pack;
    to[p] = {};
    if (row && at < width) to[p] = load_words<pack>(row + at);
  }
}

// A row's softmax over the keys that a lane has seen.
template <typename C>
struct RunningSums {
  C largest, total, sums[kLaneElements];

  FLOW_DEVICE void raise(C peak) {
    C factor = rescale_factor(largest, peak);
    largest = peak;
    total *= factor;
    FLOW_UNROLL
    for (int j = 0; j < kLaneElements; j++) sums[j] *= factor;
  }
  /// Adds those of the lane whose number differs in bit `with`.
  FLOW_DEVICE void add_lane(int with) {
    raise(Largest{}(largest, __shfl_xor_sync(kAll, largest, with)));
    total += __shfl_xor_sync(kAll, total, with);
    FLOW_UNROLL
    for (int j = 0; j < kLaneElements; j++) sums[j] += __shfl_xor_sync(kAll, sums[j], with);
  }
};

// Scores of the queries and one key, which `lanes` lanes share.
template <int pack, int rows, typename T, typename C, int packs = kLaneElements / pack>
FLOW_DEVICE void score_key(const C (&query)[rows][kLaneElements],
                           const Words<T, pack> (&key)[packs], int lanes, C (&scores)[rows]) {
  FLOW_UNROLL
  for (int r = 0; r < rows; r++) scores[r] = 0;
  FLOW_UNROLL
  for (int p = 0; p < packs; p++) {
    C part[pack];
    unpack_words<pack>(key[p], part);
    FLOW_UNROLL
    for (int r = 0; r < rows; r++) FLOW_UNROLL
    for (int j = 0; j < pack; j++) scores[r] += query[r][p * pack + j] * part[j];
  }
  for (int with = lanes / 2; with > 0; with /= 2) FLOW_UNROLL
  for (int r = 0; r < rows; r++) scores[r] += __shfl_xor_sync(kAll, scores[r], with);
}

// The queries of a tile, and what they have seen of their keys.
template <int rows, typename T, typename C = Compute<T>>
struct DecodeRows {
  int64_t batch, group, first;  // row of the group
  C query[rows][kLaneElements];
  int64_t seen[rows];
  RunningSums<C> states[rows];

  template <int pack>
  FLOW_DEVICE void begin(const DecodeSizes<C>& d, Heads<T> q, int lane) {
    FLOW_UNROLL
    for (int r = 0; r < rows; r++) {
      int64_t row = first + r, at = row % d.all.queries;
      bool is_row = row < d.rows;
      const T* from = is_row ? q.at(batch, d.head_of(group, row)) + at * q.row : nullptr;
      seen[r] = is_row ? d.all.seen_by(at) : 0;
      states[r] = {-static_cast<C>(INFINITY), 0, {}};
      FLOW_UNROLL
      for (int j = 0; j < kLaneElements; j++) {
        int column = d.template column<pack>(lane, j);
        query[r][j] =
            is_row && column < d.all.width ? convert<C>(from[column]) * d.all.scale : C(0);
      }
    }
  }
  FLOW_DEVICE int64_t last_seen() const {
    int64_t last = 0;
    FLOW_UNROLL
    for (int r = 0; r < rows; r++) last = most(last, seen[r]);
    return last;
  }
  /// Adds this lane's keys `at`, at + step, … before `last`.
  template <int pack, int ahead, int packs>
  FLOW_DEVICE void add_keys(const Words<T, pack> (&key)[ahead][packs],
                            const Words<T, pack> (&value)[ahead][packs], int lanes, int64_t at,
                            int64_t step, int64_t last) {
    C scores[ahead][rows];
    FLOW_UNROLL
    for (int u = 0; u < ahead; u++) score_key<pack>(query, key[u], lanes, scores[u]);
    FLOW_UNROLL
    for (int r = 0; r < rows; r++) {
      int64_t end = least(last, seen[r]);
      C peak = states[r].largest;
      FLOW_UNROLL
      for (int u = 0; u < ahead; u++)
        if (at + u * step < end) peak = Largest{}(peak, scores[u][r]);
      states[r].raise(peak);
      FLOW_UNROLL
      for (int u = 0; u < ahead; u++) {
        scores[u][r] = at + u * step < end ? std::exp(scores[u][r] - peak) : C(0);
        states[r].total += scores[u][r];
      }
    }
    FLOW_UNROLL
    for (int u = 0; u < ahead; u++) FLOW_UNROLL
    for (int p = 0; p < packs; p++) {
      C part[pack];
      unpack_words<pack>(value[u][p], part);
      FLOW_UNROLL
      for (int r = 0; r < rows; r++) FLOW_UNROLL
      for (int j = 0; j < pack; j++) states[r].sums[p * pack + j] += scores[u][r] * part[j];
    }
  }
  /// Joins the lanes of a warp that have different keys, and stores [rows] largest, [rows] totals
  /// and [rows, width] sums.
  template <int pack>
  FLOW_DEVICE void end(const DecodeSizes<C>& d, int lane_of_warp, C* to) {
    FLOW_UNROLL
    for (int r = 0; r < rows; r++)
      for (int with = d.lanes; with < kWarp; with *= 2) states[r].add_lane(with);
    if (lane_of_warp >= d.lanes) return;
    FLOW_UNROLL
    for (int r = 0; r < rows; r++) {
      if (lane_of_warp == 0) {
        to[r] = states[r].largest;
        to[rows + r] = states[r].total;
      }
      FLOW_UNROLL
      for (int j = 0; j < kLaneElements; j++) {
        int column = d.template column<pack>(lane_of_warp, j);
        if (column < d.all.width) to[2 * rows + r * d.all.width + column] = states[r].sums[j];
      }
    }
  }
};

// One column of a row's result; the first one also stores the logarithm.
template <typename T, typename C>
FLOW_DEVICE void store_result(const AttentionSizes<C>& s, int64_t row, int column, C peak, C total,
                              C sum, Heads<T> out, double* lse) {
  int64_t at = row % s.queries, head = row / s.queries % s.heads;
  bool is_seen = s.seen_by(at) > 0;
  T* to = out.at(row / s.queries / s.heads, head) + at * out.row;
  to[column] = convert<T>(is_seen ? sum / total : C(0));
  if (column == 0)
    lse[row] = is_seen ? static_cast<double>(peak) + static_cast<double>(std::log(total))
                       : -static_cast<double>(INFINITY);
}

// `pack`: elements of keys and values that are loaded at once.
template <int pack, int rows, typename T>
__global__ void __launch_bounds__(kDecodeThreads)
    decode_kernel(DecodeSizes<Compute<T>> d, Heads<T> q, Heads<T> k, Heads<T> v, Heads<T> out,
                  double* lse, SplitResults<Compute<T>> results) {
  using C = Compute<T>;
  constexpr int packs = kLaneElements / pack, ahead = kAhead<T, rows>;
  int thread = static_cast<int>(threadIdx.x), width = d.all.width;
  int lane = thread % d.lanes, at_once = kDecodeThreads / d.lanes;
  C* room = reinterpret_cast<C*>(dynamic_room());
  int room_of_warp = rows * (width + 2);
  int64_t row_tiles = divide_up(d.rows, rows);
  int64_t tiles = d.splits * row_tiles * d.all.groups * d.all.batches;
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    int64_t split = tile % d.splits, of_rows = tile / d.splits;
    DecodeRows<rows, T> tile_rows;
    tile_rows.first = of_rows % row_tiles * rows;
    tile_rows.group = of_rows / row_tiles % d.all.groups;
    tile_rows.batch = of_rows / row_tiles / d.all.groups;
    tile_rows.template begin<pack>(d, q, lane);
    const T* keys = k.at(tile_rows.batch, tile_rows.group);
    const T* values = v.at(tile_rows.batch, tile_rows.group);
    int64_t base = split * d.split_keys;
    int64_t last = least(tile_rows.last_seen(), base + d.split_keys);
    for (; base < last; base += at_once * ahead) {
      int64_t at = base + thread / d.lanes;
      Words<T, pack> key[ahead][packs], value[ahead][packs];
      FLOW_UNROLL
      for (int u = 0; u < ahead; u++, at += at_once) {
        load_part<pack>(at < last ? keys + at * k.row : nullptr, lane, d.lanes, width, key[u]);
        load_part<pack>(at < last ? values + at * v.row : nullptr, lane, d.lanes, width, value[u]);
      }
      tile_rows.add_keys(key, value, d.lanes, base + thread / d.lanes, at_once, last);
    }
    tile_rows.template end<pack>(d, thread % kWarp, room + thread / kWarp * room_of_warp);
    __syncthreads();
    for (int i = thread; i < rows * width; i += kDecodeThreads) {
      int r = i / width, column = i - r * width;
      if (tile_rows.first + r >= d.rows) break;
      C peak = -static_cast<C>(INFINITY), total = 0, sum = 0;
      for (int w = 0; w < kDecodeWarps; w++) peak = Largest{}(peak, room[w * room_of_warp + r]);
      for (int w = 0; w < kDecodeWarps; w++) {
        const C* of_warp = room + w * room_of_warp;
        C factor = rescale_factor(of_warp[r], peak);
        total += of_warp[rows + r] * factor;
        sum += of_warp[2 * rows + i] * factor;
      }
      int64_t row = d.row_of_all(tile_rows.batch, tile_rows.group, tile_rows.first + r);
      if (d.splits == 1)
        store_result(d.all, row, column, peak, total, sum, out, lse);
      else
        results.store(row * d.splits + split, width, column, peak, total, sum);
    }
    __syncthreads();
  }
}

// A block joins the splits of a row.
template <typename T>
__global__ void __launch_bounds__(kDecodeThreads)
    join_splits_kernel(DecodeSizes<Compute<T>> d, SplitResults<Compute<T>> results, Heads<T> out,
                       double* lse) {
  using C = Compute<T>;
  const AttentionSizes<C>& s = d.all;
  for (int64_t row = blockIdx.x; row < s.batches * s.heads * s.queries; row += gridDim.x) {
    const C* largest = results.largest + row * d.splits;
    const C* totals = results.total + row * d.splits;
    const C* sums = results.sums + row * d.splits * s.width;
    C peak = -static_cast<C>(INFINITY);
    for (int64_t i = 0; i < d.splits; i++) peak = Largest{}(peak, largest[i]);
    for (int column = static_cast<int>(threadIdx.x); column < s.width; column += kDecodeThreads) {
      C total = 0, sum = 0;
      for (int64_t i = 0; i < d.splits; i++) {
        C factor = rescale_factor(largest[i], peak);
        total += totals[i] * factor;
        sum += sums[i * s.width + column] * factor;
      }
      store_result(s, row, column, peak, total, sum, out, lse);
    }
  }
}

// Keys per split. Without splits, `tiles` blocks would process all keys each. It depends on the
// shapes only, so that all devices give the same bits.
int64_t keys_per_split(int64_t tiles, int64_t keys) {
#ifdef FLOW_EMULATE  // so few that the tests' small shapes have several splits
  constexpr int64_t kKeysLeast = 8, kBlocks = 24, kSplits = 6;
#else
  constexpr int64_t kKeysLeast = 128, kBlocks = 1024, kSplits = 64;
#endif
  int64_t splits = least(least(keys / kKeysLeast, divide_up(kBlocks, tiles)), kSplits);
  return divide_up(divide_up(most(keys, 1), most(splits, 1)), kKeysLeast) * kKeysLeast;
}

// Whether the rows of keys or values consist of whole packs of 16 bytes.
bool has_packs(const View& view, int64_t pack) {
  if (reinterpret_cast<uintptr_t>(view.data) % 16 != 0 || view.shape[3] % pack != 0) return false;
  for (int dim = 0; dim < 3; dim++)
    if (view.shape[dim] > 1 && view.strides[dim] % pack != 0) return false;
  return true;
}

}  // namespace

int decode_attention(Stream& stream, const Attention& options, const View& q, const View& k,
                     const View& v, const View& out, const View& lse) {
  return visit_floats(q.dtype, [&](auto type) {
    using T = decltype(type);
    using C = Compute<T>;
    DecodeSizes<C> d{sizes_of<C>(options, q, k), 1, 0, 1, 0};
    const AttentionSizes<C>& s = d.all;
    while (d.lanes * kLaneElements < s.width) d.lanes *= 2;
    d.rows = s.heads / s.groups * s.queries;
    int rows = d.rows == 1 ? 1 : kDecodeRows<C>;
    int64_t tiles = divide_up(d.rows, rows) * s.groups * s.batches;
    d.split_keys = keys_per_split(tiles, s.keys);
    d.splits = most(1, divide_up(s.keys, d.split_keys));
    SplitResults<C> results{};
    if (d.splits > 1) {
      int64_t places = lse.count() * d.splits;
      results.largest = stream.scratch.take<C>(places);
      results.total = stream.scratch.take<C>(places);
      results.sums = stream.scratch.take<C>(places * s.width);
      if (!results.largest || !results.total || !results.sums) return kNeedsScratch;
    }
    bool packs = has_packs(k, kPack<T>) && has_packs(v, kPack<T>);
    auto kernel = rows == 1 ? packs ? decode_kernel<kPack<T>, 1, T> : decode_kernel<1, 1, T>
                  : packs ? decode_kernel<kPack<T>, kDecodeRows<C>, T>
                            : decode_kernel<1, kDecodeRows<C>, T>;
    size_t bytes = sizeof(C) * kDecodeWarps * static_cast<size_t>(rows * (s.width + 2));
    FLOW_LAUNCH(launch(stream, kernel, grid_of(least(tiles * d.splits, kTilesMax)), kDecodeThreads,
                       bytes, d, heads_of<T>(q), heads_of<T>(k), heads_of<T>(v), heads_of<T>(out),
                       lse.at<double>(), results));
    if (d.splits == 1) return static_cast<int>(kDone);
    return launch(stream, join_splits_kernel<T>, grid_of(least(lse.count(), kTilesMax)),
                  kDecodeThreads, 0, d, results, heads_of<T>(out), lse.at<double>());
  });
}

}  // namespace flow::cuda
