// Reductions and row operations: each against a simple loop in double; gradients against finite
// differences in double, other types against the results in double.
#include <algorithm>

#include "tests/kernels/tensors.hpp"

namespace flow::kernels {
namespace {

double tolerance_of(DType dtype, double f32, double f64 = 16) {
  return dtype == DType::f32 ? f32 : dtype == DType::f64 ? f64 : 0.6;
}

double reduce_reference(Reduce op, const std::vector<double>& x, double correction) {
  double sum = 0, squares = 0, product = 1;
  for (double each : x) sum += each, squares += each * each, product *= each;
  double n = static_cast<double>(x.size()), mean = sum / n, var = 0;
  for (double each : x) var += (each - mean) * (each - mean);
  bool nan = std::any_of(x.begin(), x.end(), [](double each) { return std::isnan(each); });
  switch (op) {
    case Reduce::sum:
      return sum;
    case Reduce::mean:
      return mean;
    case Reduce::product:
      return product;
    case Reduce::norm:
      return std::sqrt(squares);
    case Reduce::var:
      return var / std::max(n - correction, 0.0);
    case Reduce::max:
      return nan ? NAN : *std::max_element(x.begin(), x.end());
    case Reduce::min:
      return nan ? NAN : *std::min_element(x.begin(), x.end());
    case Reduce::any:
      return sum > 0;
    default:
      return sum == n;
  }
}

TEST_CASE("a reduction equals a loop, over any dimensions") {
  Generator random = generator("reduce");
  struct Case {
    Shape shape;
    int order[3];  // of the input's dimensions; the last ones are reduced
    int reduced;
  };
  const Case cases[] = {{{5, 3, 7}, {0, 1, 2}, 1},     {{5, 3, 7}, {0, 1, 2}, 2},
                        {{5, 3, 7}, {0, 1, 2}, 3},     {{40, 3, 37}, {1, 2, 0}, 1},
                        {{40, 3, 300}, {2, 1, 0}, 2},  {{3, 0, 2}, {0, 2, 1}, 1},
                        {{2, 300, 401}, {0, 1, 2}, 2}, {{1, 70000, 2}, {0, 2, 1}, 1}};
  for (const Case& each : cases) {
    for (int i = 0; i < kReduceCount; i++) {
      Reduce op = static_cast<Reduce>(i);
      for (DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16, DType::i64, DType::i32,
                          DType::u8, DType::boolean}) {
        bool logical = op == Reduce::any || op == Reduce::all;
        bool adds = op == Reduce::sum || op == Reduce::product;
        bool extreme = op == Reduce::max || op == Reduce::min;
        if (logical != (dtype == DType::boolean) && !(adds && dtype == DType::boolean)) continue;
        if (!is_float(dtype) && !adds && !extreme && !logical) continue;
        if (extreme && each.shape.count() == 0) continue;
        bool small = op == Reduce::product;
        Tensor in =
            random_tensor(random, dtype, each.shape, Layout::padded,
                          small && is_float(dtype) ? 0.9 : -2, small && is_float(dtype) ? 1.1 : 2);
        if (small && !is_float(dtype))
          in.fill([&](int64_t) { return dtype == DType::boolean || random() % 50 != 0 ? 1 : 2; });
        if (small && in.count() > 1000)
          in.fill([&](int64_t) {
            return is_float(dtype) ? 1 + (random() % 3 == 0) * epsilon_of(dtype) * 0.01 : 1.0;
          });
        View view = permute(in.view, each.order);
        Shape shape = view.shape;
        shape.rank -= each.reduced;
        int64_t results = shape.count(), length = view.count() / std::max<int64_t>(results, 1);
        if (view.count() == 0) length = 0;
        // The reference reads by index.
        std::vector<std::vector<double>> rows(static_cast<size_t>(results));
        for (int64_t r = 0; r < results; r++) {
          for (int64_t j = 0; j < length; j++) {
            int64_t rest = r * length + j, offset = 0;
            for (int dim = 2; dim >= 0; dim--) {
              offset += rest % view.shape[dim] * view.strides[dim];
              rest /= view.shape[dim];
            }
            rows[static_cast<size_t>(r)].push_back(visit(dtype, [&](auto type) {
              return convert<double>(view.at<decltype(type)>()[offset]);
            }));
          }
        }
        DType made = logical ? DType::boolean : adds && !is_float(dtype) ? DType::i64 : dtype;
        Tensor out(made, shape);
        for_setups([&](Runner& runner) {
          out.poison();
          REQUIRE(runner([&](Stream& s) { return table().reduce(s, op, view, 1, out.view); }) ==
                  kDone);
          check(
              std::string("reduce ") + name_of(op), out,
              [&](int64_t r) { return reduce_reference(op, rows[static_cast<size_t>(r)], 1); },
              tolerance_of(dtype, 2, 1000),
              [&](int64_t r) {
                double size = 0;
                for (double x : rows[static_cast<size_t>(r)]) size += std::fabs(x);
                return op == Reduce::sum ? size
                       : op == Reduce::mean
                           ? size / static_cast<double>(std::max<int64_t>(length, 1))
                           : 0;
              });
          if (is_float(dtype) && !extreme && op != Reduce::product) {
            Tensor wide(DType::f64, shape);
            REQUIRE(runner([&](Stream& s) { return table().reduce(s, op, view, 1, wide.view); }) ==
                    kDone);
            check(
                std::string("reduce ") + name_of(op), wide,
                [&](int64_t r) { return reduce_reference(op, rows[static_cast<size_t>(r)], 1); },
                1e5, [&](int64_t) { return static_cast<double>(length); });
          }
        });
      }
    }
  }
}

TEST_CASE("an extreme is the first of equal ones, and a NaN is extreme") {
  Generator random = generator("extreme");
  for (DType dtype : kNumbers) {
    for (Layout layout : kOutLayouts) {
      for (int64_t width : {1, 5, 1700}) {
        Tensor in = random_tensor(random, dtype, {37, width}, layout);
        for (int64_t i = 0; i < in.count(); i++) in.set(i, std::floor(in.get(i)));
        if (is_float(dtype) && width > 1) {
          in.set(3 * width + width / 2, NAN);
          in.set(3 * width + width - 1, NAN);
        }
        for (bool largest : {false, true}) {
          Tensor value(dtype, {37}), index(DType::i64, {37});
          for_setups([&](Runner& runner) {
            value.poison();
            REQUIRE(table().extreme(runner.stream, largest, in.view, 1, value.view, index.view) ==
                    kDone);
            auto at = [&](int64_t row) {
              int64_t best = 0;
              for (int64_t i = 1; i < width; i++) {
                double x = in.get(row * width + i), now = in.get(row * width + best);
                if (std::isnan(now)) break;
                if (std::isnan(x) || (largest ? x > now : x < now)) best = i;
              }
              return best;
            };
            check(
                "extreme", value, [&](int64_t row) { return in.get(row * width + at(row)); }, 0);
            check(
                "extreme", index, [&](int64_t row) { return static_cast<double>(1 + at(row)); }, 0);
          });
        }
      }
    }
  }
}

TEST_CASE("prefix sums equal a loop") {
  Generator random = generator("cumsum");
  for (DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16, DType::i64, DType::i32}) {
    for (Layout layout : kOutLayouts) {
      Tensor in = random_tensor(random, dtype, {41, 1003}, layout), out(dtype, {41, 1003}, layout);
      std::vector<double> sums(static_cast<size_t>(in.count())), sizes = sums;
      for (int64_t i = 0; i < in.count(); i++) {
        auto at = static_cast<size_t>(i);
        sums[at] = in.get(i) + (i % 1003 == 0 ? 0 : sums[at - 1]);
        sizes[at] = std::fabs(in.get(i)) + (i % 1003 == 0 ? 0 : sizes[at - 1]);
      }
      for_setups([&](Runner& runner) {
        out.poison();
        REQUIRE(table().cumsum(runner.stream, in.view, out.view) == kDone);
        check(
            "cumsum", out, [&](int64_t i) { return sums[static_cast<size_t>(i)]; },
            tolerance_of(dtype, 1), [&](int64_t i) { return sizes[static_cast<size_t>(i)]; });
      });
    }
  }
}

