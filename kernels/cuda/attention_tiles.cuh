// What the attention kernels of tensor cores share (Dao, "FlashAttention-2"). A block holds rows of
// one side in shared memory, queries or keys, and loops over the other side in steps; the next step
// is copied while the current one is computed. Sums stay in registers from the first step to the
// last, so each gradient is added up by one warp in order.
//
// A warp has `F` fragments of 16 rows. Each fragment of the other side that it loads from shared
// memory is used for all of them: shared memory limits the speed, so two are better than one where
// the registers suffice.
//
// Products are summed in f32. The softmax is f32 too; its weights, and the gradients of the scores,
// are rounded to the operands' type for their products, as tensor cores require.
#pragma once
#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/mma.cuh"

namespace flow::cuda::tiles {

constexpr int kTensorThreads = 128;
constexpr int kFragmentRows = 16;
constexpr float kLog2E = 1.44269504088896340736f;

// Rows of a block.
template <int F>
constexpr int kBlockRows = kTensorThreads / kWarp* kFragmentRows* F;

// Elements from row to row of a tile `W` wide: an odd multiple of 16 bytes, so that 8 rows of
// ldmatrix are in different banks.
template <int W>
constexpr int kPitch = W + 8;
template <int W, int rows>
constexpr int kTile = rows* kPitch<W>;

// The 16 bytes beside each row of a tile, as floats: number i of a tile is in row i / 4.
template <int W, typename T>
FLOW_DEVICE auto padding_of(T* tile, int i) {
  using Float = std::conditional_t<std::is_const_v<T>, const float, float>;
  return reinterpret_cast<Float*>(tile + i / 4 * kPitch<W> + W) + i % 4;
}

// This thread's part of its warp's rows, which begin at `first`: of each fragment, rows `row` and
// `row` + 8, and of each 8 columns `column` and the next one.
struct Lane {
  int lane, first, row, column;

  FLOW_DEVICE int row_of(int fragment, int half) const {
    return row + fragment * kFragmentRows + half * 8;
  }
};
template <int F>
FLOW_DEVICE Lane this_lane() {
  int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp;
  int first = thread / kWarp * kFragmentRows * F;
  return {lane, first, first + lane / 4, lane % 4 * 2};
}

// The numbers of the block and of the thread, read each time: what depends on them is computed
// again rather than kept in registers over a loop.
#ifdef FLOW_EMULATE
inline int block_number() { return static_cast<int>(blockIdx.x); }
inline int thread_number() { return static_cast<int>(threadIdx.x); }
#else
FLOW_DEVICE int block_number() {
  int number;
  asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(number));
  return number;
}
FLOW_DEVICE int thread_number() {
  int number;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(number));
  return number;
}
#endif

FLOW_DEVICE int smaller(int a, int b) { return a < b ? a : b; }

// Copies rows `first` … of an operand to a tile, zeros beyond its end.
template <int W, int rows, typename T>
FLOW_DEVICE void copy_tile(T* tile, const T* from, int64_t row_stride, int first, int end,
                           int width, int thread = static_cast<int>(threadIdx.x)) {
  constexpr int part = W % 128 == 0 ? 128 : 64;  // columns of a pass over the rows
  constexpr int pieces = part / kTensorPiece, step = kTensorThreads / pieces;
  static_assert(W % part == 0 && rows % step == 0);
  int row = thread / pieces;
  int column = thread % pieces * static_cast<int>(kTensorPiece);
  FLOW_UNROLL
  for (int j = 0; j < W; j += part) {
    int there = column + j < width ? end - first - row : 0;
    const T* at = from + int64_t{first + row} * row_stride + column + j;
    FLOW_UNROLL
    for (int i = 0; i < rows; i += step, at += step * row_stride)
      copy_async<16>(tile + (row + i) * kPitch<W> + column + j, at, i < there);
  }
}

// A warp's own rows as left operands of products. The first `kept` of their W / 16 parts stay in
// registers, the others are loaded for each product.
template <int W, int F, int kept, typename T>
struct OwnRows {
  const T* at;  // this lane's row of ldmatrix
  uint32_t parts[kept > 0 ? kept : 1][F][4];

  // `tile` is the first of the warp's rows.
  FLOW_DEVICE void load(const T* tile) {
    int lane = static_cast<int>(threadIdx.x) % kWarp;
    at = tile + lane % 16 * kPitch<W> + lane / 16 * 8;
    FLOW_UNROLL
    for (int k = 0; k < kept; k++) load_part(k, parts[k]);
  }
  FLOW_DEVICE void take(int k, uint32_t (&to)[F][4]) const {
    if (k >= kept) return load_part(k, to);
    FLOW_UNROLL
    for (int f = 0; f < F; f++) {
      FLOW_UNROLL
      for (int i = 0; i < 4; i++) to[f][i] = parts[k][f][i];
    }
  }

