// Attention over tiles of keys with an online softmax (Dao et al., "FlashAttention"): no memory of
// the size of queries times keys. The backward recomputes the products, once per block of queries
// and once per block of keys, so that each gradient is summed by one block in order. Four threads
// share a row of a tile. Half floats in a layout for tensor cores use attention_tensor.cu, few
// queries attention_decode.cu.
#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/group.cuh"

namespace flow::cuda {
namespace {

constexpr int kLanes = 4;  // threads per row
template <typename C>
constexpr int kRows = sizeof(C) == 8 ? 16 : 32;  // rows of a tile, and its columns

// A tile has one column more than the head's width, against bank conflicts.
template <typename T, typename C>
FLOW_DEVICE void load_tile(C* tile, const T* from, int64_t row_stride, int64_t first, int64_t rows,
                           int width, C factor) {
  for (int i = static_cast<int>(threadIdx.x); i < kRows<C> * width;
       i += static_cast<int>(blockDim.x)) {
    int row = i / width, column = i - row * width;
    tile[row * (width + 1) + column] =
        first + row < rows ? convert<C>(from[(first + row) * row_stride + column]) * factor : C(0);
  }
}

template <typename C>
FLOW_DEVICE C dot(const C* a, const C* b, int width) {
  C sum = 0;
  for (int i = 0; i < width; i++) sum += a[i] * b[i];
  return sum;
}

template <typename C, typename F>
FLOW_DEVICE C over_lanes(C value, F f) {
  value = f(value, __shfl_xor_sync(kAll, value, 1));
  return f(value, __shfl_xor_sync(kAll, value, 2));
}

// `room`: the widest head whose data fits in a thread's registers.
template <int room, typename T>
__global__ void __launch_bounds__(128)
    attention_kernel(AttentionSizes<Compute<T>> s, Heads<T> q, Heads<T> k, Heads<T> v, Heads<T> out,
                     double* lse) {
  using C = Compute<T>;
  constexpr int rows = kRows<C>;
  int pitch = s.width + 1;
  C* queries = reinterpret_cast<C*>(dynamic_room());
  C* others = queries + rows * pitch;  // keys, then values
  C* shares = others + rows * pitch;
  int row = static_cast<int>(threadIdx.x) / kLanes, lane = static_cast<int>(threadIdx.x) % kLanes;
  int64_t across = divide_up(s.queries, rows), tiles = across * s.heads * s.batches;
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    // The longest rows first: they have the most keys.
    int64_t first = (across - 1 - tile % across) * rows;
    int64_t head = tile / across % s.heads, batch = tile / across / s.heads;
    int64_t group = head / (s.heads / s.groups), query = first + row;
    int64_t seen = query < s.queries ? s.seen_by(query) : 0;
    int64_t last = s.seen_by(least(first + rows, s.queries) - 1);
    load_tile(queries, q.at(batch, head), q.row, first, s.queries, s.width, s.scale);
    C sums[room / kLanes] = {};
    C largest = -static_cast<C>(INFINITY), total = 0;
    for (int64_t key0 = 0; key0 < last; key0 += rows) {
      load_tile(others, k.at(batch, group), k.row, key0, s.keys, s.width, C(1));
      __syncthreads();
      C scores[rows / kLanes], peak = -static_cast<C>(INFINITY);
      for (int j = 0; j < rows / kLanes; j++) {
        int column = lane + j * kLanes;
        scores[j] = key0 + column < seen
                        ? dot(queries + row * pitch, others + column * pitch, s.width)
                        : -static_cast<C>(INFINITY);
        peak = Largest{}(peak, scores[j]);
      }
      peak = over_lanes(peak, Largest{});
      C now = Largest{}(largest, peak), sum = 0;
      // If no key was seen yet, all are -infinity, and stay 0.
      C factor = largest == now ? C(1) : std::exp(largest - now);
      for (int j = 0; j < rows / kLanes; j++) {
        C share = key0 + lane + j * kLanes < seen ? std::exp(scores[j] - now) : C(0);
        shares[row * (rows + 1) + lane + j * kLanes] = share;
        sum += share;
      }
      total = total * factor + over_lanes(sum, Add{});
      largest = now;
      __syncthreads();
      load_tile(others, v.at(batch, group), v.row, key0, s.keys, s.width, C(1));
      __syncthreads();
      for (int j = 0; j < room / kLanes; j++) {
        int column = lane + j * kLanes;
        if (column >= s.width) break;
        C part = 0;
        for (int i = 0; i < rows; i++)
          part += shares[row * (rows + 1) + i] * others[i * pitch + column];
        sums[j] = sums[j] * factor + part;
      }
      __syncthreads();
    }
    if (query < s.queries) {
      T* to = out.at(batch, head) + query * out.row;
      for (int j = 0; j < room / kLanes; j++) {
        int column = lane + j * kLanes;
        if (column >= s.width) break;
        to[column] = convert<T>(seen > 0 ? sums[j] / total : C(0));
      }
      if (lane == 0)
        lse[(batch * s.heads + head) * s.queries + query] =
            seen > 0 ? static_cast<double>(largest) + static_cast<double>(std::log(total))
                     : -static_cast<double>(INFINITY);
    }
    __syncthreads();
  }
}

// Row data for the backward: the logarithm of the row's sum in two parts, times `factor`, and
// delta, the sum over d of grad * out.
template <typename T>
__global__ void __launch_bounds__(kBlockThreads)
    row_numbers_kernel(AttentionSizes<Compute<T>> s, Heads<T> out, Heads<T> grad, const double* lse,
                       double factor, RowNumbers<Compute<T>> numbers) {
  using C = Compute<T>;
  int lane = static_cast<int>(threadIdx.x) % kWarp;
  int64_t rows = s.batches * s.heads * s.queries, warps = threads_of_grid() / kWarp;
  for (int64_t i = thread_of_grid() / kWarp; i < rows; i += warps) {
    int64_t row = i % s.queries, head = i / s.queries % s.heads, batch = i / s.queries / s.heads;
    const T* a = out.at(batch, head) + row * out.row;
    const T* b = grad.at(batch, head) + row * grad.row;
    C sum = 0;
    for (int j = lane; j < s.width; j += kWarp) sum += convert<C>(a[j]) * convert<C>(b[j]);
    sum = over_warp(sum, Add{});
    if (lane == 0) {
      auto split = SplitLogarithm<C>::of(lse[i] * factor);
      numbers.high()[i] = split.high;
      numbers.low()[i] = split.low;
      numbers.delta()[i] = sum;
    }
  }
}

template <int room, typename T>
__global__ void __launch_bounds__(128)
    queries_backward_kernel(AttentionSizes<Compute<T>> s, Heads<T> q, Heads<T> k, Heads<T> v,
                            Heads<T> grad, RowNumbers<Compute<T>> numbers, Heads<T> dq) {
  using C = Compute<T>;
  constexpr int rows = kRows<C>;
  int pitch = s.width + 1;
  C* queries = reinterpret_cast<C*>(dynamic_room());
  C* grads = queries + rows * pitch;
  C* keys = grads + rows * pitch;
  C* values = keys + rows * pitch;
  C* score_grads = values + rows * pitch;
  int row = static_cast<int>(threadIdx.x) / kLanes, lane = static_cast<int>(threadIdx.x) % kLanes;
  int64_t across = divide_up(s.queries, rows), tiles = across * s.heads * s.batches;
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    int64_t first = (across - 1 - tile % across) * rows;
    int64_t head = tile / across % s.heads, batch = tile / across / s.heads;
    int64_t group = head / (s.heads / s.groups), query = first + row;
    bool inside = query < s.queries;
    int64_t seen = inside ? s.seen_by(query) : 0;
    int64_t last = s.seen_by(least(first + rows, s.queries) - 1);
    int64_t at = (batch * s.heads + head) * s.queries + query;
    SplitLogarithm<C> logarithm{};
    C of_delta = 0;
    if (inside) {
      logarithm = {numbers.high()[at], numbers.low()[at]};
      of_delta = numbers.delta()[at];
    }
    load_tile(queries, q.at(batch, head), q.row, first, s.queries, s.width, s.scale);
    load_tile(grads, grad.at(batch, head), grad.row, first, s.queries, s.width, C(1));
    C sums[room / kLanes] = {};
    for (int64_t key0 = 0; key0 < last; key0 += rows) {
      load_tile(keys, k.at(batch, group), k.row, key0, s.keys, s.width, C(1));
      load_tile(values, v.at(batch, group), v.row, key0, s.keys, s.width, C(1));
      __syncthreads();
      for (int j = 0; j < rows / kLanes; j++) {
        int column = lane + j * kLanes;
        C score_grad = 0;
        if (key0 + column < seen) {
          C score = dot(queries + row * pitch, keys + column * pitch, s.width);
          C share = std::exp(logarithm.below(score));
          score_grad =
              share * (dot(grads + row * pitch, values + column * pitch, s.width) - of_delta);
        }
        score_grads[row * (rows + 1) + column] = score_grad;
      }
      __syncthreads();
      for (int j = 0; j < room / kLanes; j++) {
        int column = lane + j * kLanes;
        if (column >= s.width) break;
        for (int i = 0; i < rows; i++)
          sums[j] += score_grads[row * (rows + 1) + i] * keys[i * pitch + column];
      }
      __syncthreads();
    }
    T* to = dq.at(batch, head) + query * dq.row;
    for (int j = 0; j < room / kLanes && inside; j++) {
      int column = lane + j * kLanes;
      if (column < s.width) to[column] = convert<T>(sums[j] * s.scale);
    }
    __syncthreads();
  }
}