// ---- rows

const Shape kRowShapes[] = {{3, 5}, {1, 1}, {0, 4}, {2, 3, 700}, {90, 130}};

std::vector<double> row_of(const Tensor& t, int64_t row) {
  int64_t width = t.view.shape.last();
  std::vector<double> out;
  for (int64_t i = 0; i < width; i++) out.push_back(t.get(row * width + i));
  return out;
}
double log_sum_exp(const std::vector<double>& x) {
  double most = *std::max_element(x.begin(), x.end()), sum = 0;
  for (double each : x) sum += std::exp(each - most);
  return most + std::log(sum);
}

TEST_CASE("softmax and log_softmax equal their formulas, and so do their gradients") {
  Generator random = generator("softmax");
  for (const Shape& shape : kRowShapes) {
    int64_t width = shape.last();
    for (DType dtype : kFloats) {
      for (Layout layout : kRowLayouts) {
        for (bool logarithm : {false, true}) {
          Tensor in = random_tensor(random, dtype, shape, layout, -8, 8),
                 grad = random_tensor(random, dtype, shape, layout), out(dtype, shape, layout);
          std::string name = logarithm ? "log_softmax" : "softmax";
          for_setups([&](Runner& runner) {
            out.poison();
            REQUIRE(runner([&](Stream& s) {
                      return table().softmax(s, logarithm, in.view, out.view);
                    }) == kDone);
            std::vector<double> totals;
            for (int64_t row = 0; row < in.count() / width; row++)
              totals.push_back(log_sum_exp(row_of(in, row)));
            check(
                name, out,
                [&](int64_t i) {
                  double y = in.get(i) - totals[static_cast<size_t>(i / width)];
                  return logarithm ? y : std::exp(y);
                },
                tolerance_of(dtype, logarithm ? 3 : 24, 64),
                [&](int64_t) { return logarithm ? 16.0 : 0; });
            Tensor dx(dtype, shape, layout);
            dx.poison();
            REQUIRE(runner([&](Stream& s) {
                      return table().softmax_backward(s, logarithm, out.view, grad.view, dx.view);
                    }) == kDone);
            check(
                name + "_backward", dx,
                [&](int64_t i) {
                  double sum = 0;
                  for (int64_t j = i / width * width; j < (i / width + 1) * width; j++)
                    sum += logarithm ? grad.get(j) : grad.get(j) * out.get(j);
                  return logarithm ? grad.get(i) - std::exp(out.get(i)) * sum
                                   : out.get(i) * (grad.get(i) - sum);
                },
                tolerance_of(dtype, 8, 64),
                [&](int64_t i) {
                  return logarithm ? 2 + std::exp(out.get(i)) * 2 * static_cast<double>(width)
                                   : 2 * out.get(i);
                });
          });
        }
      }
    }
  }
}

