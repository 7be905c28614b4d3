// Optimizers: a step over all weights in one pass, and the sum of squares for gradient clipping.
#include "kernels/cuda/group.cuh"
#include "kernels/cuda/launchers.hpp"
#include "kernels/shared/adamw.hpp"

namespace flow::cuda {
namespace {

constexpr int kWidth = 4;

template <int width, typename W>
FLOW_DEVICE void write_copy(DType dtype, const ElementPosition& spot, const W (&weights)[width]) {
  if (dtype == DType::bf16)
    spot.write_as<Brain>(weights);
  else
    spot.write_as<Half>(weights);
}

// Operands: grad, mean, square, copy, weights.
template <typename W, typename G>
struct AdamWOp {
  W beta1, beta2, rest1, rest2, decay, size, root, eps, scale;
  bool has_copy;
  DType copy_type;

  template <int width>
  FLOW_DEVICE void run(const ElementPosition (&spots)[5], int64_t) const {
    W grad[width], mean[width], square[width], weights[width];
    spots[0].read_as<G>(grad);
    spots[1].read(mean);
    spots[2].read(square);
    spots[4].read(weights);
    for (int j = 0; j < width; j++) {
      W g = grad[j] * scale;
      mean[j] = beta1 * mean[j] + rest1 * g;
      square[j] = beta2 * square[j] + rest2 * (g * g);
      weights[j] = weights[j] * decay - size * (mean[j] / (std::sqrt(square[j]) * root + eps));
    }
    spots[1].write(mean);
    spots[2].write(square);
    spots[4].write(weights);
    if (has_copy) write_copy(copy_type, spots[3], weights);
  }
};

// Operands: grad, momentum, copy, weights.
template <typename W, typename G>
struct SgdOp {
  W lr, keep, gain, ahead, decay, scale;
  bool has_momentum, first, nesterov, has_copy;
  DType copy_type;

  template <int width>
  FLOW_DEVICE void run(const ElementPosition (&spots)[4], int64_t) const {
    W grad[width], momentum[width], weights[width];
    spots[0].read_as<G>(grad);
    spots[3].read(weights);
    if (has_momentum && !first) spots[1].read(momentum);
    for (int j = 0; j < width; j++) {
      W g = grad[j] * scale + decay * weights[j], step = g;
      if (has_momentum) {
        momentum[j] = first ? g : keep * momentum[j] + gain * g;
        step = nesterov ? g + ahead * momentum[j] : momentum[j];
      }
      weights[j] = weights[j] - lr * step;
    }
    if (has_momentum) spots[1].write(momentum);
    spots[3].write(weights);
    if (has_copy) write_copy(copy_type, spots[2], weights);
  }
};

// Calls f(weight, gradient) with a value of each type.
template <typename F>
int visit_step(const View& weights, const View& grad, F f) {
  if (weights.dtype == DType::f64 && grad.dtype == DType::f64) return f(double{}, double{});
  if (weights.dtype != DType::f32) return kUnsupported;
  switch (grad.dtype) {
    case DType::f32:
      return f(float{}, float{});
    case DType::f16:
      return f(float{}, Half{});
    case DType::bf16:
      return f(float{}, Brain{});
    default:
      return kUnsupported;
  }
}

constexpr int64_t kSquareBlocks = 1024;

struct Squares {
  IndexMath<1> index_math;
  int64_t single, all;
};

template <int width, typename T>
__global__ void __launch_bounds__(kBlockThreads)
    squares_kernel(Squares s, const T* in, double* parts) {
  double sum = 0;
  for (int64_t i = thread_of_grid(); i < s.index_math.count; i += threads_of_grid()) {
    int64_t offset[1];
    s.index_math.at(i, offset);
    double x[width];
    load_as<width>(in + offset[0], x);
    for (double each : x) sum += each * each;
  }
  for (int64_t i = s.single + thread_of_grid(); i < s.all; i += threads_of_grid()) {
    auto x = convert<double>(in[i]);
    sum += x * x;
  }
  Group group{static_cast<int>(threadIdx.x), kBlockThreads};
  sum = sum_over_group(group, sum);
  if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kBlockThreads)
    add_parts_kernel(const double* parts, int64_t count, double* out) {
  double sum = 0;
  for (int64_t i = threadIdx.x; i < count; i += kBlockThreads) sum += parts[i];
  Group group{static_cast<int>(threadIdx.x), kBlockThreads};
  sum = sum_over_group(group, sum);
  if (threadIdx.x == 0) *out += sum;
}

// ---- several tensors at once: a launch's parameters hold a table of them

constexpr int kAllChunk = 16384;  // elements of a block

// The tensors of one launch: a block works on one chunk of one of them.
template <int tensors>
struct Chunks {
  int64_t counts[tensors];    // of elements
  int32_t firsts[tensors];    // the first block of each
  int count = 0, blocks = 0;  // of tensors, of blocks

