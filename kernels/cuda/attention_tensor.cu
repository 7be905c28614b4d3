// Attention of half floats on tensor cores (Dao, "FlashAttention-2"). A block holds 64 rows of one
// side in shared memory, queries or keys, 16 per warp, and loops over the other side in steps; the
// next step is copied while the current one is computed. Sums stay in registers from the first step
// to the last, so each gradient is added up by one warp in order.
//
// Products are summed in f32. The softmax is f32 too; its weights, and the gradients of the scores,
// are rounded to the operands' type for their products, as tensor cores require.
#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/mma.cuh"

namespace flow::cuda {
namespace {

constexpr int kTensorThreads = 128;
constexpr int kBlockRows = 64;  // of the block's own side
constexpr int kWarpRows = 16;
constexpr int kForwardStep = 64, kBackwardStep = 32;  // rows of the other side
constexpr float kLog2E = 1.44269504088896340736f;
constexpr double kLn2 = 0.69314718055994530942;

// Elements from row to row of a tile `W` wide: an odd multiple of 16 bytes, so that 8 rows of
// ldmatrix are in different banks.
template <int W>
constexpr int kPitch = W + 8;
template <int W, int rows>
constexpr int kTile = rows* kPitch<W>;

using TensorSizes = AttentionSizes<float, int>;

// This thread's part of its warp's 16 rows: rows `row` and `row` + 8 of the block's, and of each 8
// columns `column` and the next one.
struct Lane {
  int lane, first, row, column;
};
FLOW_DEVICE Lane this_lane() {
  int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp;
  int first = thread / kWarp * kWarpRows;
  return {lane, first, first + lane / 4, lane % 4 * 2};
}

FLOW_HD int tiles_of(int rows) { return static_cast<int>(divide_up(rows, kBlockRows)); }
FLOW_DEVICE int smaller(int a, int b) { return a < b ? a : b; }

// The rows and the head of a block.
struct TileTask {
  int first, head, batch;
};
FLOW_DEVICE TileTask task_of(int64_t number, int across, int heads) {
  int64_t head = number / across;
  return {static_cast<int>(number % across) * kBlockRows, static_cast<int>(head % heads),
          static_cast<int>(head / heads)};
}

// Copies rows `first` … of an operand to a tile, zeros beyond its end.
template <int W, int rows, typename T>
FLOW_DEVICE void copy_tile(T* tile, const T* from, int64_t row_stride, int first, int end,
                           int width) {
  constexpr int pieces = W / kTensorPiece, step = kTensorThreads / pieces;
  int thread = static_cast<int>(threadIdx.x), row = thread / pieces;
  int column = thread % pieces * static_cast<int>(kTensorPiece);
  int there = column < width ? end - first : 0;
  const T* at = from + int64_t{first + row} * row_stride + column;
  FLOW_UNROLL
  for (int i = 0; i < rows; i += step, at += step * row_stride)
    copy_async<16>(tile + (row + i) * kPitch<W> + column, at, row + i < there);
}

// sums += own otherᵀ, of 16 rows of a tile and 8n of another.
template <int W, int n, typename T>
FLOW_DEVICE void add_rows_by_rows(float (&sums)[n][4], const T* own, const T* other) {
  int lane = this_lane().lane;
  const T* own_at = own + lane % 16 * kPitch<W> + lane / 16 * 8;
  const T* other_at = other + (lane / 16 * 8 + lane % 8) * kPitch<W> + lane / 8 % 2 * 8;
  FLOW_UNROLL
  for (int k = 0; k < W; k += 16) {
    uint32_t a[4], b[4];
    ldmatrix_x4(a, own_at + k);
    FLOW_UNROLL
    for (int j = 0; j < n; j += 2) {
      ldmatrix_x4(b, other_at + j * 8 * kPitch<W> + k);
      mma_16816<T>(sums[j], a, b[0], b[1]);
      mma_16816<T>(sums[j + 1], a, b[2], b[3]);
    }
  }
}

// sums += factors other, where `other` has a row for each of the 16 n columns of factors.
template <int W, int n, typename T>
FLOW_DEVICE void add_by_columns(float (&sums)[W / 8][4], const uint32_t (&factors)[n][4],
                                const T* other) {
  int lane = this_lane().lane;
  const T* at = other + lane % 16 * kPitch<W> + lane / 16 * 8;
  FLOW_UNROLL
  for (int k = 0; k < n; k++) {
    FLOW_UNROLL
    for (int j = 0; j < W / 8; j += 2) {
      uint32_t b[4];
      ldmatrix_x4_trans(b, at + k * 16 * kPitch<W> + j * 8);
      mma_16816<T>(sums[j], factors[k], b[0], b[1]);
      mma_16816<T>(sums[j + 1], factors[k], b[2], b[3]);
    }
  }
}

// Converts the results of one product to the left operand of the next.
template <typename T, int n>
FLOW_DEVICE void round_factors(const float (&from)[2 * n][4], uint32_t (&to)[n][4]) {
  FLOW_UNROLL
  for (int k = 0; k < n; k++) {
    FLOW_UNROLL
    for (int i = 0; i < 4; i++)
      to[k][i] = pack_2<T>(from[2 * k + i / 2][i % 2 * 2], from[2 * k + i / 2][i % 2 * 2 + 1]);
  }
}

template <typename T>
FLOW_DEVICE void store_2(T* to, float low, float high) {
  uint32_t both = pack_2<T>(low, high);
  T pair[2];
  __builtin_memcpy(pair, &both, sizeof pair);
  store<2>(to, pair);
}

// Stores the warp's 16 rows of sums to an operand through rows of a tile that only this warp reads,
// so that each store has 16 bytes. `factors` of rows `row` and `row` + 8.
template <int W, typename T>
FLOW_DEVICE void store_rows(const float (&sums)[W / 8][4], const float (&factors)[2], T* tile,
                            T* to, int64_t row_stride, int first, int end, int width) {
  Lane me = this_lane();
  T* own = tile + me.first * kPitch<W>;
  __syncwarp();
  FLOW_UNROLL
  for (int j = 0; j < W / 8; j++) {
    T* at = own + me.lane / 4 * kPitch<W> + j * 8 + me.column;
    store_2(at, sums[j][0] * factors[0], sums[j][1] * factors[0]);
    store_2(at + 8 * kPitch<W>, sums[j][2] * factors[1], sums[j][3] * factors[1]);
  }
  __syncwarp();
  constexpr int pieces = W / kTensorPiece;
  FLOW_UNROLL
  for (int i = 0; i < kWarpRows * pieces / kWarp; i++) {
    int at = i * kWarp + me.lane;
    int row = at / pieces, column = at % pieces * static_cast<int>(kTensorPiece);
    int target = first + me.first + row;
    if (target >= end || column >= width) continue;
    T piece[kTensorPiece];
    load<kTensorPiece>(own + row * kPitch<W> + column, piece);
    store<kTensorPiece>(to + target * row_stride + column, piece);
  }
}

// A product that is rounded before a sum: the scores of the backward equal those of the forward.
FLOW_DEVICE float rounded_product(float a, float b) {
#ifdef FLOW_EMULATE
  return a * b;
#else
  return __fmul_rn(a, b);
#endif
}

// The softmax of the rows so far.
struct RowsSoftmax {
  float largest[2];  // of the scores, times log2(e)
  float totals[2];   // this lane's sum of the weights