TEST_CASE("cross entropy and its gradient equal their formulas; an ignored label costs nothing") {
  Generator random = generator("cross entropy");
  for (DType dtype : kFloats) {
    for (int64_t rows : {0, 1, 50}) {
      constexpr int64_t classes = 611;
      DType statistic = dtype == DType::f64 ? DType::f64 : DType::f32;
      Tensor logits = random_tensor(random, dtype, {rows, classes}, Layout::padded, -5, 5);
      Tensor labels(DType::i64, {rows}), loss(statistic, {rows}), lse(DType::f64, {rows}),
          grad = random_tensor(random, statistic, {rows}), out(dtype, {rows, classes});
      for (int64_t i = 0; i < rows; i++)
        labels.set_whole(i, i == 1 ? -100 : 1 + static_cast<int64_t>(random() % classes));
      for_setups([&](Runner& runner) {
        loss.poison(), lse.poison(), out.poison();
        REQUIRE(runner([&](Stream& s) {
                  return table().cross_entropy(s, logits.view, labels.view, 1, -100, loss.view,
                                               lse.view);
                }) == kDone);
        std::vector<double> totals;
        for (int64_t row = 0; row < rows; row++) totals.push_back(log_sum_exp(row_of(logits, row)));
        check(
            "cross_entropy", lse, [&](int64_t i) { return totals[static_cast<size_t>(i)]; },
            dtype == DType::f64 ? 4 : std::ldexp(4, 29));
        check(
            "cross_entropy", loss,
            [&](int64_t i) {
              if (labels.whole(i) == -100) return 0.0;
              return totals[static_cast<size_t>(i)] - logits.get(i * classes + labels.whole(i) - 1);
            },
            4, [&](int64_t) { return 8.0; });
        REQUIRE(runner([&](Stream& s) {
                  return table().cross_entropy_backward(s, logits.view, labels.view, 1, -100,
                                                        lse.view, grad.view, out.view);
                }) == kDone);
        check(
            "cross_entropy_backward", out,
            [&](int64_t i) {
              int64_t row = i / classes, label = labels.whole(row);
              if (label == -100) return 0.0;
              double y = std::exp(logits.get(i) - totals[static_cast<size_t>(row)]);
              return (y - (label - 1 == i % classes ? 1 : 0)) * grad.get(row);
            },
            tolerance_of(dtype, 24, 64));
      });
    }
  }
}

