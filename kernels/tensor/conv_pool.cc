// Convolution, pooling and resizing of [n, c, h, w].
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "kernels/shared/types.hpp"
#include "kernels/tensor/autograd.hpp"
#include "kernels/tensor/ops.hpp"

namespace flow::tensors {
namespace {

using kernels::Conv2d;
using kernels::is_float;
using kernels::Pool2d;

Tensor floats(const Tensor& x) { return is_float(x.dtype()) ? x : cast(x, DType::f32); }

void check_picture(const char* name, const Tensor& x) {
  if (x.rank() != 4)
    throw TensorError(
        fmt::format("{} takes images [n, channels, height, width], not {}", name, text_of(x)));
}

int64_t steps_of(int64_t size, int64_t window, int64_t stride, int64_t padding, int64_t dilation) {
  int64_t room = size + 2 * padding - dilation * (window - 1) - 1;
  return room < 0 ? 0 : room / stride + 1;
}

constexpr int64_t kStepMax = (int64_t{1} << 31) - 1;  // products of two and their sums are exact

void check_options(const char* name, const int64_t* window, const int64_t* stride,
                   const int64_t* padding) {
  for (int i = 0; i < 2; i++) {
    if (window[i] < 1 || stride[i] < 1 || padding[i] < 0)
      throw TensorError(
          fmt::format("{} takes a window and a stride of 1 or more and a padding of 0 or "
                      "more, not {}, {} and {}",
                      name, window[i], stride[i], padding[i]));
    if (int64_t most = std::max({window[i], stride[i], padding[i]}); most > kStepMax)
      throw TensorError(fmt::format("{} takes a window, a stride and a padding of up to {}, not {}",
                                    name, kStepMax, most));
  }
}

Shape pooled_shape(const char* name, const Tensor& x, const Pool2d& options) {
  check_picture(name, x);
  check_options(name, options.window, options.stride, options.padding);
  Shape shape = x.shape();
  for (int i = 0; i < 2; i++) {
    if (options.padding[i] > options.window[i] / 2)
      throw TensorError(fmt::format("{}: a padding of {} is more than half of the window of {}",
                                    name, options.padding[i], options.window[i]));
    shape[2 + i] =
        steps_of(x.size(2 + i), options.window[i], options.stride[i], options.padding[i], 1);
    if (shape[2 + i] < 1)
      throw TensorError(
          fmt::format("{}: the window is larger than {} and its padding", name, text_of(x)));
  }
  return shape;
}

}  // namespace

Tensor conv2d(const Tensor& given, const Tensor& given_weight, const Tensor& given_bias,
              const Conv2d& options) {
  check_together("conv2d", {given, given_weight, given_bias});
  check_picture("conv2d", given);
  Tensor x = floats(given);
  DType dtype = common_type(x.dtype(), given_weight.dtype());
  if (runtime().casts && dtype != DType::f64) dtype = runtime().cast_type;
  x = contiguous(cast(x, dtype));
  Tensor weight = contiguous(cast(given_weight, dtype));
  Tensor bias = given_bias ? contiguous(cast(given_bias, dtype)) : Tensor();
  bool fits = weight.rank() == 4 && options.groups >= 1 && x.size(1) % options.groups == 0 &&
              weight.size(0) % options.groups == 0 &&
              weight.size(1) * options.groups == x.size(1) &&
              (!bias || bias.shape() == Shape{weight.size(0)});
  if (!fits)
    throw TensorError(
        fmt::format("conv2d of {} in {} groups takes a weight [outputs, channels / groups, "
                    "height, width] and a bias [outputs], not {}{}",
                    text_of(given), options.groups, text_of(given_weight),
                    given_bias ? " and " + text_of(given_bias) : ""));
  int64_t window[2] = {weight.size(2), weight.size(3)};
  check_options("conv2d", window, options.stride, options.padding);
  check_options("conv2d's dilation", options.dilation, options.stride, options.padding);
  Shape shape{x.size(0), weight.size(0), 0, 0};
  for (int i = 0; i < 2; i++) {
    shape[2 + i] = steps_of(x.size(2 + i), window[i], options.stride[i], options.padding[i],
                            options.dilation[i]);
    if (shape[2 + i] < 1)
      throw TensorError(fmt::format("conv2d: the window of {} is larger than {} and its padding",
                                    text_of(weight), text_of(given)));
  }
  Tensor out = Tensor::empty(dtype, shape, x.device());
  View of_bias;
  if (bias) of_bias = bias.view();
  call(x.device(), &Kernels::conv2d, "conv2d", options, x.view(), weight.view(),
       bias ? &of_bias : nullptr, out.view());
  if (!is_recording(x, weight, bias)) return out;
  return record("conv2d", out, {x, weight, bias},
                [options, x = SavedTensor(x), w = SavedTensor(weight)](const Tensor& given_grad,
                                                                       Gradients& to) {
                  Tensor grad = contiguous(given_grad), in = x.get(), kernel = w.get();
                  if (to.wants(0)) {
                    Tensor dx = Tensor::empty(in.dtype(), in.shape(), in.device());
                    call(in.device(), &Kernels::conv2d_backward_input, "conv2d", options,
                         grad.view(), kernel.view(), dx.view());
                    to.set(0, dx);
                  }
                  if (to.wants(1)) {
                    Tensor dw = Tensor::empty(in.dtype(), kernel.shape(), in.device());
                    call(in.device(), &Kernels::conv2d_backward_weight, "conv2d", options,
                         grad.view(), in.view(), dw.view());
                    to.set(1, dw);
                  }
                  if (to.wants(2)) to.set(2, reduce(Reduce::sum, grad, {0, 2, 3}));
                });
}

Tensor max_pool2d(const Tensor& given, const Pool2d& options) {
  Tensor x = contiguous(floats(given));
  Shape shape = pooled_shape("max_pool2d", x, options);
  Tensor out = Tensor::empty(x.dtype(), shape, x.device());
  Tensor index = Tensor::empty(DType::i64, shape, x.device());
  call(x.device(), &Kernels::max_pool2d, "max_pool2d", options, x.view(), out.view(), index.view());
  if (!is_recording(x)) return out;
  return record(
      "max_pool2d", out, {x},
      [of_x = x.shape(), index = SavedTensor(index)](const Tensor& given_grad, Gradients& to) {
        Tensor grad = contiguous(given_grad);
        Tensor dx = Tensor::empty(grad.dtype(), of_x, grad.device());
        call(grad.device(), &Kernels::max_pool2d_backward, "max_pool2d", grad.view(),
             index.get().view(), dx.view());
        to.set(0, dx);
      });
}

Tensor avg_pool2d(const Tensor& given, const Pool2d& options) {
  Tensor x = contiguous(floats(given));
  Shape shape = pooled_shape("avg_pool2d", x, options);
  Tensor out = Tensor::empty(x.dtype(), shape, x.device());
  call(x.device(), &Kernels::avg_pool2d, "avg_pool2d", options, x.view(), out.view());
  if (!is_recording(x)) return out;
  return record("avg_pool2d", out, {x},
                [options, of_x = x.shape()](const Tensor& given_grad, Gradients& to) {
                  Tensor grad = contiguous(given_grad);
                  Tensor dx = Tensor::empty(grad.dtype(), of_x, grad.device());
                  call(grad.device(), &Kernels::avg_pool2d_backward, "avg_pool2d", options,
                       grad.view(), dx.view());
                  to.set(0, dx);
                });
}

Tensor resize(const Tensor& given, int64_t height, int64_t width, bool bilinear) {
  check_picture("resize", given);
  if (height < 1 || width < 1 || given.size(2) < 1 || given.size(3) < 1)
    throw TensorError(fmt::format("resize of {} to {} by {}: all sides are 1 or more",
                                  text_of(given), height, width));
  Tensor x = contiguous(given.dtype() == DType::u8 ? given : floats(given));
  Shape shape{x.size(0), x.size(1), height, width};
  Tensor out = Tensor::empty(x.dtype(), shape, x.device());
  call(x.device(), &Kernels::resize, "resize", bilinear, x.view(), out.view());
  if (!is_recording(x)) return out;
  return record(
      "resize", out, {x}, [bilinear, of_x = x.shape()](const Tensor& given_grad, Gradients& to) {
        Tensor grad = contiguous(given_grad);
        Tensor dx = Tensor::empty(grad.dtype(), of_x, grad.device());
        call(grad.device(), &Kernels::resize_backward, "resize", bilinear, grad.view(), dx.view());
        to.set(0, dx);
      });
}

Tensor normalize(const Tensor& x, const Tensor& given_mean, const Tensor& given_deviation) {
  check_together("normalize", {x, given_mean, given_deviation});
  if (x.rank() != 4 || x.dtype() != DType::u8)
    throw TensorError(fmt::format(
        "normalize takes images of u8, [n, height, width, channels], not {}", text_of(x)));
  Shape channels{x.size(3)};
  Tensor mean = contiguous(cast(given_mean, DType::f32));
  Tensor deviation = contiguous(cast(given_deviation, DType::f32));
  if (!(mean.shape() == channels) || !(deviation.shape() == channels))
    throw TensorError(
        fmt::format("normalize of {} takes a mean and a deviation for each of the {} "
                    "channels, not {} and {}",
                    text_of(x), channels[0], text_of(mean), text_of(deviation)));
  Tensor in = contiguous(x);
  Tensor out =
      Tensor::empty(DType::f32, Shape{x.size(0), x.size(3), x.size(1), x.size(2)}, x.device());
  call(x.device(), &Kernels::normalize, "normalize", in.view(), mean.view(), deviation.view(),
       out.view());
  return out;
}

}  // namespace flow::tensors