  FLOW_DEVICE static RowsSoftmax empty() { return {{-INFINITY, -INFINITY}, {0.0f, 0.0f}}; }

  // Converts scores to weights; earlier sums are rescaled to the new largest score.
  template <int n, int columns>
  FLOW_DEVICE void take(float (&scores)[n][4], float (&sums)[columns][4]) {
    FLOW_UNROLL
    for (int half = 0; half < 2; half++) {
      float now = largest[half];
      FLOW_UNROLL
      for (int j = 0; j < n; j++)
        now = std::fmax(now, std::fmax(scores[j][2 * half], scores[j][2 * half + 1]));
      now = std::fmax(now, __shfl_xor_sync(kAll, now, 1));
      now = std::fmax(now, __shfl_xor_sync(kAll, now, 2));
      // If no key was seen yet all are -infinity, and the weights are 0.
      float base = now == -INFINITY ? 0.0f : now;
      float factor = exp2_of(largest[half] - base);
      largest[half] = now;
      totals[half] *= factor;
      FLOW_UNROLL
      for (int j = 0; j < n; j++) {
        FLOW_UNROLL
        for (int i = 2 * half; i < 2 * half + 2; i++) {
          scores[j][i] = exp2_of(scores[j][i] - base);
          totals[half] += scores[j][i];
        }
      }
      FLOW_UNROLL
      for (int j = 0; j < columns; j++) {
        sums[j][2 * half] *= factor;
        sums[j][2 * half + 1] *= factor;
      }
    }
  }
  FLOW_DEVICE float total(int half) const {
    float sum = totals[half] + __shfl_xor_sync(kAll, totals[half], 1);
    return sum + __shfl_xor_sync(kAll, sum, 2);
  }
};

template <int W, typename T>
__global__ void __launch_bounds__(kTensorThreads)
    tensor_attention_kernel(TensorSizes s, Heads<T> q, Heads<T> k, Heads<T> v, Heads<T> out,
                            double* lse) {
  T* queries = reinterpret_cast<T*>(dynamic_room());
  T* keys = queries + kTile<W, kBlockRows>;
  T* values = keys + kTile<W, kForwardStep>;
  Lane me = this_lane();
  float scale = s.scale * kLog2E;
  int across = tiles_of(s.queries);
  int64_t tasks = int64_t{across} * s.heads * s.batches;
  for (int64_t number = blockIdx.x; number < tasks; number += gridDim.x) {
    TileTask task = task_of(number, across, s.heads);
    task.first = (across - 1) * kBlockRows - task.first;  // the longest rows first
    int group = task.head / (s.heads / s.groups);
    const T* of_keys = k.at(task.batch, group);
    const T* of_values = v.at(task.batch, group);
    int seen[2] = {s.seen_by(task.first + me.row), s.seen_by(task.first + me.row + 8)};
    int seen_by_all = s.seen_by(task.first);
    int last = s.seen_by(smaller(task.first + kBlockRows, s.queries) - 1);
    copy_tile<W, kBlockRows>(queries, q.at(task.batch, task.head), q.row, task.first, s.queries,
                             s.width);
    copy_tile<W, kForwardStep>(keys, of_keys, k.row, 0, s.keys, s.width);
    commit_copies();
    float sums[W / 8][4] = {};
    RowsSoftmax softmax = RowsSoftmax::empty();
    for (int key0 = 0; key0 < last; key0 += kForwardStep) {
      wait_for_copies<0>();
      __syncthreads();  // the keys are loaded, and the previous values are not used any more
      copy_tile<W, kForwardStep>(values, of_values, v.row, key0, s.keys, s.width);
      commit_copies();
      float scores[kForwardStep / 8][4] = {};
      add_rows_by_rows<W>(scores, queries + me.first * kPitch<W>, keys);
      bool whole = key0 + kForwardStep <= seen_by_all;
      int seen_here[2] = {seen[0] - key0, seen[1] - key0};
      FLOW_UNROLL
      for (int j = 0; j < kForwardStep / 8; j++) {
        FLOW_UNROLL
        for (int i = 0; i < 4; i++) {
          bool is_seen = whole || j * 8 + me.column + i % 2 < seen_here[i / 2];
          scores[j][i] = is_seen ? rounded_product(scores[j][i], scale) : -INFINITY;
        }
      }
      softmax.take(scores, sums);
      uint32_t shares[kForwardStep / 16][4];
      round_factors<T>(scores, shares);
      wait_for_copies<0>();
      __syncthreads();  // the values are loaded, and these keys are not used any more
      if (key0 + kForwardStep < last)
        copy_tile<W, kForwardStep>(keys, of_keys, k.row, key0 + kForwardStep, s.keys, s.width);
      commit_copies();
      add_by_columns<W>(sums, shares, values);
    }
    wait_for_copies<0>();
    __syncthreads();
    float factors[2];
    for (int half = 0; half < 2; half++) {
      float total = softmax.total(half);  // 0 if no key is seen, otherwise at least 1
      factors[half] = total == 0 ? 0.0f : 1.0f / total;
      int query = task.first + me.row + 8 * half;
      if (me.lane % 4 == 0 && query < s.queries)
        lse[(int64_t{task.batch} * s.heads + task.head) * s.queries + query] =
            total == 0 ? -static_cast<double>(INFINITY)
                       : softmax.largest[half] * kLn2 + static_cast<double>(std::log(total));
    }
    store_rows<W>(sums, factors, queries, out.at(task.batch, task.head), out.row, task.first,
                  s.queries, s.width);
    __syncthreads();
  }
}

template <int W, typename T>
__global__ void __launch_bounds__(kTensorThreads)
    tensor_queries_backward_kernel(TensorSizes s, Heads<T> q, Heads<T> k, Heads<T> v, Heads<T> grad,
                                   RowNumbers<float> numbers, Heads<T> dq) {
  T* queries = reinterpret_cast<T*>(dynamic_room());
  T* grads = queries + kTile<W, kBlockRows>;
  T* others = grads + kTile<W, kBlockRows>;  // keys and values, of two steps
  constexpr int tile = kTile<W, kBackwardStep>;
  Lane me = this_lane();
  float scale = s.scale * kLog2E;
  int across = tiles_of(s.queries);
  int64_t tasks = int64_t{across} * s.heads * s.batches;
  for (int64_t number = blockIdx.x; number < tasks; number += gridDim.x) {
    TileTask task = task_of(number, across, s.heads);
    task.first = (across - 1) * kBlockRows - task.first;
    int group = task.head / (s.heads / s.groups);
    const T* of_keys = k.at(task.batch, group);
    const T* of_values = v.at(task.batch, group);
    int seen[2];
    float high[2] = {}, low[2] = {}, of_delta[2] = {};
    for (int half = 0; half < 2; half++) {
      int query = task.first + me.row + half * 8;
      int64_t at = (int64_t{task.batch} * s.heads + task.head) * s.queries + query;
      seen[half] = s.seen_by(query);
      if (query >= s.queries) continue;
      high[half] = numbers.high()[at];
      low[half] = numbers.low()[at];
      of_delta[half] = numbers.delta()[at];
    }
    int seen_by_all = s.seen_by(task.first);
    int last = s.seen_by(smaller(task.first + kBlockRows, s.queries) - 1);
    auto copy_step = [&](int key0, int stage) {
      T* to = others + stage * 2 * tile;
      copy_tile<W, kBackwardStep>(to, of_keys, k.row, key0, s.keys, s.width);
      copy_tile<W, kBackwardStep>(to + tile, of_values, v.row, key0, s.keys, s.width);
    };
    copy_tile<W, kBlockRows>(queries, q.at(task.batch, task.head), q.row, task.first, s.queries,
                             s.width);
    copy_tile<W, kBlockRows>(grads, grad.at(task.batch, task.head), grad.row, task.first, s.queries,
                             s.width);
    copy_step(0, 0);
    commit_copies();
    float sums[W / 8][4] = {};
    int stage = 0;
    for (int key0 = 0; key0 < last; key0 += kBackwardStep, stage ^= 1) {
      wait_for_copies<0>();
      __syncthreads();  // this step is loaded, and the previous one is not used any more
      if (key0 + kBackwardStep < last) copy_step(key0 + kBackwardStep, stage ^ 1);
      commit_copies();
      const T* keys = others + stage * 2 * tile;
      float scores[kBackwardStep / 8][4] = {}, score_grads[kBackwardStep / 8][4] = {};
      add_rows_by_rows<W>(scores, queries + me.first * kPitch<W>, keys);
      add_rows_by_rows<W>(score_grads, grads + me.first * kPitch<W>, keys + tile);
      bool whole = key0 + kBackwardStep <= seen_by_all;
      int seen_here[2] = {seen[0] - key0, seen[1] - key0};
      FLOW_UNROLL
      for (int j = 0; j < kBackwardStep / 8; j++) {
        FLOW_UNROLL
        for (int i = 0; i < 4; i++) {
          bool is_seen = whole || j * 8 + me.column + i % 2 < seen_here[i / 2];
          float below = (rounded_product(scores[j][i], scale) - high[i / 2]) - low[i / 2];
          float share = is_seen ? exp2_of(below) : 0.0f;
          score_grads[j][i] = share * (score_grads[j][i] - of_delta[i / 2]);
        }
      }
      uint32_t factors[kBackwardStep / 16][4];
      round_factors<T>(score_grads, factors);
      add_by_columns<W>(sums, factors, keys);
    }
    wait_for_copies<0>();
    __syncthreads();
    store_rows<W>(sums, {s.scale, s.scale}, queries, dq.at(task.batch, task.head), dq.row,
                  task.first, s.queries, s.width);
    __syncthreads();
  }
}

// The queries that attend to a block of keys: of all heads of its group, one after the other.
struct QueryStep {
  int first, head;

