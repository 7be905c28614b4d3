// Convolution, pooling and resizing. A convolution uses cuDNN if the machine has it, otherwise a
// matrix product one of whose operands is the image seen through the window; each gradient is
// gathered per destination, so the result depends on no order.
#include "kernels/cuda/cudnn.hpp"
#include "kernels/cuda/gemm.cuh"
#include "kernels/cuda/group.cuh"

namespace flow::cuda {
namespace {

// ---- convolutions

struct Window {
  int64_t n, channels, h, w;  // of x, and of one group
  int64_t outputs, oh, ow;    // of the result, of one group
  int64_t kh, kw, groups;
  int64_t stride[2], padding[2], dilation[2];
  Divide by_ow, by_oh, by_kw, by_kh, by_w, by_h;
};

// False if a number exceeds 31 bits.
bool window_of(const Conv2d& o, const View& x, const View& w, const View& out, Window& window) {
  Window v{x.shape[0],
           w.shape[1],
           x.shape[2],
           x.shape[3],
           w.shape[0] / o.groups,
           out.shape[2],
           out.shape[3],
           w.shape[2],
           w.shape[3],
           o.groups,
           {o.stride[0], o.stride[1]},
           {o.padding[0], o.padding[1]},
           {o.dilation[0], o.dilation[1]},
           {},
           {},
           {},
           {},
           {},
           {}};
  constexpr int64_t limit = (int64_t{1} << 31) - 1;
  if (v.n * v.oh * v.ow > limit || v.n * v.h * v.w > limit || v.channels * v.kh * v.kw > limit ||
      v.outputs * v.kh * v.kw > limit)
    return false;
  auto divide = [](int64_t by) { return Divide(static_cast<uint32_t>(most(by, 1))); };
  v.by_ow = divide(v.ow), v.by_oh = divide(v.oh), v.by_kw = divide(v.kw);
  v.by_kh = divide(v.kh), v.by_w = divide(v.w), v.by_h = divide(v.h);
  window = v;
  return true;
}

struct DigitSplit {
  int64_t first, second, third;  // of a number: / (b * a), / a % b, % a
};
FLOW_DEVICE DigitSplit split(int64_t number, const Divide& by_b, const Divide& by_a) {
  auto n = static_cast<uint32_t>(number);
  uint32_t over = by_a(n), first = by_b(over);
  return {first, over - first * by_b.by, n - over * by_a.by};
}

// An element of x under the window, 0 in the padding.
template <typename T>
FLOW_DEVICE Compute<T> under(const Window& v, const T* x, int64_t group, int64_t picture,
                             int64_t channel, int64_t oy, int64_t ox, int64_t ky, int64_t kx) {
  int64_t y = oy * v.stride[0] - v.padding[0] + ky * v.dilation[0];
  int64_t at = ox * v.stride[1] - v.padding[1] + kx * v.dilation[1];
  if (y < 0 || y >= v.h || at < 0 || at >= v.w) return 0;
  int64_t plane = picture * v.groups * v.channels + group * v.channels + channel;
  return convert<Compute<T>>(x[(plane * v.h + y) * v.w + at]);
}

template <typename T>
FLOW_DEVICE int64_t result_at(const Window& v, int64_t group, int64_t picture, int64_t output,
                              int64_t oy, int64_t ox) {
  int64_t plane = (picture * v.groups + group) * v.outputs + output;
  return (plane * v.oh + oy) * v.ow + ox;
}

// out[output, (picture, oy, ox)] = sum over (channel, ky, kx) of w * x
template <typename T>
struct ForwardSides {
  using C = Compute<T>;
  Window v;
  const T *x, *weights, *bias;
  int64_t bias_stride;
  T* out;