template <int room, typename T>
__global__ void __launch_bounds__(128)
    keys_backward_kernel(AttentionSizes<Compute<T>> s, Heads<T> q, Heads<T> k, Heads<T> v,
                         Heads<T> grad, RowNumbers<Compute<T>> numbers, Heads<T> dk, Heads<T> dv) {
  using C = Compute<T>;
  constexpr int rows = kRows<C>;
  int pitch = s.width + 1;
  C* keys = reinterpret_cast<C*>(dynamic_room());
  C* values = keys + rows * pitch;
  C* queries = values + rows * pitch;
  C* grads = queries + rows * pitch;
  C* shares = grads + rows * pitch;
  C* score_grads = shares + rows * (rows + 1);
  int row = static_cast<int>(threadIdx.x) / kLanes, lane = static_cast<int>(threadIdx.x) % kLanes;
  int64_t across = divide_up(s.keys, rows), tiles = across * s.groups * s.batches;
  int64_t per_group = s.heads / s.groups;
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    int64_t first = tile % across * rows, key = first + row;
    int64_t group = tile / across % s.groups, batch = tile / across / s.groups;
    load_tile(keys, k.at(batch, group), k.row, first, s.keys, s.width, C(1));
    load_tile(values, v.at(batch, group), v.row, first, s.keys, s.width, C(1));
    C of_keys[room / kLanes] = {}, of_values[room / kLanes] = {};
    for (int64_t head = group * per_group; head < (group + 1) * per_group; head++) {
      int64_t base = (batch * s.heads + head) * s.queries;
      for (int64_t query0 = s.first_to_see(first) / rows * rows; query0 < s.queries;
           query0 += rows) {
        // The queries are scaled as in the forward: large scores are rounded the same way.
        load_tile(queries, q.at(batch, head), q.row, query0, s.queries, s.width, s.scale);
        load_tile(grads, grad.at(batch, head), grad.row, query0, s.queries, s.width, C(1));
        __syncthreads();
        for (int j = 0; j < rows / kLanes; j++) {
          int column = lane + j * kLanes;
          int64_t query = query0 + column;
          C share = 0, score_grad = 0;
          if (query < s.queries && key < s.seen_by(query)) {
            SplitLogarithm<C> logarithm{numbers.high()[base + query], numbers.low()[base + query]};
            C score = dot(queries + column * pitch, keys + row * pitch, s.width);
            share = std::exp(logarithm.below(score));
            score_grad = share * (dot(values + row * pitch, grads + column * pitch, s.width) -
                                  numbers.delta()[base + query]);
          }
          shares[row * (rows + 1) + column] = share;
          score_grads[row * (rows + 1) + column] = score_grad;
        }
        __syncthreads();
        for (int j = 0; j < room / kLanes; j++) {
          int column = lane + j * kLanes;
          if (column >= s.width) break;
          for (int i = 0; i < rows; i++) {
            of_values[j] += shares[row * (rows + 1) + i] * grads[i * pitch + column];
            of_keys[j] += score_grads[row * (rows + 1) + i] * queries[i * pitch + column];
          }
        }
        __syncthreads();
      }
    }
    if (key < s.keys)
      for (int j = 0; j < room / kLanes; j++) {
        int column = lane + j * kLanes;
        if (column >= s.width) break;
        dk.at(batch, group)[key * dk.row + column] = convert<T>(of_keys[j]);
        dv.at(batch, group)[key * dv.row + column] = convert<T>(of_values[j]);
      }
    __syncthreads();
  }
}

