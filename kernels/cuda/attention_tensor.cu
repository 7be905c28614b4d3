// Attention of half floats on tensor cores: the forward.
#include "kernels/cuda/attention_tiles.cuh"

namespace flow::cuda {
namespace {

using namespace tiles;

constexpr double kLn2 = 0.69314718055994530942;
constexpr int kStep = 64;  // keys

// Fragments of queries per warp at most, and the parts of them that are kept in registers.
template <int W>
constexpr int kFragments = W <= 128 ? 2 : 1;
template <int W, int F>
constexpr int kKept = W == 64    ? 4
                      : W == 128 ? (F == 2 ? 0 : 8)
                                 : 12;

// Steps of which the tiles are in shared memory. With one, the keys of the next step are copied
// while the products with the values are computed, and the values during the softmax.
template <int W, int F>
constexpr int kStages = W == 64 && F == 2 ? 2 : 1;

template <int W, int F>
constexpr size_t kRoom = (kTile<W, kBlockRows<F>> +
                          kStages<W, F> * 2 * kTile<W, kStep>)*sizeof(Half);

// A product that the compiler does not join with a sum.
FLOW_DEVICE float rounded_product(float a, float b) {
#ifdef FLOW_EMULATE
  return a * b;
#else
  return __fmul_rn(a, b);
#endif
}

// The softmax of the rows so far. Scores times `scale` are logarithms to base 2.
template <int F>
struct RowsSoftmax {
  float scale;          // above 0
  float largest[F][2];  // of the scores
  float totals[F][2];   // this lane's sum of the weights

  FLOW_DEVICE explicit RowsSoftmax(float of_scores) : scale(of_scores) {
    FLOW_UNROLL
    for (int f = 0; f < F; f++) {
      largest[f][0] = largest[f][1] = -INFINITY;
      totals[f][0] = totals[f][1] = 0.0f;
    }
  }

  // The base-2 logarithm that is subtracted from scores. If no key was seen yet all scores are
  // -infinity, and the weights 0.
  FLOW_DEVICE float base(int f, int half) const {
    return largest[f][half] == -INFINITY ? 0.0f : rounded_product(largest[f][half], scale);
  }

  // Converts scores to weights; earlier sums are rescaled to the new largest score.
  template <int n, int columns>
  FLOW_DEVICE void take(float (&scores)[F][n][4], float (&sums)[F][columns][4]) {
    float factors[F][2];
    bool changed = false;
    FLOW_UNROLL
    for (int f = 0; f < F; f++) {
      FLOW_UNROLL
      for (int half = 0; half < 2; half++) {
        float before = rounded_product(largest[f][half], scale);
        take_largest(scores[f], f, half);
        float now = base(f, half);
        factors[f][half] = exp2_of(before - now);
        changed = changed || factors[f][half] != 1.0f;
        totals[f][half] *= factors[f][half];
        FLOW_UNROLL
        for (int j = 0; j < n; j++) {
          FLOW_UNROLL
          for (int i = 2 * half; i < 2 * half + 2; i++) {
            scores[f][j][i] = exp2_of(product_and_sum(scores[f][j][i], scale, -now));
            totals[f][half] += scores[f][j][i];
          }
        }
      }
    }
    if (__ballot_sync(kAll, changed) == 0) return;  // most steps after the first ones
    FLOW_UNROLL
    for (int f = 0; f < F; f++) {
      FLOW_UNROLL
      for (int j = 0; j < columns; j++) {
        FLOW_UNROLL
        for (int i = 0; i < 4; i++) sums[f][j][i] *= factors[f][i / 2];
      }
    }
  }
  FLOW_DEVICE float total(int f, int half) const {
    float sum = totals[f][half] + __shfl_xor_sync(kAll, totals[f][half], 1);
    return sum + __shfl_xor_sync(kAll, sum, 2);
  }