  FLOW_DEVICE int64_t origin(int64_t group) const { return group; }
  FLOW_DEVICE C a(int64_t group, int64_t output, int64_t k) const {
    return convert<C>(weights[(group * v.outputs + output) * (v.channels * v.kh * v.kw) + k]);
  }
  FLOW_DEVICE C b(int64_t group, int64_t k, int64_t column) const {
    DigitSplit in = split(k, v.by_kh, v.by_kw), to = split(column, v.by_oh, v.by_ow);
    return under(v, x, group, to.first, in.first, to.second, to.third, in.second, in.third);
  }
  FLOW_DEVICE void put(int64_t group, int64_t output, int64_t column, C sum) const {
    DigitSplit to = split(column, v.by_oh, v.by_ow);
    if (bias) sum += convert<C>(bias[(group * v.outputs + output) * bias_stride]);
    out[result_at<T>(v, group, to.first, output, to.second, to.third)] = convert<T>(sum);
  }
};

// dx[channel, (picture, y, x)] = sum over (output, ky, kx) of w * grad
template <typename T>
struct InputSides {
  using C = Compute<T>;
  Window v;
  const T *grad, *weights;
  T* dx;

  FLOW_DEVICE int64_t origin(int64_t group) const { return group; }
  FLOW_DEVICE C a(int64_t group, int64_t channel, int64_t k) const {
    DigitSplit in = split(k, v.by_kh, v.by_kw);
    int64_t output = group * v.outputs + in.first;
    return convert<C>(
        weights[((output * v.channels + channel) * v.kh + in.second) * v.kw + in.third]);
  }
  FLOW_DEVICE C b(int64_t group, int64_t k, int64_t column) const {
    DigitSplit in = split(k, v.by_kh, v.by_kw), at = split(column, v.by_h, v.by_w);
    int64_t y = at.second + v.padding[0] - in.second * v.dilation[0];
    int64_t x = at.third + v.padding[1] - in.third * v.dilation[1];
    if (y < 0 || x < 0 || y % v.stride[0] != 0 || x % v.stride[1] != 0) return 0;
    y /= v.stride[0];
    x /= v.stride[1];
    if (y >= v.oh || x >= v.ow) return 0;
    return convert<C>(grad[result_at<T>(v, group, at.first, in.first, y, x)]);
  }
  FLOW_DEVICE void put(int64_t group, int64_t channel, int64_t column, C sum) const {
    DigitSplit at = split(column, v.by_h, v.by_w);
    int64_t plane = (at.first * v.groups + group) * v.channels + channel;
    dx[(plane * v.h + at.second) * v.w + at.third] = convert<T>(sum);
  }
};

// dw[output, (channel, ky, kx)] = sum over (picture, oy, ox) of grad * x
template <typename T>
struct WeightSides {
  using C = Compute<T>;
  Window v;
  const T *grad, *x;
  T* dw;

