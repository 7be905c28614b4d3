// Attention of half floats on tensor cores: the gradients. The products of queries and keys are
// computed again, once by blocks of queries and once by blocks of keys, twice for heads wider than
// 128.
#include "kernels/cuda/attention_tiles.cuh"

namespace flow::cuda {
namespace {

using namespace tiles;

constexpr int kStep = 32;  // rows of the other side

// Two adjacent numbers of shared memory.
struct alignas(8) Pair {
  float of[2];
};
FLOW_DEVICE Pair pair_at(const float* at) { return *reinterpret_cast<const Pair*>(at); }

// Whether the logarithm and delta of each row are in the padding of a tile: at this width the tiles
// fill the shared memory.
template <int W>
constexpr bool kNumbersInPadding = W == 256;

// Of the kernel for the queries' gradients: fragments per warp at most, the parts of the queries
// and of the gradients that are kept in registers, and the steps of which the tiles are in shared
// memory.
template <int W>
constexpr int kQueryFragments = W <= 128 ? 2 : 1;
template <int W, int F>
constexpr int kQueriesKept = W == 64    ? 4
                             : W == 128 ? (F == 2 ? 0 : 8)
                             : W == 192 ? 12
                                        : 10;
template <int W, int F>
constexpr int kGradsKept = W == 64              ? 4
                           : W == 128 && F == 1 ? 8
                                                : 0;
template <int W>
constexpr int kQueryStages = W <= 128 ? 2 : 1;
template <int W, int F>
constexpr size_t kQueryRoom = (2 * kTile<W, kBlockRows<F>> +
                               kQueryStages<W> * 2 * kTile<W, kStep>)*sizeof(Half) +
                              (kNumbersInPadding<W> ? 0 : kBlockRows<F> * sizeof(Pair));

template <int W, int F, typename T>
__global__ void __launch_bounds__(kTensorThreads)
    tensor_queries_backward_kernel(TensorSizes s, Tasks tasks, Heads<T> q, Heads<T> k, Heads<T> v,
                                   Heads<T> grad, RowNumbers<float> numbers, Heads<T> dq) {
  constexpr int rows = kBlockRows<F>, stages = kQueryStages<W>;
  constexpr int tile = kTile<W, kStep>;
  T* queries = reinterpret_cast<T*>(dynamic_room());
  T* grads = queries + kTile<W, rows>;
  T* others = grads + kTile<W, rows>;  // keys and values of each stage
  // The logarithm (its larger part) and delta of each query: registers are scarcer.
  auto row_numbers = [&](int row) -> Pair& {
    if constexpr (kNumbersInPadding<W>)
      return *reinterpret_cast<Pair*>(padding_of<W>(queries, 4 * row));
    else
      return reinterpret_cast<Pair*>(others + stages * 2 * tile)[row];
  };
  Lane me = this_lane<F>();
  float scale = s.scale * kLog2E;
  Task task = tasks.mine();
  int first = (tasks.across - 1 - task.tile) * rows;
  int group = task.head / (s.heads / s.groups);
  WarpKeys own_keys = keys_of_warp<F>(s, first + me.first);
  int last = s.seen_by(smaller(first + rows, s.queries) - 1);
  auto copy_step = [&](int key0, int stage) {
    T* to = others + stage * 2 * tile;
    copy_tile<W, kStep>(to, k.at(task.batch, group), k.row, key0, s.keys, s.width, thread_number());
    copy_tile<W, kStep>(to + tile, v.at(task.batch, group), v.row, key0, s.keys, s.width,
                        thread_number());
    commit_copies();
  };
  copy_tile<W, rows>(queries, q.at(task.batch, task.head), q.row, first, s.queries, s.width);
  copy_tile<W, rows>(grads, grad.at(task.batch, task.head), grad.row, first, s.queries, s.width);
  copy_step(0, 0);
  int64_t of_head = (int64_t{task.batch} * s.heads + task.head) * s.queries;
  for (int i = static_cast<int>(threadIdx.x); i < rows; i += kTensorThreads) {
    int64_t at = of_head + first + i;
    bool inside = first + i < s.queries;
    row_numbers(i) = inside ? Pair{{numbers.high()[at], numbers.delta()[at]}} : Pair{};
  }
  wait_for_copies<0>();
  __syncthreads();
  OwnRows<W, F, kQueriesKept<W, F>, T> own;
  OwnRows<W, F, kGradsKept<W, F>, T> own_grads;
  own.load(queries + me.first * kPitch<W>);
  own_grads.load(grads + me.first * kPitch<W>);
  float sums[F][W / 8][4] = {};
  for (int key0 = 0, stage = 0; key0 < last; key0 += kStep) {
    wait_for_copies<0>();
    __syncthreads();  // this step is loaded, and the previous one is not used any more
    const T* keys = others + stage * 2 * tile;
    if constexpr (stages == 2) {
      stage ^= 1;
      if (key0 + kStep < last) copy_step(key0 + kStep, stage);
    }
    if (key0 < own_keys.end) {
      float shares[F][kStep / 8][4] = {}, score_grads[F][kStep / 8][4] = {};
      add_rows_by_rows(shares, own, keys);
      add_rows_by_rows(score_grads, own_grads, keys + tile);
      FLOW_UNROLL
      for (int f = 0; f < F; f++) {
        FLOW_UNROLL
        for (int half = 0; half < 2; half++) {
          float high = row_numbers(me.row_of(f, half)).of[0];
          FLOW_UNROLL
          for (int j = 0; j < kStep / 8; j++) {
            FLOW_UNROLL
            for (int i = 2 * half; i < 2 * half + 2; i++)
              shares[f][j][i] = exp2_of(product_and_sum(shares[f][j][i], scale, -high));
          }
        }
      }
      if (key0 + kStep > own_keys.by_all) {
        rarely();
        for_each_number(shares, me, [&](float& share, int f, int half, int column) {
          if (key0 + column >= s.seen_by(first + me.row_of(f, half))) share = 0.0f;
        });
      }
      FLOW_UNROLL
      for (int f = 0; f < F; f++) {
        FLOW_UNROLL
        for (int half = 0; half < 2; half++) {
          float delta = row_numbers(me.row_of(f, half)).of[1];
          FLOW_UNROLL
          for (int j = 0; j < kStep / 8; j++) {
            FLOW_UNROLL
            for (int i = 2 * half; i < 2 * half + 2; i++)
              score_grads[f][j][i] = shares[f][j][i] * (score_grads[f][j][i] - delta);
          }
        }
      }
      uint32_t rounded[F][kStep / 16][4];
      round_factors<T>(score_grads, rounded);
      add_by_columns<W>(sums, rounded, keys);
    }
    if constexpr (stages == 1) {
      __syncthreads();
      if (key0 + kStep < last) copy_step(key0 + kStep, 0);
    }
  }
  wait_for_copies<0>();
  __syncthreads();
  task = tasks.mine();
  first = (tasks.across - 1 - task.tile) * rows;
  of_head = (int64_t{task.batch} * s.heads + task.head) * s.queries;
  float factors[F][2];
  FLOW_UNROLL
  for (int f = 0; f < F; f++) {
    FLOW_UNROLL
    for (int half = 0; half < 2; half++) {
      int query = first + me.row_of(f, half);
      // The remainder of the logarithm is a factor of the whole row.
      factors[f][half] =
          query < s.queries ? s.scale * exp2_of(-numbers.low()[of_head + query]) : 0.0f;
    }
  }
  store_rows<W>(sums, factors, queries, dq.at(task.batch, task.head), dq.row, first, s.queries,
                s.width);
}

// The gradients that a kernel computes. The sums of both do not fit into the registers if heads are
// wide.
enum class Wanted { both, keys, values };

template <int W>
constexpr int kKeyFragments = W == 64 ? 2 : 1;
template <int W, int F, Wanted wanted>
constexpr int kKeysKept = W == 64                  ? (F == 2 ? 0 : 4)
                          : W == 128               ? 8
                          : W == 192               ? 12
                          : wanted == Wanted::keys ? 11
                                                   : 14;
template <int W, int F>
constexpr int kValuesKept = W == 64    ? (F == 2 ? 0 : 4)
                            : W == 128 ? 5
                            : W == 192 ? 12
                                       : 0;
template <int W, Wanted wanted>
constexpr int kKeyStages = W <= 128 || wanted == Wanted::values ? 2 : 1;
template <int W, Wanted wanted>
constexpr int kOwnTiles = wanted == Wanted::values ? 1 : 2;
template <int W, int F, Wanted wanted>
constexpr size_t kKeyRoom = (kOwnTiles<W, wanted> * kTile<W, kBlockRows<F>> +
                             kKeyStages<W, wanted> * 2 * kTile<W, kStep>)*sizeof(Half) +
                            (kNumbersInPadding<W>
                                 ? 0
                                 : kKeyStages<W, wanted> * 3 * kStep * sizeof(float));

// The queries that attend to a block of keys: of all heads of its group, one after the other.
struct QueryStep {
  int first, head;