 private:
  template <int n>
  FLOW_DEVICE void take_largest(const float (&scores)[n][4], int f, int half) {
    float now = largest[f][half];
    FLOW_UNROLL
    for (int j = 0; j < n; j++)
      now = std::fmax(now, std::fmax(scores[j][2 * half], scores[j][2 * half + 1]));
    now = std::fmax(now, __shfl_xor_sync(kAll, now, 1));
    largest[f][half] = std::fmax(now, __shfl_xor_sync(kAll, now, 2));
  }
};

template <int W, int F, typename T>
__global__ void __launch_bounds__(kTensorThreads)
    tensor_attention_kernel(TensorSizes s, Tasks tasks, Heads<T> q, Heads<T> k, Heads<T> v,
                            Heads<T> out, double* lse) {
  constexpr int rows = kBlockRows<F>, tile = kTile<W, kStep>, stages = kStages<W, F>;
  T* queries = reinterpret_cast<T*>(dynamic_room());
  T* others = queries + kTile<W, rows>;  // keys and values of each stage
  Lane me = this_lane<F>();
  Task task = tasks.mine();
  int first = (tasks.across - 1 - task.tile) * rows;
  int group = task.head / (s.heads / s.groups);
  const T* of_keys = k.at(task.batch, group);
  const T* of_values = v.at(task.batch, group);
  WarpKeys own_keys = keys_of_warp<F>(s, first + me.first);
  int last = s.seen_by(smaller(first + rows, s.queries) - 1);
  copy_tile<W, rows>(queries, q.at(task.batch, task.head), q.row, first, s.queries, s.width);
  copy_tile<W, kStep>(others, of_keys, k.row, 0, s.keys, s.width);
  if constexpr (stages == 2)
    copy_tile<W, kStep>(others + tile, of_values, v.row, 0, s.keys, s.width);
  commit_copies();
  wait_for_copies<0>();
  __syncthreads();
  if (s.scale < 0) negate_tile<W, rows>(queries);
  OwnRows<W, F, kKept<W, F>, T> own;
  own.load(queries + me.first * kPitch<W>);
  float sums[F][W / 8][4] = {};
  RowsSoftmax<F> softmax(std::fmax(std::fabs(s.scale) * kLog2E, 1e-30f));
  for (int key0 = 0, stage = 0; key0 < last; key0 += kStep) {
    wait_for_copies<0>();
    __syncthreads();  // the keys are loaded, and the previous values are not used any more
    T *keys = others + stage * 2 * tile, *values = keys + tile;
    bool has_next = key0 + kStep < last, is_seen = key0 < own_keys.end;
    if constexpr (stages == 2) {
      stage ^= 1;
      T* next = others + stage * 2 * tile;
      if (has_next) {
        copy_tile<W, kStep>(next, of_keys, k.row, key0 + kStep, s.keys, s.width);
        copy_tile<W, kStep>(next + tile, of_values, v.row, key0 + kStep, s.keys, s.width);
      }
    } else {
      copy_tile<W, kStep>(values, of_values, v.row, key0, s.keys, s.width);
    }
    commit_copies();
    uint32_t shares[F][kStep / 16][4];
    if (is_seen) {
      float scores[F][kStep / 8][4] = {};
      add_rows_by_rows(scores, own, keys);
      if (key0 + kStep > own_keys.by_all) {
        rarely();
        for_each_number(scores, me, [&](float& score, int f, int half, int column) {
          if (key0 + column >= s.seen_by(first + me.row_of(f, half))) score = -INFINITY;
        });
      }
      softmax.take(scores, sums);
      round_factors<T>(scores, shares);
    }
    if constexpr (stages == 1) {
      wait_for_copies<0>();
      __syncthreads();  // the values are loaded, and these keys are not used any more
      if (has_next) copy_tile<W, kStep>(keys, of_keys, k.row, key0 + kStep, s.keys, s.width);
      commit_copies();
    }
    if (is_seen) add_by_columns<W>(sums, shares, values);
  }
  wait_for_copies<0>();
  __syncthreads();
  task = tasks.mine();
  first = (tasks.across - 1 - task.tile) * rows;
  float factors[F][2];
  FLOW_UNROLL
  for (int f = 0; f < F; f++) {
    FLOW_UNROLL
    for (int half = 0; half < 2; half++) {
      float total = softmax.total(f, half);  // 0 if no key is seen, otherwise at least 1
      factors[f][half] = total == 0 ? 0.0f : 1.0f / total;
      int query = first + me.row_of(f, half);
      if (me.lane % 4 == 0 && query < s.queries)
        lse[(int64_t{task.batch} * s.heads + task.head) * s.queries + query] =
            total == 0 ? -static_cast<double>(INFINITY)
                       : softmax.base(f, half) * kLn2 + static_cast<double>(std::log(total));
    }
  }
  store_rows<W>(sums, factors, queries, out.at(task.batch, task.head), out.row, first, s.queries,
                s.width);
}

}  // namespace

int tensor_attention(Stream& stream, const Attention& options, const View& q, const View& k,
                     const View& v, const View& out, const View& lse) {
  auto s = sizes_of<float, int>(options, q, k);
  return with_tile(q, [&](auto type, auto width) {
    using T = decltype(type);
    constexpr int W = decltype(width)::value;
    constexpr size_t most = kRoom<W, kFragments<W>>;
    return with_fragments<kFragments<W>>(s.queries, s.heads, s.batches, most, [&](auto fragments) {
      constexpr int F = decltype(fragments)::value;
      static_assert(F > 1 || kRoom<W, F> <= kSharedEverywhere);
      Tasks tasks = tasks_of(s.queries, kBlockRows<F>, s.heads, s.batches,
                             int64_t{2} * s.keys * W * sizeof(T) * s.groups / s.heads);
      return launch(stream, tensor_attention_kernel<W, F, T>, grid_of(tasks.count()),
                    kTensorThreads, kRoom<W, F>, s, tasks, heads_of<T>(q), heads_of<T>(k),
                    heads_of<T>(v), heads_of<T>(out), lse.at<double>());
    });
  });
}

}  // namespace flow::cuda