  FLOW_DEVICE int64_t origin(int64_t group) const { return group; }
  FLOW_DEVICE C a(int64_t group, int64_t output, int64_t k) const {
    DigitSplit at = split(k, v.by_oh, v.by_ow);
    return convert<C>(grad[result_at<T>(v, group, at.first, output, at.second, at.third)]);
  }
  FLOW_DEVICE C b(int64_t group, int64_t k, int64_t column) const {
    DigitSplit at = split(k, v.by_oh, v.by_ow), in = split(column, v.by_kh, v.by_kw);
    return under(v, x, group, at.first, in.first, at.second, at.third, in.second, in.third);
  }
  FLOW_DEVICE void put(int64_t group, int64_t output, int64_t column, C sum) const {
    dw[(group * v.outputs + output) * (v.channels * v.kh * v.kw) + column] = convert<T>(sum);
  }
};

// ---- pooling

struct PoolShape {
  int64_t h, w, oh, ow;
  Pool2d o;
};

// The part of a window that is inside the image.
struct Range {
  int64_t first, last;
};
FLOW_DEVICE Range range_of(int64_t at, int64_t window, int64_t stride, int64_t padding,
                           int64_t size) {
  int64_t first = at * stride - padding;
  return {most(first, 0), least(first + window, size)};
}
// The windows that contain a position.
FLOW_DEVICE Range windows_of(int64_t at, int64_t window, int64_t stride, int64_t padding,
                             int64_t count) {
  int64_t low = at + padding - window + 1;
  return {low <= 0 ? 0 : divide_up(low, stride), least((at + padding) / stride + 1, count)};
}

template <typename T>
__global__ void __launch_bounds__(kBlockThreads)
    max_pool_kernel(PoolShape p, int64_t count, const T* x, T* out, int64_t* index) {
  for (int64_t i = thread_of_grid(); i < count; i += threads_of_grid()) {
    const T* plane = x + i / (p.oh * p.ow) * p.h * p.w;
    Range ys = range_of(i / p.ow % p.oh, p.o.window[0], p.o.stride[0], p.o.padding[0], p.h);
    Range xs = range_of(i % p.ow, p.o.window[1], p.o.stride[1], p.o.padding[1], p.w);
    int64_t best = ys.first * p.w + xs.first;
    Compute<T> value = convert<Compute<T>>(plane[best]);
    for (int64_t y = ys.first; y < ys.last; y++)
      for (int64_t at = xs.first; at < xs.last; at++) {
        auto other = convert<Compute<T>>(plane[y * p.w + at]);
        if (is_nan(value) || !(other > value || is_nan(other))) continue;
        value = other;
        best = y * p.w + at;
      }
    out[i] = plane[best];
    index[i] = best;
  }
}

template <typename C>
__global__ void __launch_bounds__(kBlockThreads) zero_kernel(C* to, int64_t count) {
  for (int64_t i = thread_of_grid(); i < count; i += threads_of_grid()) to[i] = C(0);
}

// One warp per plane, 32 results at a time: the first lane of those with the same destination adds
// all, in order.
template <typename T>
__global__ void __launch_bounds__(kBlockThreads)
    max_pool_backward_kernel(int64_t planes, int64_t size, int64_t results, const T* grad,
                             const int64_t* index, Compute<T>* sums) {
  using C = Compute<T>;
  int lane = static_cast<int>(threadIdx.x) % kWarp;
  int64_t warps = threads_of_grid() / kWarp;
  for (int64_t plane = thread_of_grid() / kWarp; plane < planes; plane += warps)
    for (int64_t first = 0; first < results; first += kWarp) {
      bool inside = first + lane < results;
      int64_t at = inside ? index[plane * results + first + lane] : -1;
      C value = inside ? convert<C>(grad[plane * results + first + lane]) : C(0), sum = 0;
      int owner = kWarp;
      for (int other = 0; other < kWarp; other++) {
        int64_t its = __shfl_sync(kAll, at, other);
        C its_value = __shfl_sync(kAll, value, other);
        if (its != at) continue;
        if (owner == kWarp) owner = other;
        sum += its_value;
      }
      if (inside && owner == lane) sums[plane * size + at] += sum;
      __syncwarp();
    }
}

template <typename T>
__global__ void __launch_bounds__(kBlockThreads)
    round_kernel(const Compute<T>* from, T* to, int64_t count) {
  for (int64_t i = thread_of_grid(); i < count; i += threads_of_grid()) to[i] = convert<T>(from[i]);
}

template <typename T>
__global__ void __launch_bounds__(kBlockThreads)
    avg_pool_kernel(PoolShape p, int64_t count, const T* x, T* out) {
  using C = Compute<T>;
  auto cells = static_cast<C>(p.o.window[0] * p.o.window[1]);
  for (int64_t i = thread_of_grid(); i < count; i += threads_of_grid()) {
    const T* plane = x + i / (p.oh * p.ow) * p.h * p.w;
    Range ys = range_of(i / p.ow % p.oh, p.o.window[0], p.o.stride[0], p.o.padding[0], p.h);
    Range xs = range_of(i % p.ow, p.o.window[1], p.o.stride[1], p.o.padding[1], p.w);
    C sum = 0;
    for (int64_t y = ys.first; y < ys.last; y++)
      for (int64_t at = xs.first; at < xs.last; at++) sum += convert<C>(plane[y * p.w + at]);
    out[i] = convert<T>(sum / cells);
  }
}

template <typename T>
__global__ void __launch_bounds__(kBlockThreads)
    avg_pool_backward_kernel(PoolShape p, int64_t count, const T* grad, T* dx) {
  using C = Compute<T>;
  auto cells = static_cast<C>(p.o.window[0] * p.o.window[1]);
  for (int64_t i = thread_of_grid(); i < count; i += threads_of_grid()) {
    const T* plane = grad + i / (p.h * p.w) * p.oh * p.ow;
    Range ys = windows_of(i / p.w % p.h, p.o.window[0], p.o.stride[0], p.o.padding[0], p.oh);
    Range xs = windows_of(i % p.w, p.o.window[1], p.o.stride[1], p.o.padding[1], p.ow);
    C sum = 0;
    for (int64_t y = ys.first; y < ys.last; y++)
      for (int64_t at = xs.first; at < xs.last; at++) sum += convert<C>(plane[y * p.ow + at]);
    dx[i] = convert<T>(sum / cells);
  }
}

// ---- resize

// The inputs of one row or column of the result: (1 - share) of `low` and share of `high`.
template <typename C>
struct InputMix {
  int64_t low, high;
  C share;
};
template <typename C>
FLOW_DEVICE InputMix<C> mix_of(bool bilinear, int64_t at, int64_t from, int64_t to) {
  if (!bilinear) {
    int64_t near = least(at * from / to, from - 1);
    return {near, near, C(0)};
  }
  C scale = static_cast<C>(from) / static_cast<C>(to);
  C source = (static_cast<C>(at) + C(0.5)) * scale - C(0.5);
  if (source < C(0)) source = 0;
  auto low = least(static_cast<int64_t>(source), from - 1);
  return {low, least(low + 1, from - 1), source - static_cast<C>(low)};
}

struct Sizes {
  int64_t h, w, oh, ow;
  bool bilinear;
};

template <typename T>
__global__ void __launch_bounds__(kBlockThreads)
    resize_kernel(Sizes s, int64_t count, const T* in, T* out) {
  using C = std::conditional_t<std::is_same_v<T, double>, double, float>;
  for (int64_t i = thread_of_grid(); i < count; i += threads_of_grid()) {
    const T* plane = in + i / (s.oh * s.ow) * s.h * s.w;
    auto y = mix_of<C>(s.bilinear, i / s.ow % s.oh, s.h, s.oh);
    auto x = mix_of<C>(s.bilinear, i % s.ow, s.w, s.ow);
    if (!s.bilinear) {
      out[i] = plane[y.low * s.w + x.low];
      continue;
    }
    auto at = [&](int64_t row, int64_t column) { return convert<C>(plane[row * s.w + column]); };
    C top = at(y.low, x.low) * (C(1) - x.share) + at(y.low, x.high) * x.share;
    C bottom = at(y.high, x.low) * (C(1) - x.share) + at(y.high, x.high) * x.share;
    C value = top * (C(1) - y.share) + bottom * y.share;
    out[i] = convert<T>(std::is_integral_v<T> ? std::rint(value) : value);
  }
}

// The results that may depend on position `at`.
FLOW_DEVICE Range consumers_of(bool bilinear, int64_t at, int64_t from, int64_t to) {
  double scale = static_cast<double>(to) / static_cast<double>(from);
  double low =
      bilinear ? (static_cast<double>(at) - 0.5) * scale - 0.5 : static_cast<double>(at) * scale;
  double high = bilinear ? (static_cast<double>(at) + 1.5) * scale - 0.5
                         : static_cast<double>(at + 1) * scale;
  return {at == 0 ? 0 : most(0, static_cast<int64_t>(low) - 1),
          at == from - 1 ? to : least(to, static_cast<int64_t>(high) + 2)};
}
template <typename C>
FLOW_DEVICE C share_of(const InputMix<C>& mix, int64_t at) {
  return (mix.low == at ? C(1) - mix.share : C(0)) + (mix.high == at ? mix.share : C(0));
}

template <typename T>
__global__ void __launch_bounds__(kBlockThreads)
    resize_backward_kernel(Sizes s, int64_t count, const T* grad, T* out) {
  using C = Compute<T>;
  for (int64_t i = thread_of_grid(); i < count; i += threads_of_grid()) {
    const T* plane = grad + i / (s.h * s.w) * s.oh * s.ow;
    int64_t row = i / s.w % s.h, column = i % s.w;
    Range ys = consumers_of(s.bilinear, row, s.h, s.oh),
          xs = consumers_of(s.bilinear, column, s.w, s.ow);
    C sum = 0;
    for (int64_t y = ys.first; y < ys.last; y++) {
      C of_row = share_of(mix_of<C>(s.bilinear, y, s.h, s.oh), row);
      if (of_row == C(0)) continue;
      for (int64_t x = xs.first; x < xs.last; x++) {
        C of_column = share_of(mix_of<C>(s.bilinear, x, s.w, s.ow), column);
        if (of_column != C(0)) sum += of_row * of_column * convert<C>(plane[y * s.ow + x]);
      }
    }
    out[i] = convert<T>(sum);
  }
}

// ---- normalize

template <typename T>
__global__ void __launch_bounds__(kBlockThreads)
    normalize_kernel(int64_t count, int64_t channels, int64_t plane, IndexMath<1> from,
                     const uint8_t* in, const float* mean, int64_t mean_stride,
                     const float* deviation, int64_t deviation_stride, T* out) {
  using C = Compute<T>;
  for (int64_t i = thread_of_grid(); i < count; i += threads_of_grid()) {
    int64_t channel = i / plane % channels, offset[1];
    // `from` is indexed as [n, c, h, w].
    from.at(i, offset);
    C value = static_cast<C>(in[offset[0]]) / C(255);
    out[i] = convert<T>((value - static_cast<C>(mean[channel * mean_stride])) /
                        static_cast<C>(deviation[channel * deviation_stride]));
  }
}

PoolShape pool_of(const Pool2d& o, const View& x, const View& out) {
  return {x.shape[2], x.shape[3], out.shape[2], out.shape[3], o};
}

}  // namespace

int conv2d(Stream& stream, const Conv2d& o, const View& x, const View& w, const View* bias,
           const View& out) {
  if (out.count() == 0) return kDone;
  int code = convolve_by_cudnn(stream, {ConvolutionDirection::forward, o, x, w, out, bias});
  if (code != kUnsupported) return code;
  Window v;
  if (!window_of(o, x, w, out, v)) return kUnsupported;
  return visit_floats(x.dtype, [&](auto type) {
    using T = decltype(type);
    ForwardSides<T> sides{v,
                          x.at<T>(),
                          w.at<T>(),
                          bias ? bias->at<T>() : nullptr,
                          bias ? bias->strides[0] : 0,
                          out.at<T>()};
    Gemm g{v.outputs, v.n * v.oh * v.ow, v.channels * v.kh * v.kw, v.groups, 1, 0, true, true};
    return launch_gemm<Compute<T>>(stream, g, sides);
  });
}

int conv2d_backward_input(Stream& stream, const Conv2d& o, const View& grad, const View& w,
                          const View& dx) {
  if (dx.count() == 0) return kDone;
  int code = convolve_by_cudnn(stream, {ConvolutionDirection::backward_input, o, dx, w, grad});
  if (code != kUnsupported) return code;
  Window v;
  if (!window_of(o, dx, w, grad, v)) return kUnsupported;
  return visit_floats(dx.dtype, [&](auto type) {
    using T = decltype(type);
    InputSides<T> sides{v, grad.at<T>(), w.at<T>(), dx.at<T>()};
    Gemm g{v.channels, v.n * v.h * v.w, v.outputs * v.kh * v.kw, v.groups, 1, 0, false, true};
    return launch_gemm<Compute<T>>(stream, g, sides);
  });
}

int conv2d_backward_weight(Stream& stream, const Conv2d& o, const View& grad, const View& x,
                           const View& dw) {
  if (dw.count() == 0) return kDone;
  int code = convolve_by_cudnn(stream, {ConvolutionDirection::backward_weight, o, x, dw, grad});
  if (code != kUnsupported) return code;
  Window v;
  if (!window_of(o, x, dw, grad, v)) return kUnsupported;
  return visit_floats(dw.dtype, [&](auto type) {
    using T = decltype(type);
    WeightSides<T> sides{v, grad.at<T>(), x.at<T>(), dw.at<T>()};
    Gemm g{v.outputs, v.channels * v.kh * v.kw, v.n * v.oh * v.ow, v.groups, 1, 0, true, false};
    return launch_gemm<Compute<T>>(stream, g, sides);
  });
}

int max_pool2d(Stream& stream, const Pool2d& o, const View& x, const View& out, const View& index) {
  if (out.count() == 0) return kDone;
  return visit_floats(x.dtype, [&](auto type) {
    using T = decltype(type);
    return launch(stream, max_pool_kernel<T>, grid_of(blocks_for(out.count())), kBlockThreads, 0,
                  pool_of(o, x, out), out.count(), x.at<T>(), out.at<T>(), index.at<int64_t>());
  });
}

int max_pool2d_backward(Stream& stream, const View& grad, const View& index, const View& dx) {
  if (dx.count() == 0) return kDone;
  return visit_floats(dx.dtype, [&](auto type) {
    using T = decltype(type);
    using C = Compute<T>;
    int64_t planes = dx.shape[0] * dx.shape[1], size = dx.shape[2] * dx.shape[3];
    dim3 grid = grid_of(blocks_for(dx.count()));
    C* sums = nullptr;
    if constexpr (std::is_same_v<T, C>) {
      sums = dx.at<C>();
    } else {
      sums = stream.scratch.take<C>(dx.count());
      if (!sums) return kNeedsScratch;
    }
    FLOW_LAUNCH(launch(stream, zero_kernel<C>, grid, kBlockThreads, 0, sums, dx.count()));
    if (grad.count() > 0)
      FLOW_LAUNCH(launch(stream, max_pool_backward_kernel<T>, grid_of(blocks_for(planes * kWarp)),
                         kBlockThreads, 0, planes, size, grad.count() / planes, grad.at<T>(),
                         index.at<int64_t>(), sums));
    if constexpr (std::is_same_v<T, C>) return kDone;
    return launch(stream, round_kernel<T>, grid, kBlockThreads, 0, sums, dx.at<T>(), dx.count());
  });
}

int avg_pool2d(Stream& stream, const Pool2d& o, const View& x, const View& out) {
  if (out.count() == 0) return kDone;
  return visit_floats(x.dtype, [&](auto type) {
    using T = decltype(type);
    return launch(stream, avg_pool_kernel<T>, grid_of(blocks_for(out.count())), kBlockThreads, 0,
                  pool_of(o, x, out), out.count(), x.at<T>(), out.at<T>());
  });
}

int avg_pool2d_backward(Stream& stream, const Pool2d& o, const View& grad, const View& dx) {
  if (dx.count() == 0) return kDone;
  return visit_floats(dx.dtype, [&](auto type) {
    using T = decltype(type);
    return launch(stream, avg_pool_backward_kernel<T>, grid_of(blocks_for(dx.count())),
                  kBlockThreads, 0, pool_of(o, dx, grad), dx.count(), grad.at<T>(), dx.at<T>());
  });
}

int resize(Stream& stream, bool bilinear, const View& in, const View& out) {
  if (out.count() == 0) return kDone;
  Sizes s{in.shape[2], in.shape[3], out.shape[2], out.shape[3], bilinear};
  auto run = [&](auto type) {
    using T = decltype(type);
    return launch(stream, resize_kernel<T>, grid_of(blocks_for(out.count())), kBlockThreads, 0, s,
                  out.count(), in.at<T>(), out.at<T>());
  };
  if (in.dtype == DType::u8) return run(uint8_t{});
  return is_float(in.dtype) ? visit_float(in.dtype, run) : kUnsupported;
}

int resize_backward(Stream& stream, bool bilinear, const View& grad, const View& out) {
  if (out.count() == 0) return kDone;
  Sizes s{out.shape[2], out.shape[3], grad.shape[2], grad.shape[3], bilinear};
  return visit_floats(out.dtype, [&](auto type) {
    using T = decltype(type);
    return launch(stream, resize_backward_kernel<T>, grid_of(blocks_for(out.count())),
                  kBlockThreads, 0, s, out.count(), grad.at<T>(), out.at<T>());
  });
}

int normalize(Stream& stream, const View& in, const View& mean, const View& deviation,
              const View& out) {
  if (out.count() == 0) return kDone;
  const int order[] = {0, 3, 1, 2};
  View from = permute(in, order);
  return visit_floats(out.dtype, [&](auto type) {
    using T = decltype(type);
    return launch(stream, normalize_kernel<T>, grid_of(blocks_for(out.count())), kBlockThreads, 0,
                  out.count(), out.shape[1], out.shape[2] * out.shape[3],
                  index_math_over<1>(from.shape, {from.strides}), in.at<uint8_t>(),
                  mean.at<float>(), mean.strides[0], deviation.at<float>(), deviation.strides[0],
                  out.at<T>());
  });
}

}  // namespace flow::cuda