 private:
  FLOW_DEVICE void load_part(int k, uint32_t (&to)[F][4]) const {
    FLOW_UNROLL
    for (int f = 0; f < F; f++) ldmatrix_x4(to[f], at + f * kFragmentRows * kPitch<W> + k * 16);
  }
};

// sums += own otherᵀ, of the warp's rows and 8n of another tile.
template <int W, int F, int n, int kept, typename T>
FLOW_DEVICE void add_rows_by_rows(float (&sums)[F][n][4], const OwnRows<W, F, kept, T>& own,
                                  const T* other) {
  int lane = static_cast<int>(threadIdx.x) % kWarp;
  const T* at = other + (lane / 16 * 8 + lane % 8) * kPitch<W> + lane / 8 % 2 * 8;
  FLOW_UNROLL
  for (int k = 0; k < W / 16; k++) {
    uint32_t a[F][4], b[4];
    own.take(k, a);
    FLOW_UNROLL
    for (int j = 0; j < n; j += 2) {
      ldmatrix_x4(b, at + j * 8 * kPitch<W> + k * 16);
      FLOW_UNROLL
      for (int f = 0; f < F; f++) {
        mma_16816<T>(sums[f][j], a[f], b[0], b[1]);
        mma_16816<T>(sums[f][j + 1], a[f], b[2], b[3]);
      }
    }
  }
}

// sums += factors other, where `other` has a row for each of the 16 n columns of factors.
template <int W, int F, int n, typename T>
FLOW_DEVICE void add_by_columns(float (&sums)[F][W / 8][4], const uint32_t (&factors)[F][n][4],
                                const T* other) {
  int lane = static_cast<int>(threadIdx.x) % kWarp;
  const T* at = other + lane % 16 * kPitch<W> + lane / 16 * 8;
  FLOW_UNROLL
  for (int k = 0; k < n; k++) {
    FLOW_UNROLL
    for (int j = 0; j < W / 8; j += 2) {
      uint32_t b[4];
      ldmatrix_x4_trans(b, at + k * 16 * kPitch<W> + j * 8);
      FLOW_UNROLL
      for (int f = 0; f < F; f++) {
        mma_16816<T>(sums[f][j], factors[f][k], b[0], b[1]);
        mma_16816<T>(sums[f][j + 1], factors[f][k], b[2], b[3]);
      }
    }
  }
}

// Converts the results of one product to the left operand of the next.
template <typename T, int F, int n>
FLOW_DEVICE void round_factors(const float (&from)[F][2 * n][4], uint32_t (&to)[F][n][4]) {
  FLOW_UNROLL
  for (int f = 0; f < F; f++) {
    FLOW_UNROLL
    for (int k = 0; k < n; k++) {
      FLOW_UNROLL
      for (int i = 0; i < 4; i++)
        to[f][k][i] =
            pack_2<T>(from[f][2 * k + i / 2][i % 2 * 2], from[f][2 * k + i / 2][i % 2 * 2 + 1]);
    }
  }
}

// At the begin of a branch that few steps take: keeps the compiler from computing it in all steps
// and selecting the results.
FLOW_DEVICE void rarely() {
#ifndef FLOW_EMULATE
  asm volatile("" ::: "memory");
#endif
}

// Calls f(number, fragment, half, column in the step) for each of the lane's numbers.
template <int F, int n, typename Function>
FLOW_DEVICE void for_each_number(float (&numbers)[F][n][4], const Lane& me, Function f) {
  FLOW_UNROLL
  for (int fragment = 0; fragment < F; fragment++) {
    FLOW_UNROLL
    for (int j = 0; j < n; j++) {
      FLOW_UNROLL
      for (int i = 0; i < 4; i++)
        f(numbers[fragment][j][i], fragment, i / 2, j * 8 + me.column + i % 2);
    }
  }
}

template <typename T>
FLOW_DEVICE void store_2(T* to, float low, float high) {
  uint32_t both = pack_2<T>(low, high);
  T pair[2];
  __builtin_memcpy(pair, &both, sizeof pair);
  store<2>(to, pair);
}

