// Matrix products with batches, any strides, and every epilogue.
#include "kernels/shared/scalar.hpp"
#include "tests/kernels/suite/suite.hpp"

namespace flow::suite {
namespace {

double activated(Unary activation, double x) {
  switch (activation) {
    case Unary::relu:
      return unary_of<Unary::relu>(x);
    case Unary::gelu:
      return unary_of<Unary::gelu>(x);
    case Unary::gelu_tanh:
      return unary_of<Unary::gelu_tanh>(x);
    default:
      return x;
  }
}

// The sum of k products of numbers around 0 grows with the root of k. In sequential order each
// partial sum is rounded relative to its own size: together about 0.4 k u of a product's size (u:
// half a unit in the last place), and the largest error of thousands of sums is several times that.
double size_of_sums(int64_t k) {
  auto count = static_cast<double>(k);
  return 3 + std::sqrt(count) + count / 15;
}

void check_matmul(Suite& s, DType dtype, const Shape& batches, int64_t m, int64_t n, int64_t k) {
  auto layout = [&] {
    return std::vector{Layout::dense, Layout::swapped, Layout::gaps, Layout::shifted,
                       Layout::rows}[static_cast<size_t>(s.integer(0, 4))];
  };
  auto shape = [&](int64_t rows, int64_t columns) {
    Shape out = batches;
    out.push(rows);
    out.push(columns);
    return out;
  };
  Layout of_a = layout(), of_b = layout();
  Layout of_c = s.integer(0, 1) ? Layout::dense : Layout::rows;
  bool broadcast = batches.rank > 0 && s.integer(0, 1);
  if (broadcast) of_b = Layout::broadcast;
  Array a = s.filled(dtype, shape(m, k), of_a), b = s.filled(dtype, shape(k, n), of_b);
  Array c(dtype, shape(m, n), of_c), bias = s.filled(dtype, {n});
  auto activation = std::vector{Unary::identity, Unary::relu, Unary::gelu,
                                Unary::gelu_tanh}[static_cast<size_t>(s.integer(0, 3))];
  bool has_bias = s.integer(0, 1) == 1;
  double beta = s.integer(0, 1) ? 0.5 : 0, alpha = s.integer(0, 1) ? 1 : 0.25;
  if (beta != 0) s.fill(c);
  for (int64_t i = 0; beta == 0 && i < c.count(); i++) c.set(i, NAN);  // is not read
  std::vector<double> want;
  for (int64_t i = 0; i < c.count(); i++) {
    int64_t column = i % n, row = i / n % m, batch = i / n / m;
    long double sum = 0;
    for (int64_t j = 0; j < k; j++)
      sum += static_cast<long double>(a.at((batch * m + row) * k + j)) *
             b.at((batch * k + j) * n + column);
    double value = alpha * static_cast<double>(sum) + (beta != 0 ? beta * c.at(i) : 0) +
                   (has_bias ? bias.at(column) : 0);
    want.push_back(activated(activation, value));
  }
  // cuBLASLt rounds small floats before it adds a bias, and on the way to its GELU: errors of up to
  // 1.4 units were seen on an H200.
  bool is_small = dtype == DType::f16 || dtype == DType::bf16;
  bool has_epilogue = has_bias || activation == Unary::gelu_tanh;
  double roundings = s.by_library && is_small && has_epilogue ? 2 : 1;
  s.check("matmul", &Kernels::matmul,
          std::string(dtype_name(dtype)) + " " + text_of(batches) + " " + std::to_string(m) + " " +
              std::to_string(n) + " " + std::to_string(k) + " " + name_of(of_a) + " " +
              name_of(of_b) + " " + name_of(activation) + (has_bias ? " bias" : ""),
          {&a, &b, &c, &bias},
          [&](const Kernels& table, Stream& stream, Views v) {
            return table.matmul(stream, v[0], v[1], alpha, beta, has_bias ? &v[3] : nullptr,
                                activation, v[2]);
          },
          {{&c, want, {}, 64, size_of_sums(k), roundings}});
}

}  // namespace

void check_matmuls(Suite& s) {
  struct Sizes {
    int64_t m, n, k;
  };
  for (DType dtype : kFloats) {
    for (Sizes size : {Sizes{1, 1, 1}, Sizes{3, 5, 7}, Sizes{64, 64, 32}, Sizes{65, 33, 17},
                       Sizes{70, 130, 40}, Sizes{4, 6, 0}, Sizes{0, 3, 4}, Sizes{3, 0, 4},
                       Sizes{9, 12, 2000}, Sizes{1, 200, 64}, Sizes{128, 64, 64}})
      for (int time = 0; time < 2; time++) check_matmul(s, dtype, {}, size.m, size.n, size.k);
    check_matmul(s, dtype, {3}, 17, 20, 9);
    check_matmul(s, dtype, {2, 3}, 8, 16, 24);
    check_matmul(s, dtype, {2, 3}, 33, 40, 16);
    check_matmul(s, dtype, {0}, 8, 16, 24);
  }
}

}  // namespace flow::suite
