// Image operations except convolutions, plane by plane.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/compute_tensor.hpp"

namespace flow::cpu {
namespace {

// Calls f(T{}, plane) for each plane of n * c; T is the compute type.
template <typename F>
void for_planes(Stream& stream, const View& view, int64_t work, F f) {
  int64_t planes = view.shape[0] * view.shape[1];
  int64_t grain = std::max<int64_t>(1, kGrainCheap / std::max<int64_t>(1, work));
  parallel_for(stream.threads, planes, grain, [&](int64_t first, int64_t last) {
    for (int64_t plane = first; plane < last; plane++) {
      if (view.dtype == DType::f64) {
        f(double{}, plane);
      } else {
        f(float{}, plane);
      }
    }
  });
}

int64_t plane_of(const View& view) { return view.shape[2] * view.shape[3]; }

int max_pool2d(Stream& stream, const Pool2d& options, const View& x, const View& out,
               const View& index) {
  if (!is_float(x.dtype)) return kUnsupported;
  ComputeTensor from(stream, x, OperandAccess::read), to(stream, out, OperandAccess::write);
  if (!from.fits() || !to.fits()) return kNeedsScratch;
  from.begin(stream);
  int64_t height = x.shape[2], width = x.shape[3];
  for_planes(stream, x, plane_of(out) * options.window[0] * options.window[1],
             [&](auto type, int64_t plane) {
               using T = decltype(type);
               const T* in = from.at<T>() + plane * height * width;
               int64_t at = plane * plane_of(out);
               for (int64_t oy = 0; oy < out.shape[2]; oy++) {
                 for (int64_t ox = 0; ox < out.shape[3]; ox++, at++) {
                   int64_t top = oy * options.stride[0] - options.padding[0],
                           left = ox * options.stride[1] - options.padding[1];
                   int64_t bottom = std::min(top + options.window[0], height),
                           right = std::min(left + options.window[1], width);
                   T best = -std::numeric_limits<T>::infinity();
                   int64_t where = -1;
                   for (int64_t y = std::max<int64_t>(top, 0); y < bottom; y++) {
                     for (int64_t i = std::max<int64_t>(left, 0); i < right; i++) {
                       T value = in[y * width + i];
                       if (where < 0 || value > best || (value != value && best == best)) {
                         best = value;
                         where = y * width + i;
                       }
                     }
                   }
                   to.at<T>()[at] = best;
                   index.at<int64_t>()[at] = where;
                 }
               }
             });
  return to.end(stream);
}

int max_pool2d_backward(Stream& stream, const View& grad, const View& index, const View& dx) {
  if (!is_float(grad.dtype)) return kUnsupported;
  ComputeTensor grads(stream, grad, OperandAccess::read), to(stream, dx, OperandAccess::write);
  if (!grads.fits() || !to.fits()) return kNeedsScratch;
  grads.begin(stream);
  for_planes(stream, dx, plane_of(dx) + plane_of(grad), [&](auto type, int64_t plane) {
    using T = decltype(type);
    T* out = to.at<T>() + plane * plane_of(dx);
    std::fill(out, out + plane_of(dx), T(0));
    for (int64_t i = plane * plane_of(grad); i < (plane + 1) * plane_of(grad); i++) {
      int64_t where = index.at<int64_t>()[i];
      if (where >= 0) out[where] += grads.at<T>()[i];
    }
  });
  return to.end(stream);
}

// Calls f(output position, top, bottom, left, right) with the part of each window that is inside
// the image.
template <typename F>
void for_windows(const Pool2d& options, const View& x, const View& out, F f) {
  int64_t at = 0;
  for (int64_t oy = 0; oy < out.shape[2]; oy++) {
    for (int64_t ox = 0; ox < out.shape[3]; ox++, at++) {
      int64_t top = oy * options.stride[0] - options.padding[0],
              left = ox * options.stride[1] - options.padding[1];
      f(at, std::max<int64_t>(top, 0), std::min(top + options.window[0], x.shape[2]),
        std::max<int64_t>(left, 0), std::min(left + options.window[1], x.shape[3]));
    }
  }
}

int avg_pool2d(Stream& stream, const Pool2d& options, const View& x, const View& out) {
  if (!is_float(x.dtype)) return kUnsupported;
  ComputeTensor from(stream, x, OperandAccess::read), to(stream, out, OperandAccess::write);
  if (!from.fits() || !to.fits()) return kNeedsScratch;
  from.begin(stream);
  int64_t size = options.window[0] * options.window[1];
  for_planes(stream, x, plane_of(out) * size, [&](auto type, int64_t plane) {
    using T = decltype(type);
    const T* in = from.at<T>() + plane * plane_of(x);
    T* made = to.at<T>() + plane * plane_of(out);
    for_windows(options, x, out,
                [&](int64_t at, int64_t top, int64_t bottom, int64_t left, int64_t right) {
                  T sum = 0;
                  for (int64_t y = top; y < bottom; y++)
                    for (int64_t i = left; i < right; i++) sum += in[y * x.shape[3] + i];
                  made[at] = sum / static_cast<T>(size);
                });
  });
  return to.end(stream);
}

int avg_pool2d_backward(Stream& stream, const Pool2d& options, const View& grad, const View& dx) {
  if (!is_float(grad.dtype)) return kUnsupported;
  ComputeTensor grads(stream, grad, OperandAccess::read), to(stream, dx, OperandAccess::write);
  if (!grads.fits() || !to.fits()) return kNeedsScratch;
  grads.begin(stream);
  int64_t size = options.window[0] * options.window[1];
  for_planes(stream, dx, plane_of(dx) + plane_of(grad) * size, [&](auto type, int64_t plane) {
    using T = decltype(type);
    const T* grad_data = grads.at<T>() + plane * plane_of(grad);
    T* made = to.at<T>() + plane * plane_of(dx);
    std::fill(made, made + plane_of(dx), T(0));
    for_windows(options, dx, grad,
                [&](int64_t at, int64_t top, int64_t bottom, int64_t left, int64_t right) {
                  T part = grad_data[at] / static_cast<T>(size);
                  for (int64_t y = top; y < bottom; y++)
                    for (int64_t i = left; i < right; i++) made[y * dx.shape[3] + i] += part;
                });
  });
  return to.end(stream);
}

// The two inputs between which an output's center is.
template <typename T>
struct Interpolation {
  int64_t low, high;
  T part;  // weight of `high`
};

template <typename T>
Interpolation<T> between(int64_t i, int64_t from, int64_t to) {
  T at = (static_cast<T>(i) + T(0.5)) * (static_cast<T>(from) / static_cast<T>(to)) - T(0.5);
  at = std::max(at, T(0));
  int64_t low = std::min(static_cast<int64_t>(at), from - 1);
  return {low, std::min(low + 1, from - 1), at - static_cast<T>(low)};
}

int64_t nearest(int64_t i, int64_t from, int64_t to) { return i * from / to; }

template <typename E, typename T>
E rounded(T value) {
  if constexpr (std::is_same_v<E, uint8_t>) {
    return convert<uint8_t>(std::rint(value));
  } else {
    return value;
  }
}

template <typename E, typename T>
void resize_plane(bool bilinear, const E* in, const View& x, E* out, const View& made) {
  int64_t height = x.shape[2], width = x.shape[3], rows = made.shape[2], columns = made.shape[3];
  for (int64_t oy = 0; oy < rows; oy++) {
    if (!bilinear) {
      const E* row = in + nearest(oy, height, rows) * width;
      for (int64_t ox = 0; ox < columns; ox++)
        out[oy * columns + ox] = row[nearest(ox, width, columns)];
      continue;
    }
    auto y = between<T>(oy, height, rows);
    const E *upper = in + y.low * width, *lower = in + y.high * width;
    for (int64_t ox = 0; ox < columns; ox++) {
      auto i = between<T>(ox, width, columns);
      T top =
          static_cast<T>(upper[i.low]) * (T(1) - i.part) + static_cast<T>(upper[i.high]) * i.part;
      T bottom =
          static_cast<T>(lower[i.low]) * (T(1) - i.part) + static_cast<T>(lower[i.high]) * i.part;
      out[oy * columns + ox] = rounded<E, T>(top * (T(1) - y.part) + bottom * y.part);
    }
  }
}

int resize(Stream& stream, bool bilinear, const View& in, const View& out) {
  if (!is_float(in.dtype) && in.dtype != DType::u8) return kUnsupported;
  ComputeTensor from(stream, in, OperandAccess::read), to(stream, out, OperandAccess::write);
  if (!from.fits() || !to.fits()) return kNeedsScratch;
  if (out.count() == 0 || in.count() == 0) return kDone;
  from.begin(stream);
  for_planes(stream, out, plane_of(out) * 4, [&](auto type, int64_t plane) {
    using T = decltype(type);
    if (in.dtype == DType::u8) {
      resize_plane<uint8_t, float>(bilinear, from.at<uint8_t>() + plane * plane_of(in), in,
                                   to.at<uint8_t>() + plane * plane_of(out), out);
    } else {
      resize_plane<T, T>(bilinear, from.at<T>() + plane * plane_of(in), in,
                         to.at<T>() + plane * plane_of(out), out);
    }
  });
  return to.end(stream);
}

int resize_backward(Stream& stream, bool bilinear, const View& grad, const View& out) {
  if (!is_float(grad.dtype)) return kUnsupported;
  ComputeTensor grads(stream, grad, OperandAccess::read), to(stream, out, OperandAccess::write);
  if (!grads.fits() || !to.fits()) return kNeedsScratch;
  grads.begin(stream);
  int64_t height = out.shape[2], width = out.shape[3], rows = grad.shape[2],
          columns = grad.shape[3];
  for_planes(stream, out, plane_of(grad) * 4 + plane_of(out), [&](auto type, int64_t plane) {
    using T = decltype(type);
    const T* grad_data = grads.at<T>() + plane * plane_of(grad);
    T* made = to.at<T>() + plane * plane_of(out);
    std::fill(made, made + plane_of(out), T(0));
    if (height == 0 || width == 0) return;
    for (int64_t oy = 0; oy < rows; oy++) {
      for (int64_t ox = 0; ox < columns; ox++) {
        T value = grad_data[oy * columns + ox];
        if (!bilinear) {
          made[nearest(oy, height, rows) * width + nearest(ox, width, columns)] += value;
          continue;
        }
        auto y = between<T>(oy, height, rows);
        auto i = between<T>(ox, width, columns);
        T upper = value * (T(1) - y.part), lower = value * y.part;
        made[y.low * width + i.low] += upper * (T(1) - i.part);
        made[y.low * width + i.high] += upper * i.part;
        made[y.high * width + i.low] += lower * (T(1) - i.part);
        made[y.high * width + i.high] += lower * i.part;
      }
    }
  });
  return to.end(stream);
}

int normalize(Stream& stream, const View& in, const View& mean, const View& deviation,
              const View& out) {
  if (!is_float(out.dtype) || in.dtype != DType::u8) return kUnsupported;
  ComputeTensor to(stream, out, OperandAccess::write);
  if (!to.fits()) return kNeedsScratch;
  int64_t channels = out.shape[1];
  for_planes(stream, out, plane_of(out), [&](auto type, int64_t plane) {
    using T = decltype(type);
    int64_t channel = plane % channels;
    T middle = static_cast<T>(mean.at<float>()[channel * mean.strides[0]]);
    T scale = static_cast<T>(deviation.at<float>()[channel * deviation.strides[0]]);
    T* made = to.at<T>() + plane * plane_of(out);
    for (int64_t y = 0; y < out.shape[2]; y++) {
      const uint8_t* from = in.at<uint8_t>() + plane / channels * in.strides[0] +
                            y * in.strides[1] + channel * in.strides[3];
      for (int64_t i = 0; i < out.shape[3]; i++)
        made[y * out.shape[3] + i] =
            (static_cast<T>(from[i * in.strides[2]]) / T(255) - middle) / scale;
    }
  });
  return to.end(stream);
}

}  // namespace

void add_conv_pool_rows(Kernels& table) {
  table.max_pool2d = max_pool2d;
  table.max_pool2d_backward = max_pool2d_backward;
  table.avg_pool2d = avg_pool2d;
  table.avg_pool2d_backward = avg_pool2d_backward;
  table.resize = resize;
  table.resize_backward = resize_backward;
  table.normalize = normalize;
}

}  // namespace flow::cpu
