// Every kernel against the same sum in double, on sizes that no unrolled loop likes.
#include <cmath>
#include <limits>

#include "kernels/cpu/adamw.hpp"
#include "kernels/cpu/bias.hpp"
#include "kernels/cpu/copy.hpp"
#include "kernels/cpu/cross_entropy.hpp"
#include "kernels/cpu/elementwise.hpp"
#include "kernels/cpu/matmul.hpp"
#include "kernels/cpu/reduce.hpp"
#include "tests/kernels/reference.hpp"

namespace flow::cpu {
namespace {

TEST_CASE("a product equals the triple loop in double, transposed or not") {
  const int64_t sizes[][3] = {{1, 1, 1}, {1, 7, 3}, {5, 1, 1}, {3, 5, 7}, {17, 33, 9}, {64, 1, 65}};
  for (const auto& [m, k, n] : sizes) {
    for (int transposes = 0; transposes < 4; transposes++) {
      Floats a = some_floats(m * k, 1), b = some_floats(k * n, 2);
      Floats c(static_cast<size_t>(m * n), NAN);
      View left = view_of(a, transposes & 1 ? Shape{k, m} : Shape{m, k});
      View right = view_of(b, transposes & 2 ? Shape{n, k} : Shape{k, n});
      if (transposes & 1) left = swap_dims(left, 0, 1);
      if (transposes & 2) right = swap_dims(right, 0, 1);
      REQUIRE(is_matmul_operand(left));
      REQUIRE(is_matmul_operand(right));
      matmul(left, right, view_of(c, {m, n}));
      for (int64_t row = 0; row < m; row++) {
        for (int64_t column = 0; column < n; column++) {
          double sum = 0, size = 0;
          for (int64_t i = 0; i < k; i++) {
            double term = first_as_double(select(select(left, 0, row), 0, i)) *
                          first_as_double(select(select(right, 0, i), 0, column));
            sum += term;
            size += std::abs(term);
          }
          check_near(c[static_cast<size_t>(row * n + column)], sum, size);
        }
      }
    }
  }
}

TEST_CASE("a product over nothing is zero, and of a narrowed matrix is that matrix's") {
  Floats none, out = {1, 2, 3, 4}, a = {1, 2, 9, 3, 4, 9}, b = {1, 0, 0, 1};
  matmul(view_of(none, {2, 0}), view_of(none, {0, 2}), view_of(out, {2, 2}));
  CHECK(out == Floats{0, 0, 0, 0});
  View part = narrow(view_of(a, {2, 3}), 1, 0, 2);
  REQUIRE(is_matmul_operand(part));
  matmul(part, view_of(b, {2, 2}), view_of(out, {2, 2}));
  CHECK(out == Floats{1, 2, 3, 4});
  CHECK_FALSE(is_matmul_operand(narrow(view_of(a, {2, 3}), 1, 0, 2, 2)));
  CHECK_FALSE(is_matmul_operand(stretch(view_of(b, {1, 4}), {3, 4})));
}

TEST_CASE("arithmetic stretches and equals arithmetic in double") {
  Floats a = some_floats(7 * 5, 3), row = some_floats(5, 4), out(35);
  View x = view_of(a, {7, 5}), y = stretch(view_of(row, {5}), {7, 5}), to = view_of(out, {7, 5});
  const std::pair<Binary, double (*)(double, double)> cases[] = {
      {Binary::add, [](double p, double q) { return p + q; }},
      {Binary::sub, [](double p, double q) { return p - q; }},
      {Binary::mul, [](double p, double q) { return p * q; }},
      {Binary::maximum, [](double p, double q) { return std::max(p, q); }},
      {Binary::minimum, [](double p, double q) { return std::min(p, q); }}};
  for (const auto& [op, expected] : cases) {
    binary(op, x, y, to);
    for (size_t i = 0; i < 35; i++) check_near(out[i], expected(a[i], row[i % 5]), 4);
  }
  binary(Binary::div, x, stretch(view_of(row, {5}), {7, 5}), to);
  for (size_t i = 0; i < 35; i++)
    if (row[i % 5] != 0) check_near(out[i], double{a[i]} / row[i % 5], std::abs(out[i]));
}

TEST_CASE("integers wrap and compare, and NaN is seen") {
  int64_t a[] = {std::numeric_limits<int64_t>::max(), -3}, b[] = {1, -3}, sum[2];
  View x = dense(DType::i64, {2}, a), y = dense(DType::i64, {2}, b);
  binary(Binary::add, x, y, dense(DType::i64, {2}, sum));
  CHECK(sum[0] == std::numeric_limits<int64_t>::min());
  CHECK(sum[1] == -6);
  uint8_t same[2];
  compare(Compare::eq, x, y, dense(DType::boolean, {2}, same));
  CHECK(same[0] == 0);
  CHECK(same[1] == 1);
  Floats nan = {NAN, 1}, one = {1, NAN}, out(2);
  binary(Binary::maximum, view_of(nan, {2}), view_of(one, {2}), view_of(out, {2}));
  CHECK(std::isnan(out[0]));
}

TEST_CASE("functions of one number equal those of double") {
  Floats in = some_floats(33, 5), out(33);
  const std::pair<Unary, double (*)(double)> cases[] = {
      {Unary::neg, [](double v) { return -v; }},
      {Unary::abs, [](double v) { return std::abs(v); }},
      {Unary::exp, [](double v) { return std::exp(v); }},
      {Unary::tanh, [](double v) { return std::tanh(v); }},
      {Unary::sigmoid, [](double v) { return 1 / (1 + std::exp(-v)); }},
      {Unary::relu, [](double v) { return std::max(v, 0.0); }}};
  for (const auto& [op, expected] : cases) {
    unary(op, view_of(in, {33}), view_of(out, {33}));
    for (size_t i = 0; i < in.size(); i++) check_near(out[i], expected(in[i]), expected(in[i]));
  }
}

TEST_CASE("sums and extremes go along the last dimension, in any stride") {
  Floats in = some_floats(6 * 11, 6), out(6);
  View x = view_of(in, {6, 11});
  sum_last(x, view_of(out, {6}));
  for (size_t row = 0; row < 6; row++) {
    double sum = 0;
    for (size_t i = 0; i < 11; i++) sum += in[row * 11 + i];
    check_near(out[row], sum, 20);
  }
  Floats columns(11), value(11);
  int64_t index[11];
  View by_column = swap_dims(x, 0, 1);
  sum_last(by_column, view_of(columns, {11}));
  extreme_last(true, by_column, view_of(value, {11}), dense(DType::i64, {11}, index));
  for (size_t column = 0; column < 11; column++) {
    double sum = 0, best = -10;
    for (size_t row = 0; row < 6; row++) {
      sum += in[row * 11 + column];
      best = std::max<double>(best, in[row * 11 + column]);
    }
    check_near(columns[column], sum, 20);
    CHECK(value[column] == best);
    CHECK(in[static_cast<size_t>(index[column]) * 11 + column] == best);
  }
}

TEST_CASE("of equal elements the first is the extreme, and a NaN is always") {
  Floats ties = {2, 5, 5, 1}, nan = {2, NAN, 5, NAN}, value(1);
  int64_t index;
  View at = dense(DType::i64, Shape{}, &index), to = view_of(value, Shape{});
  extreme_last(true, view_of(ties, {4}), to, at);
  CHECK(index == 1);
  extreme_last(false, view_of(nan, {4}), to, at);
  CHECK(index == 1);
}

double loss_in_double(const Floats& logits, const std::vector<int64_t>& labels, size_t columns) {
  double loss = 0;
  for (size_t row = 0; row < labels.size(); row++) {
    double sum = 0;
    for (size_t i = 0; i < columns; i++) sum += std::exp(double{logits[row * columns + i]});
    loss += std::log(sum) - logits[row * columns + static_cast<size_t>(labels[row])];
  }
  return loss / static_cast<double>(labels.size());
}

TEST_CASE("cross entropy and its gradient equal the definition and its differences") {
  constexpr size_t rows = 5, columns = 7;
  Floats logits = some_floats(rows * columns, 7), grad(rows * columns);
  std::vector<int64_t> labels = {0, 6, 3, 3, 1};
  double loss = cross_entropy(logits.data(), labels.data(), grad.data(), rows, columns);
  check_near(loss, loss_in_double(logits, labels, columns));
  for (size_t i = 0; i < logits.size(); i++) {
    constexpr float step = 1.0f / 256;
    Floats more = logits, less = logits;
    more[i] += step;
    less[i] -= step;
    double slope = (loss_in_double(more, labels, columns) - loss_in_double(less, labels, columns)) /
                   (double{more[i]} - double{less[i]});
    check_near(grad[i], slope, 1, 1e-5);
  }
  Floats huge = {1e4f, -1e4f}, out(2);
  softmax(huge.data(), out.data(), 1, 2);
  CHECK(out == Floats{1, 0});
  log_softmax(huge.data(), out.data(), 1, 2);
  CHECK(out == Floats{0, -2e4f});
}

TEST_CASE("a bias goes to every row, and its gradient is the sum of them") {
  Floats matrix = {1, 2, 3, 4, 5, 6}, bias = {10, 20, 30}, sum = {1, 1, 1};
  add_bias(matrix.data(), bias.data(), 2, 3);
  CHECK(matrix == Floats{11, 22, 33, 14, 25, 36});
  add_sum_of_rows(matrix.data(), sum.data(), 2, 3);
  CHECK(sum == Floats{26, 48, 70});
  Floats in = {-1, 0, 2}, grad = {5, 6, 7}, out(3);
  relu_backward(view_of(in, {3}), view_of(grad, {3}), view_of(out, {3}));
  CHECK(out == Floats{0, 0, 7});
}

TEST_CASE("AdamW equals the paper's steps in double") {
  constexpr size_t count = 13;
  Floats weights = some_floats(count, 8), mean(count), square(count);
  std::vector<double> w(weights.begin(), weights.end()), m(count), v(count);
  AdamW options;
  options.lr = 0.01;
  options.weight_decay = 0.1;
  for (options.step = 1; options.step <= 5; options.step++) {
    Floats grad = some_floats(count, 100 + static_cast<unsigned>(options.step));
    adamw(options, weights.data(), grad.data(), mean.data(), square.data(), count);
    auto step = static_cast<double>(options.step);
    for (size_t i = 0; i < count; i++) {
      double g = grad[i];
      m[i] = 0.9 * m[i] + 0.1 * g;
      v[i] = 0.999 * v[i] + 0.001 * g * g;
      double m_hat = m[i] / (1 - std::pow(0.9, step)), v_hat = v[i] / (1 - std::pow(0.999, step));
      w[i] -= options.lr * options.weight_decay * w[i];
      w[i] -= options.lr * m_hat / (std::sqrt(v_hat) + 1e-8);
      check_near(weights[i], w[i], 2);
    }
  }
}

}  // namespace
}  // namespace flow::cpu