constexpr int64_t kWidthMax = 256;

template <typename C>
size_t room_of(int width, int tiles, int squares) {
  size_t rows = kRows<C>;
  return (rows * static_cast<size_t>(width + 1) * static_cast<size_t>(tiles) +
          rows * (rows + 1) * static_cast<size_t>(squares)) *
         sizeof(C);
}

}  // namespace

int own_attention(Stream& stream, Attention options, const View& q, const View& k, const View& v,
                  const View& out, const View& lse) {
  if (q.shape[3] > kWidthMax) return kUnsupported;
  if (lse.count() == 0) return kDone;
  if (takes_splits(q)) return decode_attention(stream, options, q, k, v, out, lse);
  if (takes_tensor_cores({&q, &k, &v, &out}))
    return tensor_attention(stream, options, q, k, v, out, lse);
  return visit_floats(q.dtype, [&](auto type) {
    using T = decltype(type);
    using C = Compute<T>;
    auto s = sizes_of<C>(options, q, k);
    int64_t tiles = divide_up(s.queries, kRows<C>) * s.heads * s.batches;
    auto kernel = s.width <= 64    ? attention_kernel<64, T>
                  : s.width <= 128 ? attention_kernel<128, T>
                                   : attention_kernel<256, T>;
    return launch(stream, kernel, grid_of(least(tiles, kTilesMax)), kRows<C> * kLanes,
                  room_of<C>(s.width, 2, 1), s, heads_of<T>(q), heads_of<T>(k), heads_of<T>(v),
                  heads_of<T>(out), lse.at<double>());
  });
}