TEST_CASE("the gradient of a cross entropy keeps its digits if all logits are large") {
  for (DType dtype : {DType::f32, DType::bf16}) {
    for (double offset : {1e3, 1e4, 5e4, 1e6, 1.5e7}) {
      constexpr int64_t classes = 4;
      Tensor logits(dtype, {1, classes}), labels(DType::i64, {1}), loss(DType::f32, {1}),
          lse(DType::f64, {1}), grad(DType::f32, {1}), out(dtype, {1, classes});
      // The last bits of bf16 are worth more than 1.
      double step = dtype == DType::bf16 ? 64 : 2;
      logits.fill([&](int64_t i) { return offset + step * static_cast<double>(i); });
      labels.set_whole(0, 2), grad.set(0, 1);
      std::vector<double> row = row_of(logits, 0);
      double total = log_sum_exp(row);
      for_setups([&](Runner& runner) {
        REQUIRE(runner([&](Stream& s) {
                  return table().cross_entropy(s, logits.view, labels.view, 1, -100, loss.view,
                                               lse.view);
                }) == kDone);
        REQUIRE(runner([&](Stream& s) {
                  return table().cross_entropy_backward(s, logits.view, labels.view, 1, -100,
                                                        lse.view, grad.view, out.view);
                }) == kDone);
        CHECK(loss.get(0) == Approx(total - row[1]).epsilon(1e-6).margin(1e-6));
        for (int64_t i = 0; i < classes; i++) {
          double expected = std::exp(row[static_cast<size_t>(i)] - total) - (i == 1 ? 1 : 0);
          CHECK(std::fabs(out.get(i) - expected) < (dtype == DType::bf16 ? 4e-3 : 1e-6));
        }
      });
    }
  }
}

// The gradient of f with respect to x, by central differences of sum(f(x) * weights).
std::vector<double> differences(Tensor& x, const std::function<double()>& loss) {
  std::vector<double> out;
  for (int64_t i = 0; i < x.count(); i++) {
    double at = x.get(i), h = 1e-5;
    x.set(i, at + h);
    double above = loss();
    x.set(i, at - h);
    double below = loss();
    x.set(i, at);
    out.push_back((above - below) / (2 * h));
  }
  return out;
}

TEST_CASE("add_norm gives the bits of an addition and a norm") {
  Generator random = generator("sums and norms");
  for (const Shape& shape : {Shape{3, 5}, Shape{200, 96}})
    for (DType dtype : kFloats)
      for (bool layer : {true, false}) {
        DType statistic = dtype == DType::f64 ? DType::f64 : DType::f32;
        Shape rows{shape[0]};
        Tensor x = random_tensor(random, dtype, shape), term = random_tensor(random, dtype, shape),
               weight = random_tensor(random, dtype, {shape[1]}), sum(dtype, shape),
               y(dtype, shape), mean(statistic, rows), rstd(statistic, rows), sum2(dtype, shape),
               y2(dtype, shape), mean2(statistic, rows), rstd2(statistic, rows);
        for_setups([&](Runner& runner) {
          sum.poison(), y.poison();
          REQUIRE(runner([&](Stream& s) {
                    return table().add_norm(s, x.view, term.view, &weight.view, nullptr, 1e-5,
                                            sum.view, y.view, layer ? &mean.view : nullptr,
                                            rstd.view);
                  }) == kDone);
          REQUIRE(runner([&](Stream& s) {
                    return table().binary(s, Binary::add, x.view, term.view, sum2.view);
                  }) == kDone);
          REQUIRE(runner([&](Stream& s) {
                    return layer ? table().layer_norm(s, sum2.view, &weight.view, nullptr, 1e-5,
                                                      y2.view, mean2.view, rstd2.view)
                                 : table().rms_norm(s, sum2.view, &weight.view, 1e-5, y2.view,
                                                    rstd2.view);
                  }) == kDone);
          check(
              "add_norm", sum, [&](int64_t i) { return sum2.get(i); }, 0);
          check(
              "add_norm", y, [&](int64_t i) { return y2.get(i); }, 0);
        });
      }
}