  FLOW_DEVICE QueryStep next(int from, int queries) const {
    if (first + kStep < queries) return {first + kStep, head};
    return {from, head + 1};
  }
};

// Rows are keys here, and columns are queries.
template <int W, int F, Wanted wanted, typename T>
__global__ void __launch_bounds__(kTensorThreads)
    tensor_keys_backward_kernel(TensorSizes s, Tasks tasks, Heads<T> q, Heads<T> k, Heads<T> v,
                                Heads<T> grad, RowNumbers<float> of_rows, Heads<T> dk,
                                Heads<T> dv) {
  constexpr int rows = kBlockRows<F>, stages = kKeyStages<W, wanted>;
  constexpr int tile = kTile<W, kStep>;
  constexpr bool for_keys = wanted != Wanted::values, for_values = wanted != Wanted::keys;
  T* keys = reinterpret_cast<T*>(dynamic_room());
  T* values = keys + (kOwnTiles<W, wanted> - 1) * kTile<W, rows>;
  T* others = values + kTile<W, rows>;  // queries and their gradients, of each stage
  // Number `i` of the RowNumbers of a step.
  auto number_at = [&](int of_stage, int i) {
    if constexpr (kNumbersInPadding<W>)
      return padding_of<W>(others + of_stage * 2 * tile, i);
    else
      return reinterpret_cast<float*>(others + stages * 2 * tile) + of_stage * 3 * kStep + i;
  };
  Lane me = this_lane<F>();
  float scale = s.scale * kLog2E;
  int per_group = s.heads / s.groups;
  Task task = tasks.mine();
  int first = task.tile * rows;
  int first_key = first + me.first, end_key = smaller(first_key + F * kFragmentRows, s.keys);
  auto copy_step = [&](QueryStep step, int stage) {
    int thread = thread_number(), at = thread % kStep;
    T* to = others + stage * 2 * tile;
    copy_tile<W, kStep>(to, q.at(task.batch, step.head), q.row, step.first, s.queries, s.width,
                        thread_number());
    copy_tile<W, kStep>(to + tile, grad.at(task.batch, step.head), grad.row, step.first, s.queries,
                        s.width, thread_number());
    if (thread < 3 * kStep) {
      const float* from = of_rows.data + thread / kStep * of_rows.count +
                          (int64_t{task.batch} * s.heads + step.head) * s.queries;
      bool inside = step.first + at < s.queries;
      copy_async<4>(number_at(stage, thread), inside ? from + step.first + at : from, inside);
    }
  };
  int from = s.first_to_see(first) / kStep * kStep;
  int end = (task.head + 1) * per_group;
  QueryStep step{from, from < s.queries ? task.head * per_group : end};
  copy_tile<W, rows>(keys, k.at(task.batch, task.head), k.row, first, s.keys, s.width);
  if constexpr (for_keys)
    copy_tile<W, rows>(values, v.at(task.batch, task.head), v.row, first, s.keys, s.width);
  if (step.head < end) copy_step(step, 0);
  commit_copies();
  wait_for_copies<0>();
  __syncthreads();
  OwnRows<W, F, kKeysKept<W, F, wanted>, T> own;
  OwnRows<W, F, kValuesKept<W, F>, T> own_values;
  own.load(keys + me.first * kPitch<W>);
  if constexpr (for_keys) own_values.load(values + me.first * kPitch<W>);
  float of_keys[F][W / 8][4] = {}, of_values[F][W / 8][4] = {};
  int stage = 0;
  for (QueryStep next = step; step.head < end; step = next) {
    wait_for_copies<0>();
    __syncthreads();  // this step is loaded, and the previous one is not used any more
    next = step.next(from, s.queries);
    const T* queries = others + stage * 2 * tile;
    int loaded = stage;
    auto pair_of = [&](int kind, int j) {
      return pair_at(number_at(loaded, kind * kStep + j * 8 + me.column));
    };
    if constexpr (stages == 2) {
      stage ^= 1;
      if (next.head < end) copy_step(next, stage);
      commit_copies();
    }
    // Whether the warp has keys, and the last query of the step attends to one.
    if (first_key < end_key && step.first + kStep > s.first_to_see(first_key)) {
      float shares[F][kStep / 8][4] = {};
      add_rows_by_rows(shares, own, queries);
      FLOW_UNROLL
      for (int j = 0; j < kStep / 8; j++) {
        Pair highs = pair_of(0, j), lows = pair_of(1, j);
        FLOW_UNROLL
        for (int f = 0; f < F; f++) {
          FLOW_UNROLL
          for (int i = 0; i < 4; i++)
            shares[f][j][i] =
                exp2_of(product_and_sum(shares[f][j][i], scale, -highs.of[i % 2]) - lows.of[i % 2]);
        }
      }
      // Queries beyond the last are all 0 and add nothing.
      if (end_key > s.seen_by(step.first)) {
        rarely();
        for_each_number(shares, me, [&](float& share, int f, int half, int column) {
          if (step.first + column < s.first_to_see(first + me.row_of(f, half))) share = 0.0f;
        });
      }
      uint32_t factors[F][kStep / 16][4];
      if constexpr (for_values) {
        round_factors<T>(shares, factors);
        add_by_columns<W>(of_values, factors, queries + tile);
      }
      if constexpr (for_keys) {
        float score_grads[F][kStep / 8][4] = {};
        add_rows_by_rows(score_grads, own_values, queries + tile);
        FLOW_UNROLL
        for (int j = 0; j < kStep / 8; j++) {
          Pair deltas = pair_of(2, j);
          FLOW_UNROLL
          for (int f = 0; f < F; f++) {
            FLOW_UNROLL
            for (int i = 0; i < 4; i++)
              score_grads[f][j][i] = shares[f][j][i] * (score_grads[f][j][i] - deltas.of[i % 2]);
          }
        }
        round_factors<T>(score_grads, factors);
        add_by_columns<W>(of_keys, factors, queries);
      }
    }
    if constexpr (stages == 1) {
      __syncthreads();
      if (next.head < end) copy_step(next, 0);
      commit_copies();
    }
  }
  wait_for_copies<0>();
  __syncthreads();
  task = tasks.mine();
  first = task.tile * rows;
  float factors[F][2], ones[F][2];
  FLOW_UNROLL
  for (int f = 0; f < F; f++) {
    factors[f][0] = factors[f][1] = s.scale;
    ones[f][0] = ones[f][1] = 1.0f;
  }
  if constexpr (for_keys)
    store_rows<W>(of_keys, factors, keys, dk.at(task.batch, task.head), dk.row, first, s.keys,
                  s.width);
  if constexpr (for_values)
    store_rows<W>(of_values, ones, values, dv.at(task.batch, task.head), dv.row, first, s.keys,
                  s.width);
}

}  // namespace

int tensor_attention_backward(Stream& stream, const Attention& options, const View& q,
                              const View& k, const View& v, const View& grad,
                              RowNumbers<float> numbers, const View& dq, const View& dk,
                              const View& dv) {
  auto s = sizes_of<float, int>(options, q, k);
  return with_tile(q, [&](auto type, auto width) {
    using T = decltype(type);
    constexpr int W = decltype(width)::value;
    constexpr int64_t row_bytes = int64_t{2} * W * sizeof(T);
    if (dq.count() > 0)
      FLOW_LAUNCH(with_fragments<kQueryFragments<W>>(
          s.queries, s.heads, s.batches, kQueryRoom<W, kQueryFragments<W>>, [&](auto fragments) {
            constexpr int F = decltype(fragments)::value;
            static_assert(F > 1 || kQueryRoom<W, F> <= kSharedEverywhere);
            Tasks tasks = tasks_of(s.queries, kBlockRows<F>, s.heads, s.batches,
                                   row_bytes * s.keys * s.groups / s.heads);
            return launch(stream, tensor_queries_backward_kernel<W, F, T>, grid_of(tasks.count()),
                          kTensorThreads, kQueryRoom<W, F>, s, tasks, heads_of<T>(q),
                          heads_of<T>(k), heads_of<T>(v), heads_of<T>(grad), numbers,
                          heads_of<T>(dq));
          }));
    if (dk.count() == 0) return kDone;
    auto launch_keys = [&](auto fragments, auto of_wanted) {
      constexpr int F = decltype(fragments)::value;
      constexpr Wanted wanted = decltype(of_wanted)::value;
      static_assert(kKeyRoom<W, F, wanted> <= kSharedEverywhere);
      Tasks tasks = tasks_of(s.keys, kBlockRows<F>, s.groups, s.batches,
                             row_bytes * s.queries * s.heads / s.groups);
      return launch(stream, tensor_keys_backward_kernel<W, F, wanted, T>, grid_of(tasks.count()),
                    kTensorThreads, kKeyRoom<W, F, wanted>, s, tasks, heads_of<T>(q),
                    heads_of<T>(k), heads_of<T>(v), heads_of<T>(grad), numbers, heads_of<T>(dk),
                    heads_of<T>(dv));
    };
    return with_fragments<kKeyFragments<W>>(s.keys, s.groups, s.batches, 0, [&](auto fragments) {
      if constexpr (W <= 128) {
        return launch_keys(fragments, std::integral_constant<Wanted, Wanted::both>{});
      } else {
        FLOW_LAUNCH(launch_keys(fragments, std::integral_constant<Wanted, Wanted::values>{}));
        return launch_keys(fragments, std::integral_constant<Wanted, Wanted::keys>{});
      }
    });
  });
}

}  // namespace flow::cuda
