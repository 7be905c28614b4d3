// Optimizers: a step over all weights in one pass, and the sum of squares for gradient clipping.
#include "kernels/cuda/group.cuh"
#include "kernels/cuda/launchers.hpp"

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

}  // namespace

int adamw(Stream& stream, const AdamW& o, const View& weights, const View& grad, double grad_scale,
          const View& mean, const View& square, const View* copy) {
  auto step = static_cast<double>(o.step);
  double size = o.lr / (1 - std::pow(o.beta1, step));
  double root = 1 / std::sqrt(1 - std::pow(o.beta2, step));
  return visit_step(weights, grad, [&](auto weight, auto gradient) {
    using W = decltype(weight);
    using G = decltype(gradient);
    AdamWOp<W, G> f{static_cast<W>(o.beta1),
                    static_cast<W>(o.beta2),
                    static_cast<W>(1 - o.beta1),
                    static_cast<W>(1 - o.beta2),
                    static_cast<W>(1 - o.lr * o.weight_decay),
                    static_cast<W>(size),
                    static_cast<W>(root),
                    static_cast<W>(o.eps),
                    static_cast<W>(grad_scale),
                    copy != nullptr,
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