TEST_CASE("layer_norm and rms_norm equal their formulas, with and without weight and bias") {
  Generator random = generator("norms");
  for (const Shape& shape : {Shape{3, 5}, Shape{0, 4}, Shape{2, 3, 700}, Shape{200, 96}}) {
    int64_t width = shape.last(), rows = shape.count() / width;
    Shape heads = shape;
    heads.rank--;
    for (DType dtype : kFloats) {
      for (int with = 0; with < 4; with++) {
        DType statistic = dtype == DType::f64 ? DType::f64 : DType::f32;
        DType parameter = with == 3 && dtype != DType::f64 ? DType::f32 : dtype;
        Tensor x = random_tensor(random, dtype, shape, with % 2 ? Layout::padded : Layout::dense),
               weight = random_tensor(random, parameter, {width}),
               bias = random_tensor(random, parameter, {width}), y(dtype, shape),
               mean(statistic, heads), rstd(statistic, heads);
        const View *w = with > 0 ? &weight.view : nullptr, *b = with > 1 ? &bias.view : nullptr;
        for_setups([&](Runner& runner) {
          for (bool layer : {true, false}) {
            y.poison();
            REQUIRE(runner([&](Stream& s) {
                      return layer ? table().layer_norm(s, x.view, w, b, 1e-5, y.view, mean.view,
                                                        rstd.view)
                                   : table().rms_norm(s, x.view, w, 1e-5, y.view, rstd.view);
                    }) == kDone);
            std::vector<double> means, scales;
            for (int64_t row = 0; row < rows; row++) {
              auto in = row_of(x, row);
              double sum = 0, squares = 0;
              for (double each : in) sum += each;
              double middle = layer ? sum / static_cast<double>(width) : 0;
              for (double each : in) squares += (each - middle) * (each - middle);
              means.push_back(middle);
              scales.push_back(1 / std::sqrt(squares / static_cast<double>(width) + 1e-5));
            }
            if (layer)
              check(
                  "layer_norm", mean, [&](int64_t i) { return means[static_cast<size_t>(i)]; }, 8,
                  [](int64_t) { return 1.0; });
            check(
                "layer_norm", rstd, [&](int64_t i) { return scales[static_cast<size_t>(i)]; },
                statistic == DType::f64 ? 32 : 2);
            check(
                layer ? "layer_norm" : "rms_norm", y,
                [&](int64_t i) {
                  auto row = static_cast<size_t>(i / width);
                  double value = (x.get(i) - means[row]) * scales[row];
                  if (w != nullptr) value *= weight.get(i % width);
                  if (layer && b != nullptr) value += bias.get(i % width);
                  return value;
                },
                tolerance_of(dtype, 4), [](int64_t) { return 4.0; });
          }
        });
      }
    }
  }
}

