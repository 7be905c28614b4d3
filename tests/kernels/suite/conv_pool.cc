// Convolutions, pooling, resizing: every result by its definition, every gradient by the transpose
// of the definition.
#include "tests/kernels/suite/suite.hpp"

namespace flow::suite {
namespace {

struct Convolution {
  int64_t n, c, h, w, outputs, kh, kw;
  Conv2d o;
};

std::string text(DType dtype, const Shape& x, const Shape& out) {
  return std::string(dtype_name(dtype)) + " " + text_of(x) + " to " + text_of(out);
}

void check_conv(Suite& s, DType dtype, const Convolution& c) {
  auto size = [](int64_t in, int64_t k, int64_t stride, int64_t padding, int64_t dilation) {
    return (in + 2 * padding - dilation * (k - 1) - 1) / stride + 1;
  };
  int64_t oh = size(c.h, c.kh, c.o.stride[0], c.o.padding[0], c.o.dilation[0]);
  int64_t ow = size(c.w, c.kw, c.o.stride[1], c.o.padding[1], c.o.dilation[1]);
  int64_t per = c.c / c.o.groups, outs = c.outputs / c.o.groups;
  Shape of_x{c.n, c.c, c.h, c.w}, of_w{c.outputs, per, c.kh, c.kw}, of_out{c.n, c.outputs, oh, ow};
  Array x = s.filled(dtype, of_x), w = s.filled(dtype, of_w), bias = s.filled(dtype, {c.outputs});
  Array out(dtype, of_out), grad = s.filled(dtype, of_out), dx(dtype, of_x), dw(dtype, of_w);
  bool has_bias = s.integer(0, 1) == 1;
  std::vector<double> want(static_cast<size_t>(out.count()));
  std::vector<double> dxs(static_cast<size_t>(x.count())), dws(static_cast<size_t>(w.count()));
  for (int64_t i = 0; i < out.count(); i++) {
    int64_t ox = i % ow, oy = i / ow % oh, output = i / ow / oh % c.outputs,
            picture = i / ow / oh / c.outputs;
    double sum = has_bias ? bias.at(output) : 0;
    for (int64_t channel = 0; channel < per; channel++)
      for (int64_t ky = 0; ky < c.kh; ky++)
        for (int64_t kx = 0; kx < c.kw; kx++) {
          int64_t y = oy * c.o.stride[0] - c.o.padding[0] + ky * c.o.dilation[0];
          int64_t at = ox * c.o.stride[1] - c.o.padding[1] + kx * c.o.dilation[1];
          if (y < 0 || y >= c.h || at < 0 || at >= c.w) continue;
          int64_t in = ((picture * c.c + output / outs * per + channel) * c.h + y) * c.w + at;
          int64_t weight = ((output * per + channel) * c.kh + ky) * c.kw + kx;
          sum += x.at(in) * w.at(weight);
          dxs[static_cast<size_t>(in)] += grad.at(i) * w.at(weight);
          dws[static_cast<size_t>(weight)] += grad.at(i) * x.at(in);
        }
    want[static_cast<size_t>(i)] = sum;
  }
  std::string what = text(dtype, of_x, of_out);
  auto root = [](int64_t terms) { return 2 + 2 * std::sqrt(static_cast<double>(terms)); };
  s.check("conv2d", &Kernels::conv2d, what, {&x, &w, &bias, &out},
          [&](const Kernels& k, Stream& stream, Views v) {
            return k.conv2d(stream, c.o, v[0], v[1], has_bias ? &v[2] : nullptr, v[3]);
          },
          {{&out, want, {}, 16, root(per * c.kh * c.kw)}});
  s.check("conv2d_backward_input", &Kernels::conv2d_backward_input, what, {&grad, &w, &dx},
          [&](const Kernels& k, Stream& stream, Views v) {
            return k.conv2d_backward_input(stream, c.o, v[0], v[1], v[2]);
          },
          {{&dx, dxs, {}, 16, root(outs * c.kh * c.kw)}});
  s.check("conv2d_backward_weight", &Kernels::conv2d_backward_weight, what, {&grad, &x, &dw},
          [&](const Kernels& k, Stream& stream, Views v) {
            return k.conv2d_backward_weight(stream, c.o, v[0], v[1], v[2]);
          },
          {{&dw, dws, {}, 64, root(c.n * oh * ow)}});
}

void check_pool(Suite& s, DType dtype, const Shape& of_x, const Pool2d& o) {
  int64_t h = of_x[2], w = of_x[3];
  int64_t oh = (h + 2 * o.padding[0] - o.window[0]) / o.stride[0] + 1;
  int64_t ow = (w + 2 * o.padding[1] - o.window[1]) / o.stride[1] + 1;
  Shape of_out{of_x[0], of_x[1], oh, ow};
  Array x = s.filled(dtype, of_x), most(dtype, of_out), mean(dtype, of_out);
  Array index(DType::i64, of_out), grad = s.filled(dtype, of_out), dx(dtype, of_x);
  for (int64_t i = 0; i < x.count(); i++) x.set(i, std::rint(x.at(i) * 2));  // with duplicates
  if (x.count() > 10) x.set(7, NAN);
  std::vector<double> mosts, means, most_dx(static_cast<size_t>(x.count())), mean_dx(most_dx);
  std::vector<int64_t> places;
  auto cells = static_cast<double>(o.window[0] * o.window[1]);
  for (int64_t i = 0; i < most.count(); i++) {
    int64_t base = i / ow / oh * h * w, best = -1;
    double sum = 0;
    for (int64_t ky = 0; ky < o.window[0]; ky++)
      for (int64_t kx = 0; kx < o.window[1]; kx++) {
        int64_t y = i / ow % oh * o.stride[0] - o.padding[0] + ky;
        int64_t at = i % ow * o.stride[1] - o.padding[1] + kx;
        if (y < 0 || y >= h || at < 0 || at >= w) continue;
        double value = x.at(base + y * w + at);
        sum += value;
        mean_dx[static_cast<size_t>(base + y * w + at)] += grad.at(i) / cells;
        double held = best < 0 ? 0 : x.at(base + best);
        if (best < 0 || (!std::isnan(held) && (value > held || std::isnan(value))))
          best = y * w + at;
      }
    places.push_back(best);
    mosts.push_back(x.at(base + best));
    means.push_back(sum / cells);
    most_dx[static_cast<size_t>(base + best)] += grad.at(i);
  }
  std::string what = text(dtype, of_x, of_out);
  s.check("max_pool2d", &Kernels::max_pool2d, what, {&x, &most, &index},
          [&](const Kernels& k, Stream& stream, Views v) {
            return k.max_pool2d(stream, o, v[0], v[1], v[2]);
          },
          {{&most, mosts, {}, 0}, {&index, {}, places, 0}});
  for (size_t i = 0; i < places.size(); i++) index.set_integer(static_cast<int64_t>(i), places[i]);
  s.check("max_pool2d_backward", &Kernels::max_pool2d_backward, what, {&grad, &index, &dx},
          [](const Kernels& k, Stream& stream, Views v) {
            return k.max_pool2d_backward(stream, v[0], v[1], v[2]);
          },
          {{&dx, most_dx, {}, 16, 4}});
  s.check("avg_pool2d", &Kernels::avg_pool2d, what, {&x, &mean},
          [&](const Kernels& k, Stream& stream, Views v) {
            return k.avg_pool2d(stream, o, v[0], v[1]);
          },
          {{&mean, means, {}, 16, 4}});
  s.check("avg_pool2d_backward", &Kernels::avg_pool2d_backward, what, {&grad, &dx},
          [&](const Kernels& k, Stream& stream, Views v) {
            return k.avg_pool2d_backward(stream, o, v[0], v[1]);
          },
          {{&dx, mean_dx, {}, 16, 4}});
}

void check_resize(Suite& s, DType dtype, const Shape& of_in, int64_t oh, int64_t ow) {
  int64_t h = of_in[2], w = of_in[3];
  Shape of_out{of_in[0], of_in[1], oh, ow};
  for (bool bilinear : {true, false}) {
    Array in = s.filled(dtype, of_in), out(dtype, of_out), grad = s.filled(dtype, of_out);
    Array dx(dtype, of_in);
    std::vector<double> want, dxs(static_cast<size_t>(in.count()));
    auto source = [](int64_t at, int64_t from, int64_t to) {
      return std::max(0.0, (static_cast<double>(at) + 0.5) * static_cast<double>(from) /
                                   static_cast<double>(to) -
                               0.5);
    };
    for (int64_t i = 0; i < out.count(); i++) {
      int64_t base = i / ow / oh * h * w, oy = i / ow % oh, ox = i % ow;
      double sum = 0;
      auto add = [&](int64_t y, int64_t x, double share) {
        sum += share * in.at(base + y * w + x);
        dxs[static_cast<size_t>(base + y * w + x)] += share * grad.at(i);
      };
      if (!bilinear) {
        add(oy * h / oh, ox * w / ow, 1);
      } else {
        double y = source(oy, h, oh), x = source(ox, w, ow);
        auto top = static_cast<int64_t>(y), left = static_cast<int64_t>(x);
        double of_y = y - static_cast<double>(top), of_x = x - static_cast<double>(left);
        int64_t bottom = std::min(top + 1, h - 1), right = std::min(left + 1, w - 1);
        add(top, left, (1 - of_y) * (1 - of_x));
        add(top, right, (1 - of_y) * of_x);
        add(bottom, left, of_y * (1 - of_x));
        add(bottom, right, of_y * of_x);
      }
      want.push_back(dtype == DType::u8 ? std::rint(sum) : sum);
    }
    s.check("resize", &Kernels::resize, text(dtype, of_in, of_out), {&in, &out},
            [&](const Kernels& k, Stream& stream, Views v) {
              return k.resize(stream, bilinear, v[0], v[1]);
            },
            {{&out, want, {}, 64, 4}});
    if (dtype == DType::u8) continue;
    s.check("resize_backward", &Kernels::resize_backward, text(dtype, of_in, of_out), {&grad, &dx},
            [&](const Kernels& k, Stream& stream, Views v) {
              return k.resize_backward(stream, bilinear, v[0], v[1]);
            },
            {{&dx, dxs, {}, 256, 16}});
  }
}

void check_normalize(Suite& s, DType dtype) {
  Array in(DType::u8, {2, 5, 7, 3}), mean = s.filled(DType::f32, {3}, Layout::dense, 0, 1);
  Array deviation = s.filled(DType::f32, {3}, Layout::dense, 0.2, 1), out(dtype, {2, 3, 5, 7});
  for (int64_t i = 0; i < in.count(); i++) in.set_integer(i, s.integer(0, 255));
  std::vector<double> want;
  for (int64_t i = 0; i < out.count(); i++) {
    int64_t channel = i / 35 % 3, pixel = i / 105 * 35 + i % 35;
    want.push_back((in.at(pixel * 3 + channel) / 255 - mean.at(channel)) / deviation.at(channel));
  }
  s.check("normalize", &Kernels::normalize, dtype_name(dtype), {&in, &mean, &deviation, &out},
          [](const Kernels& k, Stream& stream, Views v) {
            return k.normalize(stream, v[0], v[1], v[2], v[3]);
          },
          {{&out, want, {}, 16, 2}});
}

}  // namespace

void check_conv_pool(Suite& s) {
  const Convolution convolutions[] = {
      {1, 1, 3, 3, 1, 1, 1, {}},
      {2, 3, 9, 8, 4, 3, 3, {{1, 1}, {1, 1}, {1, 1}, 1}},
      {1, 4, 11, 7, 6, 3, 2, {{2, 3}, {1, 0}, {2, 1}, 2}},
      {3, 6, 5, 5, 6, 3, 3, {{1, 2}, {2, 1}, {1, 2}, 6}},
      {4, 2, 40, 40, 3, 5, 5, {{2, 2}, {2, 2}, {1, 1}, 1}},
      {0, 2, 4, 4, 3, 3, 3, {{1, 1}, {1, 1}, {1, 1}, 1}},
  };
  for (DType dtype : kFloats) {
    for (const Convolution& c : convolutions) check_conv(s, dtype, c);
    check_pool(s, dtype, {2, 3, 6, 8}, {{2, 2}, {2, 2}, {0, 0}});
    check_pool(s, dtype, {1, 2, 13, 11}, {{3, 2}, {2, 1}, {1, 1}});
    check_pool(s, dtype, {2, 1, 20, 9}, {{3, 3}, {1, 1}, {1, 1}});
    check_pool(s, dtype, {0, 1, 4, 4}, {{2, 2}, {2, 2}, {0, 0}});
    check_resize(s, dtype, {1, 2, 4, 6}, 8, 12);
    check_resize(s, dtype, {2, 1, 9, 7}, 3, 5);
    check_resize(s, dtype, {1, 1, 1, 3}, 5, 1);
    check_resize(s, dtype, {1, 1, 13, 10}, 29, 3);
    check_normalize(s, dtype);
  }
  check_resize(s, DType::u8, {1, 3, 6, 8}, 3, 16);
  check_resize(s, DType::u8, {1, 3, 8, 8}, 8, 8);
}

}  // namespace flow::suite