int own_attention_backward(Stream& stream, Attention options, const View& q, const View& k,
                           const View& v, const View& out, const View& lse, const View& grad,
                           const View& dq, const View& dk, const View& dv) {
  if (q.shape[3] > kWidthMax) return kUnsupported;
  return visit_floats(q.dtype, [&](auto type) {
    using T = decltype(type);
    using C = Compute<T>;
    auto s = sizes_of<C>(options, q, k);
    RowNumbers<C> numbers{stream.scratch.take<C>(3 * most(1, lse.count())), lse.count()};
    if (!numbers.data) return kNeedsScratch;
    bool on_tensor_cores = takes_tensor_cores({&q, &k, &v, &grad, &dq, &dk, &dv});
    int threads = kRows<C> * kLanes;
    int64_t rows = s.batches * s.heads * s.queries;
    if (!on_tensor_cores && room_of<C>(s.width, 4, 2) > shared_memory_max()) return kUnsupported;
    if (rows > 0)
      FLOW_LAUNCH(launch(stream, row_numbers_kernel<T>, grid_of(blocks_for(rows * kWarp)),
                         kBlockThreads, 0, s, heads_of<T>(out), heads_of<T>(grad), lse.at<double>(),
                         on_tensor_cores ? kLog2EDouble : 1.0, numbers));
    if constexpr (is_small_float<T>)
      if (on_tensor_cores)
        return tensor_attention_backward(stream, options, q, k, v, grad, numbers, dq, dk, dv);
    if (rows > 0) {
      auto kernel = s.width <= 64    ? queries_backward_kernel<64, T>
                    : s.width <= 128 ? queries_backward_kernel<128, T>
                                     : queries_backward_kernel<256, T>;
      int64_t tiles = divide_up(s.queries, kRows<C>) * s.heads * s.batches;
      FLOW_LAUNCH(launch(stream, kernel, grid_of(least(tiles, kTilesMax)), threads,
                         room_of<C>(s.width, 4, 1), s, heads_of<T>(q), heads_of<T>(k),
                         heads_of<T>(v), heads_of<T>(grad), numbers, heads_of<T>(dq)));
    }
    if (dk.count() == 0) return kDone;
    auto kernel = s.width <= 64    ? keys_backward_kernel<64, T>
                  : s.width <= 128 ? keys_backward_kernel<128, T>
                                   : keys_backward_kernel<256, T>;
    int64_t tiles = divide_up(s.keys, kRows<C>) * s.groups * s.batches;
    return launch(stream, kernel, grid_of(least(tiles, kTilesMax)), threads,
                  room_of<C>(s.width, 4, 2), s, heads_of<T>(q), heads_of<T>(k), heads_of<T>(v),
                  heads_of<T>(grad), numbers, heads_of<T>(dk), heads_of<T>(dv));
  });
}

}  // namespace flow::cuda