  struct Chunk {
    int tensor;
    int64_t first, last;  // its elements
  };
  FLOW_DEVICE Chunk of_block(int block) const {
    int low = 0, high = count;  // the last tensor whose first block is not behind this one
    while (high - low > 1) {
      int middle = (low + high) / 2;
      if (firsts[middle] <= block)
        low = middle;
      else
        high = middle;
    }
    int64_t first = int64_t{block - firsts[low]} * kAllChunk;
    return {low, first, least(first + kAllChunk, counts[low])};
  }
  void add(int64_t elements) {
    counts[count] = elements;
    firsts[count++] = blocks;
    blocks += static_cast<int>(divide_up(elements, kAllChunk));
  }
  bool is_full() const { return count == tensors || blocks > (1 << 30); }
};

// Calls f(first) for a block's packs of `width` elements, then for its single elements.
template <int width, typename F>
FLOW_DEVICE void each_of_chunk(int64_t first, int64_t last, bool packs, F f) {
  int64_t single = packs ? first + (last - first) / width * width : first;
  for (int64_t i = first + threadIdx.x * width; i < single; i += kBlockThreads * width)
    f(i, Constant<width>{});
  for (int64_t i = single + threadIdx.x; i < last; i += kBlockThreads) f(i, Constant<1>{});
}

// Calls f(a value of the type) for a float's type.
template <typename F>
FLOW_DEVICE void with_float(DType dtype, F f) {
  if (dtype == DType::f32) return f(float{});
  if (dtype == DType::bf16) return f(Brain{});
  if (dtype == DType::f16) return f(Half{});
  f(double{});
}

FLOW_DEVICE bool is_packed(const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; }

constexpr int kTensorsMax = 160;
struct TensorTable {
  Chunks<kTensorsMax> chunks;
  char* data[kTensorsMax];
  DType dtypes[kTensorsMax];