// Stores the warp's sums times `factors` of its rows to rows `first` … of an operand, through rows
// of a tile that only this warp reads, so that each store has 16 bytes.
template <int W, int F, typename T>
FLOW_DEVICE void store_rows(const float (&sums)[F][W / 8][4], const float (&factors)[F][2], T* tile,
                            T* to, int64_t row_stride, int first, int end, int width) {
  Lane me = this_lane<F>();
  T* own = tile + me.first * kPitch<W>;
  __syncwarp();
  FLOW_UNROLL
  for (int f = 0; f < F; f++) {
    FLOW_UNROLL
    for (int j = 0; j < W / 8; j++) {
      T* at = tile + me.row_of(f, 0) * kPitch<W> + j * 8 + me.column;
      const float(&four)[4] = sums[f][j];
      store_2(at, four[0] * factors[f][0], four[1] * factors[f][0]);
      store_2(at + 8 * kPitch<W>, four[2] * factors[f][1], four[3] * factors[f][1]);
    }
  }
  __syncwarp();
  constexpr int pieces = W / kTensorPiece;
  FLOW_UNROLL
  for (int i = 0; i < F * kFragmentRows * pieces / kWarp; i++) {
    int at = i * kWarp + me.lane;
    int row = at / pieces, column = at % pieces * static_cast<int>(kTensorPiece);
    int target = first + me.first + row;
    if (target >= end || column >= width) continue;
    T piece[kTensorPiece];
    load<kTensorPiece>(own + row * kPitch<W> + column, piece);
    store<kTensorPiece>(to + target * row_stride + column, piece);
  }
}

// Changes the signs of all elements of a tile. The block's threads must be together before.
template <int W, int rows, typename T>
FLOW_DEVICE void negate_tile(T* tile) {
  for (int i = static_cast<int>(threadIdx.x); i < kTile<W, rows>; i += kTensorThreads)
    tile[i].bits = static_cast<uint16_t>(tile[i].bits ^ 0x8000);
  __syncthreads();
}

// The rows and the head of a block.
struct Task {
  int tile, head, batch;
};

// A block for each tile of each head. The heads are divided into sections whose other operands fit
// into the L2 cache together. Those of a section begin with the first tile of each head, and so on:
// with a causal mask the tiles that have the most steps are to start first, and those with the
// fewest fill the gaps at the end.
struct Tasks {
  int across, heads, all_heads, section;  // tiles of a head; heads of a batch, in all, of a section

  FLOW_HD int64_t count() const { return int64_t{all_heads} * across; }
  FLOW_DEVICE Task mine() const {
    int number = block_number(), before = number / (section * across) * section;
    int in_section = number - before * across, together = smaller(section, all_heads - before);
    int head = before + in_section % together;
    return {in_section / together, head % heads, head / heads};
  }
};
#ifdef FLOW_EMULATE
constexpr int64_t kCached =
    1 << 15;  // so little that the tests' small shapes have several sections
#else
constexpr int64_t kCached = 16 << 20;
#endif
// `bytes`: of the other operands of a head.
inline Tasks tasks_of(int rows, int block_rows, int heads, int batches, int64_t bytes) {
  auto across = static_cast<int>(divide_up(rows, block_rows));
  int64_t all = int64_t{heads} * batches, section = most(1, least(kCached / most(bytes, 1), all));
  return {across, heads, static_cast<int>(all), static_cast<int>(section)};
}

// Blocks from which on a warp has several fragments: two for each multiprocessor of a large GPU.
// With fewer, one fragment gives more blocks.
#ifdef FLOW_EMULATE
constexpr int64_t kManyBlocks = 4;
#else
constexpr int64_t kManyBlocks = 264;
#endif
// Calls f(Constant<F>) for the fragments of a warp, `most` or 1. `room`: shared memory of a block
// with `most`, in bytes.
template <int most, typename Function>
int with_fragments(int rows, int heads, int batches, size_t room, Function f) {
  if constexpr (most > 1) {
    int64_t blocks = divide_up(rows, kBlockRows<most>) * heads * batches;
    if (blocks >= kManyBlocks && room <= shared_memory_max()) return f(Constant<most>{});
  }
  return f(Constant<1>{});
}

using TensorSizes = AttentionSizes<float, int>;

// The keys that a warp's queries attend to: all queries to those before `by_all`, and some to those
// before `end`.
struct WarpKeys {
  int by_all, end;
};
template <int F>
FLOW_DEVICE WarpKeys keys_of_warp(const TensorSizes& s, int first_query) {
  if (first_query >= s.queries) return {0, 0};
  int last_query = smaller(first_query + F * kFragmentRows, s.queries) - 1;
  return {s.seen_by(first_query), s.seen_by(last_query)};
}

// x y + z, rounded once: the shares of large scores are as exact as the scores.
FLOW_DEVICE float product_and_sum(float x, float y, float z) { return std::fma(x, y, z); }

// Calls f(T, Constant<W>) for the type, and the width to which operands are padded.
template <typename F>
int with_tile(const View& q, F f) {
  auto of_width = [&](auto type) {
    int64_t width = q.shape[3];
    return width <= 64    ? f(type, Constant<64>{})
           : width <= 128 ? f(type, Constant<128>{})
           : width <= 192 ? f(type, Constant<192>{})
                          : f(type, Constant<256>{});
  };
  return q.dtype == DType::f16 ? of_width(Half{}) : of_width(Brain{});
}

}  // namespace flow::cuda::tiles