  FLOW_DEVICE QueryStep next(int from, int queries) const {
    if (first + kBackwardStep < queries) return {first + kBackwardStep, head};
    return {from, head + 1};
  }
};

// Rows are keys here, and columns are queries.
template <int W, typename T>
__global__ void __launch_bounds__(kTensorThreads)
    tensor_keys_backward_kernel(TensorSizes s, Heads<T> q, Heads<T> k, Heads<T> v, Heads<T> grad,
                                RowNumbers<float> of_rows, Heads<T> dk, Heads<T> dv) {
  T* keys = reinterpret_cast<T*>(dynamic_room());
  T* values = keys + kTile<W, kBlockRows>;
  T* others = values + kTile<W, kBlockRows>;  // queries and their gradients, of two steps
  constexpr int tile = kTile<W, kBackwardStep>;
  float* numbers = reinterpret_cast<float*>(others + 4 * tile);  // RowNumbers, of two steps
  Lane me = this_lane();
  float scale = s.scale * kLog2E;
  int per_group = s.heads / s.groups;
  int across = tiles_of(s.keys);
  int64_t tasks = int64_t{across} * s.groups * s.batches;
  for (int64_t number = blockIdx.x; number < tasks; number += gridDim.x) {
    TileTask task = task_of(number, across, s.groups);
    int last_key = smaller(task.first + kBlockRows, s.keys);
    auto copy_step = [&](QueryStep step, int stage) {
      T* to = others + stage * 2 * tile;
      copy_tile<W, kBackwardStep>(to, q.at(task.batch, step.head), q.row, step.first, s.queries,
                                  s.width);
      copy_tile<W, kBackwardStep>(to + tile, grad.at(task.batch, step.head), grad.row, step.first,
                                  s.queries, s.width);
      int thread = static_cast<int>(threadIdx.x), at = thread % kBackwardStep;
      if (thread >= 3 * kBackwardStep) return;
      const float* from = of_rows.data + thread / kBackwardStep * of_rows.count +
                          (int64_t{task.batch} * s.heads + step.head) * s.queries;
      bool inside = step.first + at < s.queries;
      copy_async<4>(numbers + stage * 3 * kBackwardStep + thread,
                    inside ? from + step.first + at : from, inside);
    };
    int from = s.first_to_see(task.first) / kBackwardStep * kBackwardStep;
    int end = (task.head + 1) * per_group;
    int first_query[2] = {s.first_to_see(task.first + me.row),
                          s.first_to_see(task.first + me.row + 8)};
    QueryStep step{from, from < s.queries ? task.head * per_group : end};
    copy_tile<W, kBlockRows>(keys, k.at(task.batch, task.head), k.row, task.first, s.keys, s.width);
    copy_tile<W, kBlockRows>(values, v.at(task.batch, task.head), v.row, task.first, s.keys,
                             s.width);
    if (step.head < end) copy_step(step, 0);
    commit_copies();
    float of_keys[W / 8][4] = {}, of_values[W / 8][4] = {};
    int stage = 0;
    for (QueryStep next = step; step.head < end; step = next, stage ^= 1) {
      wait_for_copies<0>();
      __syncthreads();  // this step is loaded, and the previous one is not used any more
      next = step.next(from, s.queries);
      if (next.head < end) copy_step(next, stage ^ 1);
      commit_copies();
      const T* queries = others + stage * 2 * tile;
      const float* high = numbers + stage * 3 * kBackwardStep;
      const float *low = high + kBackwardStep, *of_delta = low + kBackwardStep;
      float shares[kBackwardStep / 8][4] = {};
      add_rows_by_rows<W>(shares, keys + me.first * kPitch<W>, queries);
      // Queries beyond the last are all 0 and add nothing.
      bool whole = last_key <= s.seen_by(step.first);
      int seen_from[2] = {first_query[0] - step.first, first_query[1] - step.first};
      FLOW_UNROLL
      for (int j = 0; j < kBackwardStep / 8; j++) {
        FLOW_UNROLL
        for (int i = 0; i < 4; i++) {
          int at = j * 8 + me.column + i % 2;
          bool is_seen = whole || at >= seen_from[i / 2];
          float below = (rounded_product(shares[j][i], scale) - high[at]) - low[at];
          shares[j][i] = is_seen ? exp2_of(below) : 0.0f;
        }
      }
      uint32_t factors[kBackwardStep / 16][4];
      round_factors<T>(shares, factors);
      add_by_columns<W>(of_values, factors, queries + tile);
      float score_grads[kBackwardStep / 8][4] = {};
      add_rows_by_rows<W>(score_grads, values + me.first * kPitch<W>, queries + tile);
      FLOW_UNROLL
      for (int j = 0; j < kBackwardStep / 8; j++) {
        FLOW_UNROLL
        for (int i = 0; i < 4; i++)
          score_grads[j][i] =
              shares[j][i] * (score_grads[j][i] - of_delta[j * 8 + me.column + i % 2]);
      }
      round_factors<T>(score_grads, factors);
      add_by_columns<W>(of_keys, factors, queries);
    }
    wait_for_copies<0>();
    __syncthreads();
    store_rows<W>(of_keys, {s.scale, s.scale}, keys, dk.at(task.batch, task.head), dk.row,
                  task.first, s.keys, s.width);
    store_rows<W>(of_values, {1.0f, 1.0f}, values, dv.at(task.batch, task.head), dv.row, task.first,
                  s.keys, s.width);
    __syncthreads();
  }
}

// Calls f(T, Constant<W>) for the type, and the width to which operands are padded.
template <typename F>
int with_tile(const View& q, F f) {
  auto of_width = [&](auto type) {
    return q.shape[3] <= 64 ? f(type, Constant<64>{}) : f(type, Constant<128>{});
  };
  return q.dtype == DType::f16 ? of_width(Half{}) : of_width(Brain{});
}

}  // namespace

int tensor_attention(Stream& stream, const Attention& options, const View& q, const View& k,
                     const View& v, const View& out, const View& lse) {
  auto s = sizes_of<float, int>(options, q, k);
  return with_tile(q, [&](auto type, auto width) {
    using T = decltype(type);
    constexpr int W = decltype(width)::value;
    int64_t tasks = int64_t{tiles_of(s.queries)} * s.heads * s.batches;
    size_t bytes = (kTile<W, kBlockRows> + 2 * kTile<W, kForwardStep>)*sizeof(T);
    return launch(stream, tensor_attention_kernel<W, T>, grid_of(least(tasks, kTilesMax)),
                  kTensorThreads, bytes, s, heads_of<T>(q), heads_of<T>(k), heads_of<T>(v),
                  heads_of<T>(out), lse.at<double>());
  });
}

int tensor_attention_backward(Stream& stream, const Attention& options, const View& q,
                              const View& k, const View& v, const View& grad,
                              RowNumbers<float> numbers, const View& dq, const View& dk,
                              const View& dv) {
  auto s = sizes_of<float, int>(options, q, k);
  return with_tile(q, [&](auto type, auto width) {
    using T = decltype(type);
    constexpr int W = decltype(width)::value;
    size_t bytes = (2 * kTile<W, kBlockRows> + 4 * kTile<W, kBackwardStep>)*sizeof(T);
    if (dq.count() > 0) {
      int64_t tasks = int64_t{tiles_of(s.queries)} * s.heads * s.batches;
      FLOW_LAUNCH(launch(stream, tensor_queries_backward_kernel<W, T>,
                         grid_of(least(tasks, kTilesMax)), kTensorThreads, bytes, s, heads_of<T>(q),
                         heads_of<T>(k), heads_of<T>(v), heads_of<T>(grad), numbers,
                         heads_of<T>(dq)));
    }
    if (dk.count() == 0) return kDone;
    int64_t tasks = int64_t{tiles_of(s.keys)} * s.groups * s.batches;
    return launch(stream, tensor_keys_backward_kernel<W, T>, grid_of(least(tasks, kTilesMax)),
                  kTensorThreads, bytes + 6 * kBackwardStep * sizeof(float), s, heads_of<T>(q),
                  heads_of<T>(k), heads_of<T>(v), heads_of<T>(grad), numbers, heads_of<T>(dk),
                  heads_of<T>(dv));
  });
}

}  // namespace flow::cuda