  bool add(const View& view) {
    data[chunks.count] = view.data;
    dtypes[chunks.count] = view.dtype;
    chunks.add(view.count());
    return chunks.is_full();
  }
};

__global__ void __launch_bounds__(kBlockThreads)
    squares_of_all_kernel(TensorTable table, double* parts) {
  auto chunk = table.chunks.of_block(static_cast<int>(blockIdx.x));
  double sum = 0;
  with_float(table.dtypes[chunk.tensor], [&](auto type) {
    using T = decltype(type);
    const T* from = reinterpret_cast<const T*>(table.data[chunk.tensor]);
    each_of_chunk<kPack<T>>(chunk.first, chunk.last, is_packed(from), [&](int64_t i, auto width) {
      double x[decltype(width)::value];
      load_as<decltype(width)::value>(from + i, x);
      for (double each : x) sum += each * each;
    });
  });
  Group group{static_cast<int>(threadIdx.x), kBlockThreads};
  sum = sum_over_group(group, sum);
  if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kBlockThreads)
    norm_of_parts_kernel(const double* parts, int64_t count, double limit, double* out) {
  double sum = 0;
  for (int64_t i = threadIdx.x; i < count; i += kBlockThreads) sum += parts[i];
  Group group{static_cast<int>(threadIdx.x), kBlockThreads};
  sum = sum_over_group(group, sum);
  if (threadIdx.x > 0) return;
  double norm = std::sqrt(sum), factor = limit / (norm + 1e-6);
  out[0] = norm;
  out[1] = factor < 1 ? factor : 1;
}

__global__ void __launch_bounds__(kBlockThreads)
    scale_all_kernel(TensorTable table, const double* factor) {
  double number = *factor;
  if (number == 1) return;
  auto chunk = table.chunks.of_block(static_cast<int>(blockIdx.x));
  with_float(table.dtypes[chunk.tensor], [&](auto type) {
    using T = decltype(type);
    using C = Compute<T>;
    T* data = reinterpret_cast<T*>(table.data[chunk.tensor]);
    each_of_chunk<kPack<T>>(chunk.first, chunk.last, is_packed(data), [&](int64_t i, auto width) {
      C x[decltype(width)::value];
      load_as<decltype(width)::value>(data + i, x);
      for (C& each : x) each *= static_cast<C>(number);
      store_as<decltype(width)::value>(data + i, x);
    });
  });
}

// Launches `kernel` for tables that together hold all tensors.
template <typename F>
int each_table(const View* tensors, int64_t count, F launch_table) {
  TensorTable table;
  for (int64_t i = 0; i < count; i++) {
    if (tensors[i].count() == 0) continue;
    if (!table.add(tensors[i])) continue;
    FLOW_LAUNCH(launch_table(table));
    table.chunks.count = table.chunks.blocks = 0;
  }
  return table.chunks.count == 0 ? kDone : launch_table(table);
}

bool are_dense_floats(const View* tensors, int64_t count) {
  for (int64_t i = 0; i < count; i++)
    if (!is_dense(tensors[i]) || !is_float(tensors[i].dtype)) return false;
  return true;
}

// `W` is the type of the weights; gradients of f32 weights have any type up to it.
constexpr int kAdamWTensorsMax = 56;
template <typename W>
struct AdamWTable {
  Chunks<kAdamWTensorsMax> chunks;
  W* weights[kAdamWTensorsMax];
  W* mean[kAdamWTensorsMax];
  W* square[kAdamWTensorsMax];
  const void* grad[kAdamWTensorsMax];
  char* copy[kAdamWTensorsMax];
  union {  // the parameters have no room for both
    struct {
      W sizes[kAdamWTensorsMax], roots[kAdamWTensorsMax];
    } known;
    const double* rates[kAdamWTensorsMax];
  };
  bool are_rates_on_device;
  DType grads[kAdamWTensorsMax], copies[kAdamWTensorsMax];
  W beta1, beta2, rest1, rest2, decay, eps, scale;
  const double* factor;
};

template <typename W>
__global__ void __launch_bounds__(kBlockThreads) adamw_all_kernel(AdamWTable<W> table) {
  auto chunk = table.chunks.of_block(static_cast<int>(blockIdx.x));
  int k = chunk.tensor;
  W* all_weights = table.weights[k];
  W* all_mean = table.mean[k];
  W* all_square = table.square[k];
  char* copy = table.copy[k];
  W size, root, decay = table.decay;
  if (table.are_rates_on_device) {
    const double* rates = table.rates[k];
    decay = static_cast<W>(rates[0]);
    size = static_cast<W>(rates[1]);
    root = static_cast<W>(rates[2]);
  } else {
    size = table.known.sizes[k];
    root = table.known.roots[k];
  }
  W scale = table.factor ? table.scale * static_cast<W>(*table.factor) : table.scale;
  bool packs = is_packed(all_weights) && is_packed(all_mean) && is_packed(all_square) &&
               is_packed(table.grad[k]) && is_packed(copy);
  with_float(table.grads[k], [&](auto type) {
    using G = decltype(type);
    if constexpr (std::is_same_v<W, double> == std::is_same_v<G, double>) {
      const G* all_grad = static_cast<const G*>(table.grad[k]);
      each_of_chunk<kWidth>(chunk.first, chunk.last, packs, [&](int64_t i, auto width) {
        constexpr int n = decltype(width)::value;
        W grad[n], mean[n], square[n], weights[n];
        load_as<n>(all_grad + i, grad);
        load<n>(all_mean + i, mean);
        load<n>(all_square + i, square);
        load<n>(all_weights + i, weights);
        for (int j = 0; j < n; j++) {
          W g = grad[j] * scale;
          mean[j] = table.beta1 * mean[j] + table.rest1 * g;
          square[j] = table.beta2 * square[j] + table.rest2 * (g * g);
          weights[j] =
              weights[j] * decay - size * (mean[j] / (std::sqrt(square[j]) * root + table.eps));
        }
        store<n>(all_mean + i, mean);
        store<n>(all_square + i, square);
        store<n>(all_weights + i, weights);
        if (!copy) return;
        if (table.copies[k] == DType::bf16)
          store_as<n>(reinterpret_cast<Brain*>(copy) + i, weights);
        else
          store_as<n>(reinterpret_cast<Half*>(copy) + i, weights);
      });
    }
  });
}

bool fits_step(const AdamWTensor& t) {
  bool dense = is_dense(t.weights) && is_dense(t.grad) && is_dense(t.mean) && is_dense(t.square) &&
               (!t.copy.data || is_dense(t.copy));
  bool types =
      t.weights.dtype == DType::f64
          ? t.grad.dtype == DType::f64
          : t.weights.dtype == DType::f32 && is_float(t.grad.dtype) && t.grad.dtype != DType::f64;
  return dense && types;
}

// The tensors whose weights are W.
template <typename W>
int adamw_of_type(Stream& stream, const AdamW& o, const AdamWTensor* tensors, int64_t count,
                  double grad_scale, const View* factor) {
  constexpr DType dtype = std::is_same_v<W, double> ? DType::f64 : DType::f32;
  AdamWTable<W> table;
  table.beta1 = static_cast<W>(o.beta1);
  table.beta2 = static_cast<W>(o.beta2);
  table.rest1 = static_cast<W>(1 - o.beta1);
  table.rest2 = static_cast<W>(1 - o.beta2);
  table.are_rates_on_device = count > 0 && tensors[0].rates;
  table.decay = static_cast<W>(1 - o.lr * o.weight_decay);
  table.eps = static_cast<W>(o.eps);
  table.scale = static_cast<W>(grad_scale);
  table.factor = factor ? factor->at<double>() : nullptr;
  auto run = [&] {
    int blocks = table.chunks.blocks;
    if (blocks == 0) return kDone;
    int code = launch(stream, adamw_all_kernel<W>, grid_of(blocks), kBlockThreads, 0, table);
    table.chunks.count = table.chunks.blocks = 0;
    return code;
  };
  for (int64_t i = 0; i < count; i++) {
    const AdamWTensor& t = tensors[i];
    if (t.weights.dtype != dtype || t.weights.count() == 0) continue;
    AdamWRates rates = adamw_rates(o, t.step);
    int k = table.chunks.count;
    table.weights[k] = t.weights.at<W>();
    table.mean[k] = t.mean.at<W>();
    table.square[k] = t.square.at<W>();
    table.grad[k] = t.grad.data;
    table.copy[k] = t.copy.data;
    if (table.are_rates_on_device) {
      table.rates[k] = t.rates;
    } else {
      table.known.sizes[k] = static_cast<W>(rates.size);
      table.known.roots[k] = static_cast<W>(rates.root);
    }
    table.grads[k] = t.grad.dtype;
    table.copies[k] = t.copy.dtype;
    table.chunks.add(t.weights.count());
    if (table.chunks.is_full()) FLOW_LAUNCH(run());
  }
  return run();
}

}  // namespace

int adamw_all(Stream& stream, const AdamW& options, const AdamWTensor* tensors, int64_t count,
              double grad_scale, const View* factor) {
  for (int64_t i = 0; i < count; i++)
    if (!fits_step(tensors[i])) return kUnsupported;
  FLOW_LAUNCH(adamw_of_type<float>(stream, options, tensors, count, grad_scale, factor));
  return adamw_of_type<double>(stream, options, tensors, count, grad_scale, factor);
}

int norm_of_all(Stream& stream, const View* tensors, int64_t count, double limit, const View& out) {
  if (!are_dense_floats(tensors, count)) return kUnsupported;
  int64_t all = 0;
  for (int64_t i = 0; i < count; i++) all += divide_up(tensors[i].count(), kAllChunk);
  double* parts = stream.scratch.take<double>(all);
  if (!parts) return kNeedsScratch;
  double* next = parts;
  FLOW_LAUNCH(each_table(tensors, count, [&](const TensorTable& table) {
    double* own = next;
    next += table.chunks.blocks;
    return launch(stream, squares_of_all_kernel, grid_of(table.chunks.blocks), kBlockThreads, 0,
                  table, own);
  }));
  return launch(stream, norm_of_parts_kernel, grid_of(1), kBlockThreads, 0, parts, all, limit,
                out.at<double>());
}

int scale_all(Stream& stream, const View* tensors, int64_t count, const View& factor) {
  if (!are_dense_floats(tensors, count)) return kUnsupported;
  return each_table(tensors, count, [&](const TensorTable& table) {
    return launch(stream, scale_all_kernel, grid_of(table.chunks.blocks), kBlockThreads, 0, table,
                  factor.at<double>());
  });
}

int adamw(Stream& stream, const AdamW& o, const View& weights, const View& grad, double grad_scale,
          const View& mean, const View& square, const View* copy) {
  AdamWRates rates = adamw_rates(o, o.step);
  return visit_step(weights, grad, [&](auto weight, auto gradient) {
    using W = decltype(weight);
    using G = decltype(gradient);
    AdamWOp<W, G> f{static_cast<W>(o.beta1),         static_cast<W>(o.beta2),
                    static_cast<W>(1 - o.beta1),     static_cast<W>(1 - o.beta2),
                    static_cast<W>(rates.decay),     static_cast<W>(rates.size),
                    static_cast<W>(rates.root),      static_cast<W>(o.eps),
                    static_cast<W>(grad_scale),      copy != nullptr,
                    copy ? copy->dtype : DType::bf16};
    return launch_each<kWidth>(stream, f,
                               {&grad, &mean, &square, copy ? copy : &weights, &weights});
  });
}

int sgd(Stream& stream, const Sgd& o, const View& weights, const View& grad, double grad_scale,
        const View* momentum, const View* copy) {
  return visit_step(weights, grad, [&](auto weight, auto gradient) {
    using W = decltype(weight);
    using G = decltype(gradient);
    SgdOp<W, G> f{static_cast<W>(o.lr),
                  static_cast<W>(o.momentum),
                  static_cast<W>(1 - o.dampening),
                  static_cast<W>(o.momentum),
                  static_cast<W>(o.weight_decay),
                  static_cast<W>(grad_scale),
                  momentum != nullptr,
                  o.first,
                  o.nesterov,
                  copy != nullptr,
                  copy ? copy->dtype : DType::bf16};
    return launch_each<kWidth>(
        stream, f, {&grad, momentum ? momentum : &weights, copy ? copy : &weights, &weights});
  });
}

int add_sum_of_squares(Stream& stream, const View& in, const View& out) {
  if (in.count() == 0) return kDone;
  return visit_floats(in.dtype, [&](auto type) {
    using T = decltype(type);
    Squares s{index_math_over<1>(in.shape, {in.strides}), 0, 0};
    int64_t count = s.index_math.count;
    bool packs = index_packs(s.index_math, kPack<T>, {in.data}, {sizeof(T)});
    if (packs && s.index_math.rank == 1) {
      s.single = s.index_math.count * kPack<T>;
      s.all = count;
    }
    int64_t blocks = blocks_for(s.index_math.count, kBlockThreads * 4, kSquareBlocks);
    double* parts = stream.scratch.take<double>(blocks);
    if (!parts) return kNeedsScratch;
    auto kernel = packs ? squares_kernel<kPack<T>, T> : squares_kernel<1, T>;
    FLOW_LAUNCH(launch(stream, kernel, grid_of(blocks), kBlockThreads, 0, s, in.at<T>(), parts));
    return launch(stream, add_parts_kernel, grid_of(1), kBlockThreads, 0, parts, blocks,
                  out.at<double>());
  });
}

}  // namespace flow::cuda
