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

double activation_gradient(Unary activation, double x, double grad) {
  switch (activation) {
    case Unary::relu:
      return unary_backward_of<Unary::relu>(x, x, grad);
    case Unary::gelu:
      return unary_backward_of<Unary::gelu>(x, x, grad);
    case Unary::gelu_tanh:
      return unary_backward_of<Unary::gelu_tanh>(x, x, grad);
    default:
      return grad;
  }
}

// A matrix that a library can write: its rows begin at multiples of 8 elements.
Array padded_rows(DType dtype, int64_t rows, int64_t columns) {
  return Array(dtype, {rows, columns}, columns % 8 == 0 ? Layout::dense : Layout::rows);
}

struct Factors {
  Array a, b;
  std::vector<double> sums;
};
Factors factors_of(Suite& s, DType dtype, int64_t m, int64_t n, int64_t k) {
  Factors f{s.filled(dtype, {m, k}, s.integer(0, 1) ? Layout::dense : Layout::swapped),
            s.filled(dtype, {k, n}, s.integer(0, 1) ? Layout::dense : Layout::swapped),
            {}};
  for (int64_t i = 0; i < m * n; i++) {
    long double sum = 0;
    for (int64_t j = 0; j < k; j++)
      sum += static_cast<long double>(f.a.at(i / n * k + j)) * f.b.at(j * n + i % n);
    f.sums.push_back(static_cast<double>(sum));
  }
  return f;
}

// The layer: the operand of the activation is kept for the gradient.
void check_layer(Suite& s, DType dtype, Unary activation, int64_t m, int64_t n, int64_t k) {
  Factors f = factors_of(s, dtype, m, n, k);
  Array bias = s.filled(dtype, {n}), before = padded_rows(dtype, m, n);
  Array c = padded_rows(dtype, m, n);
  bool has_bias = s.integer(0, 1) == 1;
  std::vector<double> operand, want;
  for (int64_t i = 0; i < m * n; i++) {
    operand.push_back(f.sums[static_cast<size_t>(i)] + (has_bias ? bias.at(i % n) : 0));
    want.push_back(activated(activation, operand.back()));
  }
  double roundings = s.by_library ? 3 : 2;  // see check_matmul
  s.check("product", &Kernels::product,
          std::string("layer ") + dtype_name(dtype) + " " + std::to_string(m) + " " +
              std::to_string(n) + " " + std::to_string(k) + " " + name_of(activation),
          {&f.a, &f.b, &c, &bias, &before},
          [&](const Kernels& table, Stream& stream, Views v) {
            ProductEpilogue e;
            e.bias = has_bias ? &v[3] : nullptr;
            e.activation = activation;
            e.before = &v[4];
            return table.product(stream, v[0], v[1], e, v[2]);
          },
          {{&before, operand, {}, 64, size_of_sums(k), s.by_library ? 2.0 : 1.0},
           {&c, want, {}, 64, size_of_sums(k), roundings}});
}

// The gradient of a layer's input, which is the result of another layer's activation.
void check_layer_gradient(Suite& s, DType dtype, Unary activation, int64_t m, int64_t n,
                          int64_t k) {
  Factors f = factors_of(s, dtype, m, n, k);
  Array before = padded_rows(dtype, m, n), c = padded_rows(dtype, m, n), sums(dtype, {n});
  s.fill(before);
  std::vector<double> want, totals(static_cast<size_t>(n));
  for (int64_t i = 0; i < m * n; i++) {
    want.push_back(activation_gradient(activation, before.at(i), f.sums[static_cast<size_t>(i)]));
    totals[static_cast<size_t>(i % n)] += want.back();
  }
  // The sums are of rounded numbers.
  bool is_small = dtype == DType::f16 || dtype == DType::bf16;
  double size = size_of_sums(k), slack = is_small ? std::ldexp(1, 17) : 256;
  s.check("product", &Kernels::product,
          std::string("gradient ") + dtype_name(dtype) + " " + std::to_string(m) + " " +
              std::to_string(n) + " " + std::to_string(k) + " " + name_of(activation),
          {&f.a, &f.b, &c, &before, &sums},
          [&](const Kernels& table, Stream& stream, Views v) {
            ProductEpilogue e;
            e.activation = activation;
            e.is_gradient = true;
            e.before = &v[3];
            e.column_sums = &v[4];
            return table.product(stream, v[0], v[1], e, v[2]);
          },
          {{&c, want, {}, 64, size, s.by_library ? 3.0 : 2.0},
           {&sums, totals, {}, slack, size * std::sqrt(static_cast<double>(m)), 2}});
}

// The gradients of a layer's weight and bias, from transposed gradients.
void check_weight_gradient(Suite& s, DType dtype, DType out, int64_t m, int64_t n, int64_t k) {
  Factors f = factors_of(s, dtype, m, n, k);
  Array c(out, {m, n}), sums(out, {m});
  std::vector<double> totals;
  for (int64_t i = 0; i < m; i++) {
    double total = 0;
    for (int64_t j = 0; j < k; j++) total += f.a.at(i * k + j);
    totals.push_back(total);
  }
  s.check("product", &Kernels::product,
          std::string("weights ") + dtype_name(dtype) + " to " + dtype_name(out) + " " +
              std::to_string(m) + " " + std::to_string(n) + " " + std::to_string(k),
          {&f.a, &f.b, &c, &sums},
          [&](const Kernels& table, Stream& stream, Views v) {
            ProductEpilogue e;
            e.row_sums = &v[3];
            return table.product(stream, v[0], v[1], e, v[2]);
          },
          {{&c, f.sums, {}, 64, size_of_sums(k)}, {&sums, totals, {}, 64, size_of_sums(k)}});
}

}  // namespace

void check_products(Suite& s, int64_t m, int64_t n, int64_t k) {
  for (DType dtype : kFloats) {
    for (Unary activation : {Unary::gelu_tanh, Unary::relu, Unary::gelu}) {
      check_layer(s, dtype, activation, m, n, k);
      check_layer_gradient(s, dtype, activation, m, n, k);
    }
    check_weight_gradient(s, dtype, dtype, m, n, k);
    if (dtype == DType::f16 || dtype == DType::bf16)
      check_weight_gradient(s, dtype, DType::f32, m, n, k);
  }
}

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
  for (Sizes size : {Sizes{1, 1, 1}, Sizes{16, 24, 8}, Sizes{70, 136, 40}, Sizes{33, 5, 600},
                     Sizes{0, 8, 8}, Sizes{8, 8, 0}})
    check_products(s, size.m, size.n, size.k);
}

}  // namespace flow::suite