TEST_CASE("the gradients of the norms equal finite differences in double, in all types") {
  Generator random = generator("norm slopes");
  for (bool layer : {true, false}) {
    for (bool weighted : {true, false}) {
      for (const Shape& shape : {Shape{3, 7}, Shape{150, 96}}) {
        int64_t width = shape[1], rows = shape[0];
        Tensor x = random_tensor(random, DType::f16, shape),
               grad = random_tensor(random, DType::f16, shape),
               weight = random_tensor(random, DType::f16, {width});
        // The reference, in double.
        Tensor wide_x = as_double(x), wide_grad = as_double(grad), wide_weight = as_double(weight);
        auto backward = [&](Runner& runner, DType dtype, Tensor& in, Tensor& slope, Tensor& weights,
                            Tensor& dx, Tensor& dweight, Tensor& dbias) {
          DType statistic = dtype == DType::f64 ? DType::f64 : DType::f32;
          Tensor y(dtype, shape), mean(statistic, {rows}), rstd(statistic, {rows});
          const View* w = weighted ? &weights.view : nullptr;
          REQUIRE(runner([&](Stream& s) {
                    return layer ? table().layer_norm(s, in.view, w, nullptr, 1e-5, y.view,
                                                      mean.view, rstd.view)
                                 : table().rms_norm(s, in.view, w, 1e-5, y.view, rstd.view);
                  }) == kDone);
          dx.poison(), dweight.poison(), dbias.poison();
          REQUIRE(runner([&](Stream& s) {
                    return layer ? table().layer_norm_backward(
                                       s, in.view, w, mean.view, rstd.view, slope.view, dx.view,
                                       weighted ? &dweight.view : nullptr, &dbias.view, false)
                                 : table().rms_norm_backward(
                                       s, in.view, w, rstd.view, slope.view, dx.view,
                                       weighted ? &dweight.view : nullptr, false);
                  }) == kDone);
        };
        Tensor dx(DType::f64, shape), dweight(DType::f64, {width}), dbias(DType::f64, {width});
        Runner plain(1);
        backward(plain, DType::f64, wide_x, wide_grad, wide_weight, dx, dweight, dbias);
        auto loss = [&] {
          double total = 0;
          for (int64_t row = 0; row < rows; row++) {
            auto in = row_of(wide_x, row);
            double sum = 0, squares = 0;
            for (double each : in) sum += each;
            double middle = layer ? sum / static_cast<double>(width) : 0;
            for (double each : in) squares += (each - middle) * (each - middle);
            double scale = 1 / std::sqrt(squares / static_cast<double>(width) + 1e-5);
            for (int64_t i = 0; i < width; i++)
              total += (in[static_cast<size_t>(i)] - middle) * scale *
                       (weighted ? wide_weight.get(i) : 1) * wide_grad.get(row * width + i);
          }
          return total;
        };
        std::string name = layer ? "layer_norm_backward" : "rms_norm_backward";
        if (rows < 10) {
          auto slopes = differences(wide_x, loss);
          for (int64_t i = 0; i < dx.count(); i++)
            CHECK(std::fabs(dx.get(i) - slopes[static_cast<size_t>(i)]) < 1e-5);
          if (weighted) {
            slopes = differences(wide_weight, loss);
            for (int64_t i = 0; i < width; i++)
              CHECK(std::fabs(dweight.get(i) - slopes[static_cast<size_t>(i)]) < 1e-5);
          }
        }
        for (DType dtype : kFloats) {
          Tensor in(dtype, shape, Layout::padded), slope(dtype, shape), weights(dtype, {width}),
              made(dtype, shape), made_weight(dtype, {width}), made_bias(dtype, {width});
          if (dtype == DType::bf16) continue;  // lacks the numbers of f16
          in.fill([&](int64_t i) { return x.get(i); });
          slope.fill([&](int64_t i) { return grad.get(i); });
          weights.fill([&](int64_t i) { return weight.get(i); });
          for_setups([&](Runner& runner) {
            backward(runner, dtype, in, slope, weights, made, made_weight, made_bias);
            check(
                name, made, [&](int64_t i) { return dx.get(i); }, tolerance_of(dtype, 20, 64),
                [](int64_t) { return 2.0; });
            double size = 2 * static_cast<double>(rows);
            if (weighted)
              check(
                  name, made_weight, [&](int64_t i) { return dweight.get(i); },
                  tolerance_of(dtype, 4), [&](int64_t) { return size; });
            if (layer)
              check(
                  name, made_bias, [&](int64_t i) { return dbias.get(i); }, tolerance_of(dtype, 4),
                  [&](int64_t) { return size; });
          });
        }
      }
    }
  }
}

}  // namespace
}  // namespace flow::kernels
