// Convolutions, pooling and image resizing against simple loops in double. The backward pass is
// linear in the gradient: it must be the transpose of the forward pass.
#include <algorithm>

#include "tests/kernels/tensors.hpp"

namespace flow::kernels {
namespace {

double tolerance_of(DType dtype, double f32, double f64 = 16) {
  return dtype == DType::f32 ? f32 : dtype == DType::f64 ? f64 : 0.6;
}

TEST_CASE("a convolution equals seven loops, and its gradients are its transposes") {
  Generator random = generator("conv2d");
  struct Case {
    int64_t images, channels, height, width, outputs, high, wide;
    Conv2d options;
  };
  const Case cases[] = {
      {2, 3, 7, 6, 4, 3, 3, {{1, 1}, {1, 1}, {1, 1}, 1}},
      {1, 4, 9, 8, 6, 3, 2, {{2, 1}, {0, 2}, {1, 2}, 2}},
      {3, 6, 5, 5, 8, 1, 1, {{1, 1}, {0, 0}, {1, 1}, 1}},
      {2, 4, 5, 5, 4, 3, 3, {{2, 2}, {1, 1}, {1, 1}, 4}},
      {0, 2, 4, 4, 3, 3, 3, {{1, 1}, {1, 1}, {1, 1}, 1}},
      {1, 8, 20, 21, 16, 5, 5, {{1, 1}, {2, 2}, {1, 1}, 1}},
  };
  for (const Case& each : cases) {
    const Conv2d& o = each.options;
    int64_t per_group = each.channels / o.groups, per_output = each.outputs / o.groups;
    int64_t out_height = (each.height + 2 * o.padding[0] - o.dilation[0] * (each.high - 1) - 1) /
                             o.stride[0] +
                         1,
            out_width = (each.width + 2 * o.padding[1] - o.dilation[1] * (each.wide - 1) - 1) /
                            o.stride[1] +
                        1;
    Shape in_shape{each.images, each.channels, each.height, each.width},
        w_shape{each.outputs, per_group, each.high, each.wide},
        out_shape{each.images, each.outputs, out_height, out_width};
    // Calls f(index in out, in x, in w) for each product.
    auto for_products = [&](auto f) {
      for (int64_t at = 0; at < out_shape.count(); at++) {
        int64_t ox = at % out_width, oy = at / out_width % out_height,
                k = at / out_width / out_height % each.outputs,
                n = at / out_width / out_height / each.outputs;
        for (int64_t c = 0; c < per_group; c++)
          for (int64_t ky = 0; ky < each.high; ky++)
            for (int64_t kx = 0; kx < each.wide; kx++) {
              int64_t y = oy * o.stride[0] + ky * o.dilation[0] - o.padding[0],
                      i = ox * o.stride[1] + kx * o.dilation[1] - o.padding[1];
              if (y < 0 || i < 0 || y >= each.height || i >= each.width) continue;
              f(at,
                ((n * each.channels + k / per_output * per_group + c) * each.height + y) *
                        each.width +
                    i,
                ((k * per_group + c) * each.high + ky) * each.wide + kx);
            }
      }
    };
    for (DType dtype : kFloats) {
      Tensor x = random_tensor(random, dtype, in_shape), w = random_tensor(random, dtype, w_shape),
             bias = random_tensor(random, dtype, {each.outputs}),
             grad = random_tensor(random, dtype, out_shape), out(dtype, out_shape),
             dx(dtype, in_shape), dw(dtype, w_shape);
      auto zeros = [](const Shape& shape) {
        return std::vector<double>(static_cast<size_t>(shape.count()));
      };
      std::vector<double> y = zeros(out_shape), sx = zeros(in_shape), sw = zeros(w_shape),
                          size_y = y, size_x = sx, size_w = sw;
      for_products([&](int64_t at, int64_t in, int64_t weight) {
        auto a = static_cast<size_t>(at), b = static_cast<size_t>(in),
             c = static_cast<size_t>(weight);
        y[a] += x.get(in) * w.get(weight), size_y[a] += std::fabs(x.get(in) * w.get(weight));
        sx[b] += grad.get(at) * w.get(weight), size_x[b] += std::fabs(grad.get(at) * w.get(weight));
        sw[c] += grad.get(at) * x.get(in), size_w[c] += std::fabs(grad.get(at) * x.get(in));
      });
      for_setups([&](Runner& runner) {
        for (bool biased : {false, true}) {
          out.poison();
          REQUIRE(runner([&](Stream& s) {
                    return table().conv2d(s, o, x.view, w.view, biased ? &bias.view : nullptr,
                                          out.view);
                  }) == kDone);
          check(
              "conv2d", out,
              [&](int64_t i) {
                return y[static_cast<size_t>(i)] +
                       (biased ? bias.get(i / out_width / out_height % each.outputs) : 0);
              },
              tolerance_of(dtype, 3),
              [&](int64_t i) { return size_y[static_cast<size_t>(i)] + 2; });
        }
        dx.poison(), dw.poison();
        REQUIRE(runner([&](Stream& s) {
                  return table().conv2d_backward_input(s, o, grad.view, w.view, dx.view);
                }) == kDone);
        check(
            "conv2d_backward_input", dx, [&](int64_t i) { return sx[static_cast<size_t>(i)]; },
            tolerance_of(dtype, 3), [&](int64_t i) { return size_x[static_cast<size_t>(i)]; });
        REQUIRE(runner([&](Stream& s) {
                  return table().conv2d_backward_weight(s, o, grad.view, x.view, dw.view);
                }) == kDone);
        check(
            "conv2d_backward_weight", dw, [&](int64_t i) { return sw[static_cast<size_t>(i)]; },
            tolerance_of(dtype, 3), [&](int64_t i) { return size_w[static_cast<size_t>(i)]; });
      });
    }
  }
}

TEST_CASE("pooling takes the maximum or mean of a window and returns gradients there") {
  Generator random = generator("pools");
  const Pool2d cases[] = {
      {{2, 2}, {2, 2}, {0, 0}}, {{3, 2}, {1, 2}, {1, 1}}, {{3, 3}, {2, 1}, {1, 0}}};
  for (const Pool2d& o : cases) {
    constexpr int64_t height = 9, width = 8;
    int64_t rows = (height + 2 * o.padding[0] - o.window[0]) / o.stride[0] + 1,
            columns = (width + 2 * o.padding[1] - o.window[1]) / o.stride[1] + 1;
    Shape in_shape{3, 5, height, width}, out_shape{3, 5, rows, columns};
    for (DType dtype : kFloats) {
      Tensor x = random_tensor(random, dtype, in_shape),
             grad = random_tensor(random, dtype, out_shape), out(dtype, out_shape),
             index(DType::i64, out_shape), dx(dtype, in_shape);
      x.set(11, NAN);
      struct WindowMax {
        double best = -INFINITY, sum = 0;
        int64_t where = -1;
        std::vector<int64_t> places;
      };
      auto window = [&](int64_t at) {
        WindowMax found;
        int64_t ox = at % columns, oy = at / columns % rows, plane = at / columns / rows;
        for (int64_t ky = 0; ky < o.window[0]; ky++)
          for (int64_t kx = 0; kx < o.window[1]; kx++) {
            int64_t y = oy * o.stride[0] + ky - o.padding[0],
                    i = ox * o.stride[1] + kx - o.padding[1];
            if (y < 0 || i < 0 || y >= height || i >= width) continue;
            double value = x.get((plane * height + y) * width + i);
            found.places.push_back(y * width + i);
            found.sum += value;
            if (found.where < 0 || value > found.best ||
                (std::isnan(value) && !std::isnan(found.best)))
              found.best = value, found.where = y * width + i;
          }
        return found;
      };
      for_setups([&](Runner& runner) {
        out.poison(), index.poison();
        REQUIRE(runner([&](Stream& s) {
                  return table().max_pool2d(s, o, x.view, out.view, index.view);
                }) == kDone);
        check(
            "max_pool2d", out, [&](int64_t i) { return window(i).best; }, 0);
        check(
            "max_pool2d", index, [&](int64_t i) { return static_cast<double>(window(i).where); },
            0);
        dx.poison();
        REQUIRE(runner([&](Stream& s) {
                  return table().max_pool2d_backward(s, grad.view, index.view, dx.view);
                }) == kDone);
        std::vector<double> most(static_cast<size_t>(x.count())), mean = most;
        for (int64_t i = 0; i < out.count(); i++) {
          auto found = window(i);
          int64_t plane = i / columns / rows * height * width;
          most[static_cast<size_t>(plane + found.where)] += grad.get(i);
          for (int64_t place : found.places)
            mean[static_cast<size_t>(plane + place)] +=
                grad.get(i) / static_cast<double>(o.window[0] * o.window[1]);
        }
        check(
            "max_pool2d_backward", dx, [&](int64_t i) { return most[static_cast<size_t>(i)]; },
            tolerance_of(dtype, 4), [](int64_t) { return 4.0; });
        out.poison(), dx.poison();
        REQUIRE(runner([&](Stream& s) { return table().avg_pool2d(s, o, x.view, out.view); }) ==
                kDone);
        check(
            "avg_pool2d", out,
            [&](int64_t i) {
              return window(i).sum / static_cast<double>(o.window[0] * o.window[1]);
            },
            tolerance_of(dtype, 4), [](int64_t) { return 2.0; });
        REQUIRE(runner([&](Stream& s) {
                  return table().avg_pool2d_backward(s, o, grad.view, dx.view);
                }) == kDone);
        check(
            "avg_pool2d_backward", dx, [&](int64_t i) { return mean[static_cast<size_t>(i)]; },
            tolerance_of(dtype, 4), [](int64_t) { return 4.0; });
      });
    }
  }
}

TEST_CASE("resizing is bilinear or nearest, and gradients return with the same weights") {
  Generator random = generator("resize");
  for (Shape size : {Shape{5, 7}, Shape{12, 3}, Shape{1, 1}, Shape{6, 5}}) {
    Shape in_shape{2, 3, 6, 5}, out_shape{2, 3, size[0], size[1]};
    for (DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16, DType::u8}) {
      for (bool bilinear : {false, true}) {
        Tensor x = random_tensor(random, dtype, in_shape, Layout::dense,
                                 dtype == DType::u8 ? 0 : -2, dtype == DType::u8 ? 255 : 2),
               out(dtype, out_shape);
        // Calls f(index of the input in its plane, weight) for each input of an output element.
        auto taps = [&](int64_t at, auto f) {
          int64_t ox = at % size[1], oy = at / size[1] % size[0];
          if (!bilinear) return f(oy * 6 / size[0] * 5 + ox * 5 / size[1], 1.0);
          auto side = [](int64_t i, int64_t from, int64_t to, int64_t& low, int64_t& high) {
            double place = std::max((static_cast<double>(i) + 0.5) * static_cast<double>(from) /
                                            static_cast<double>(to) -
                                        0.5,
                                    0.0);
            low = std::min(static_cast<int64_t>(place), from - 1),
            high = std::min(low + 1, from - 1);
            return place - static_cast<double>(low);
          };
          int64_t top, bottom, left, right;
          double y = side(oy, 6, size[0], top, bottom), i = side(ox, 5, size[1], left, right);
          f(top * 5 + left, (1 - y) * (1 - i)), f(top * 5 + right, (1 - y) * i),
              f(bottom * 5 + left, y * (1 - i)), f(bottom * 5 + right, y * i);
        };
        for_setups([&](Runner& runner) {
          out.poison();
          REQUIRE(runner([&](Stream& s) {
                    return table().resize(s, bilinear, x.view, out.view);
                  }) == kDone);
          auto expected = [&](int64_t at) {
            double sum = 0;
            taps(at, [&](int64_t place, double weight) {
              sum += weight * x.get(at / size.count() * 30 + place);
            });
            return sum;
          };
          if (dtype == DType::u8) {
            for (int64_t i = 0; i < out.count(); i++)
              CHECK(std::fabs(out.get(i) - expected(i)) <= 0.5001);
            return;
          }
          check("resize", out, expected, tolerance_of(dtype, 8), [](int64_t) { return 2.0; });
          Tensor grad(dtype, out_shape), dx(dtype, in_shape);
          grad.fill([&](int64_t i) { return static_cast<double>(i % 5) - 2; });
          dx.poison();
          REQUIRE(runner([&](Stream& s) {
                    return table().resize_backward(s, bilinear, grad.view, dx.view);
                  }) == kDone);
          std::vector<double> slopes(static_cast<size_t>(x.count()));
          for (int64_t at = 0; at < out.count(); at++)
            taps(at, [&](int64_t place, double weight) {
              slopes[static_cast<size_t>(at / size.count() * 30 + place)] += weight * grad.get(at);
            });
          check(
              "resize_backward", dx, [&](int64_t i) { return slopes[static_cast<size_t>(i)]; },
              tolerance_of(dtype, 8), [](int64_t) { return 8.0; });
        });
      }
    }
  }
}

TEST_CASE("image bytes become planes of normalized floats") {
  Generator random = generator("normalize");
  for (DType dtype : kFloats) {
    Tensor in = random_tensor(random, DType::u8, {2, 5, 7, 3}, Layout::narrowed, 0, 256),
           mean = random_tensor(random, DType::f32, {3}),
           deviation = random_tensor(random, DType::f32, {3}, Layout::dense, 0.2, 1),
           out(dtype, {2, 3, 5, 7});
    for_setups([&](Runner& runner) {
      out.poison();
      REQUIRE(runner([&](Stream& s) {
                return table().normalize(s, in.view, mean.view, deviation.view, out.view);
              }) == kDone);
      check(
          "normalize", out,
          [&](int64_t i) {
            int64_t place = i % 35, c = i / 35 % 3, n = i / 105;
            return (in.get((n * 35 + place) * 3 + c) / 255 - mean.get(c)) / deviation.get(c);
          },
          tolerance_of(dtype, 4), [](int64_t) { return 5.0; });
    });
  }
}

}  // namespace
}  // namespace flow::kernels
