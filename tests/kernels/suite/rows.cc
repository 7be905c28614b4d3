// Softmax, cross-entropy and the norms against their definitions in double.
#include "tests/kernels/suite/suite.hpp"

namespace flow::suite {
namespace {

const Shape kShapes[] = {{1},        {7},       {0, 5},    {3, 1},   {5, 33},
                         {2, 3, 64}, {2, 1500}, {3, 2560}, {3, 4111}};
constexpr Layout kLayouts[] = {Layout::dense, Layout::shifted, Layout::rows};

std::string text(DType dtype, const Shape& shape, Layout layout) {
  return std::string(dtype_name(dtype)) + " " + text_of(shape) + " " + name_of(layout);
}

std::vector<double> softmax_of(const Array& in, bool logarithm) {
  std::vector<double> out;
  int64_t columns = in.shape().last();
  for (int64_t first = 0; first < in.count(); first += columns) {
    double largest = -INFINITY;
    long double sum = 0;
    for (int64_t i = 0; i < columns; i++) largest = std::max(largest, in.at(first + i));
    for (int64_t i = 0; i < columns; i++) sum += std::exp(in.at(first + i) - largest);
    for (int64_t i = 0; i < columns; i++) {
      double x = in.at(first + i) - largest;
      out.push_back(logarithm ? static_cast<double>(x - std::log(sum))
                              : static_cast<double>(std::exp(x) / sum));
    }
  }
  return out;
}

void check_softmax(Suite& s, DType dtype, const Shape& shape, Layout layout) {
  for (bool logarithm : {false, true}) {
    Array in = s.filled(dtype, shape, layout, -10, 10), out(dtype, shape, layout);
    Array grad = s.filled(dtype, shape, layout), dx(dtype, shape, layout);
    if (in.count() > 3) in.set(s.integer(0, in.count() - 1), -INFINITY);
    if (shape.last() > 1 && in.count() > 40 && s.integer(0, 4) == 0)
      in.set(s.integer(0, in.count() - 1), NAN);
    s.check("softmax", &Kernels::softmax, text(dtype, shape, layout), {&in, &out},
            [&](const Kernels& k, Stream& stream, Views v) {
              return k.softmax(stream, logarithm, v[0], v[1]);
            },
            {{&out, softmax_of(in, logarithm), {}, 32, logarithm ? 10.0 : 0.0}});
    Array y = s.filled(dtype, shape, layout, -3, 0);
    std::vector<double> want;
    int64_t columns = shape.last();
    for (int64_t first = 0; first < y.count(); first += columns) {
      long double sum = 0;
      for (int64_t i = first; i < first + columns; i++)
        sum += logarithm ? grad.at(i) : grad.at(i) * y.at(i);
      for (int64_t i = first; i < first + columns; i++)
        want.push_back(static_cast<double>(logarithm ? grad.at(i) - std::exp(y.at(i)) * sum
                                                     : y.at(i) * (grad.at(i) - sum)));
    }
    s.check("softmax_backward", &Kernels::softmax_backward, text(dtype, shape, layout),
            {&y, &grad, &dx},
            [&](const Kernels& k, Stream& stream, Views v) {
              return k.softmax_backward(stream, logarithm, v[0], v[1], v[2]);
            },
            {{&dx, want, {}, 64, 6 * std::sqrt(static_cast<double>(columns))}});
  }
}

void check_cross_entropy(Suite& s, DType dtype, const Shape& shape, Layout layout, double low = -5,
                         double high = 5) {
  if (shape.rank != 2) return;
  int64_t rows = shape[0], classes = shape[1];
  DType wide = compute_type(dtype);
  Array logits = s.filled(dtype, shape, layout, low, high), out(dtype, shape, layout);
  Array labels(DType::i64, {rows}, Layout::gaps), loss(wide, {rows}), lse(DType::f64, {rows});
  Array grad = s.filled(wide, {rows});
  for (int64_t i = 0; i < rows; i++)
    labels.set_integer(i, s.integer(0, 4) == 0 ? -100 : s.integer(1, classes));
  std::vector<double> losses, sums, want;
  std::vector<double> logarithm = softmax_of(logits, true);
  for (int64_t i = 0; i < rows; i++) {
    int64_t label = labels.integer_at(i);
    double of_row = logits.at(i * classes) - logarithm[static_cast<size_t>(i * classes)];
    sums.push_back(of_row);
    losses.push_back(label < 0 ? 0 : of_row - logits.at(i * classes + label - 1));
    for (int64_t j = 0; j < classes; j++) {
      double p = std::exp(logarithm[static_cast<size_t>(i * classes + j)]);
      want.push_back(label < 0 ? 0 : (p - (j == label - 1)) * grad.at(i));
    }
  }
  s.check("cross_entropy", &Kernels::cross_entropy, text(dtype, shape, layout),
          {&logits, &labels, &loss, &lse},
          [](const Kernels& k, Stream& stream, Views v) {
            return k.cross_entropy(stream, v[0], v[1], 1, -100, v[2], v[3]);
          },
          {{&loss, losses, {}, 32, 10}, {&lse, sums, {}, of_sums(dtype, 32), 10}});
  for (int64_t i = 0; i < rows; i++) lse.set(i, sums[static_cast<size_t>(i)]);
  s.check("cross_entropy_backward", &Kernels::cross_entropy_backward, text(dtype, shape, layout),
          {&logits, &labels, &lse, &grad, &out},
          [](const Kernels& k, Stream& stream, Views v) {
            return k.cross_entropy_backward(stream, v[0], v[1], 1, -100, v[2], v[3], v[4]);
          },
          {{&out, want, {}, 32, 2}});
  s.check("cross_entropy_backward", &Kernels::cross_entropy_backward, "in place",
          {&logits, &labels, &lse, &grad},
          [](const Kernels& k, Stream& stream, Views v) {
            return k.cross_entropy_backward(stream, v[0], v[1], 1, -100, v[2], v[3], v[0]);
          },
          {{&logits, want, {}, 32, 2}});
}

void check_fault(Suite& s) {
  Array logits = s.filled(DType::f32, {5, 3}), labels(DType::i64, {5});
  Array loss(DType::f32, {5}), lse(DType::f64, {5});
  for (int64_t i = 0; i < 5; i++) labels.set_integer(i, i == 2 || i == 4 ? 4 : 1);
  std::vector<double> sums, losses, logarithm = softmax_of(logits, true);
  if (!s.runner.table().cross_entropy || std::string(s.runner.table().name) == "cpu") return;
  for (int64_t i = 0; i < 5; i++) {
    sums.push_back(logits.at(i * 3) - logarithm[static_cast<size_t>(i * 3)]);
    losses.push_back(i == 2 || i == 4 ? 0 : -logarithm[static_cast<size_t>(i * 3)]);
  }
  s.check("cross_entropy", &Kernels::cross_entropy, "labels out of range",
          {&logits, &labels, &loss, &lse},
          [](const Kernels& k, Stream& stream, Views v) {
            return k.cross_entropy(stream, v[0], v[1], 1, -100, v[2], v[3]);
          },
          {{&lse, sums, {}, of_sums(DType::f32, 32), 10}, {&loss, losses, {}, 32, 10}});
  if (s.runner.fault != 3) s.miss("cross_entropy", "the third label's fault was not left");
}

}  // namespace

void check_rows(Suite& s) {
  for (DType dtype : kFloats)
    for (const Shape& shape : kShapes)
      for (Layout layout : kLayouts) {
        check_softmax(s, dtype, shape, layout);
        check_cross_entropy(s, dtype, shape, layout);
      }
  // Logits with a large common part, whose remainders are still distinct in double, and rows that
  // are long enough for each block size.
  for (DType dtype : {DType::f32, DType::bf16})
    for (double low : {1e3, 5e4, 1e6})
      check_cross_entropy(s, dtype, {7, 33}, Layout::dense, low,
                          low + (dtype == DType::bf16 ? low / 16 : 6));
  for (DType dtype : {DType::f32, DType::f64})
    for (const Shape& shape : {Shape{2, 9000}, Shape{1, 33000}, Shape{1, 40000}, Shape{1, 70000}}) {
      check_softmax(s, dtype, shape, Layout::dense);
      check_cross_entropy(s, dtype, shape, Layout::dense);
    }
  check_fault(s);
}

// ---- norms

namespace {

// `of_y` is the type of the result and of its gradient.
void check_norm(Suite& s, DType dtype, DType of_y, const Shape& shape, Layout layout,
                bool centered) {
  Shape kept;
  int64_t rows = 1, columns = shape.last();
  for (int dim = 0; dim + 1 < shape.rank; dim++) {
    kept.push(shape[dim]);
    rows *= shape[dim];
  }
  DType wide = compute_type(dtype), of_weight = s.integer(0, 1) ? dtype : DType::f32;
  if (dtype == DType::f64) of_weight = DType::f64;
  bool has_weight = s.integer(0, 3) > 0, has_bias = centered && s.integer(0, 3) > 0;
  Array x = s.filled(dtype, shape, layout, -1, 3), y(of_y, shape, layout);
  Array weight = s.filled(of_weight, {columns}, Layout::gaps),
        bias = s.filled(of_weight, {columns});
  Array mean(wide, kept), rstd(wide, kept), grad = s.filled(of_y, shape, layout);
  Array dx(dtype, shape, layout), dweight(of_weight, {columns}), dbias(of_weight, {columns});
  bool has_term = s.integer(0, 1) == 0;
  Array before = s.filled(dtype, shape, layout, -1, 3), term = s.filled(of_y, shape, layout);
  Array sum_of_both(dtype, shape, layout);
  if (has_term)
    for (int64_t i = 0; i < x.count(); i++) x.set(i, before.at(i) + term.at(i));
  std::vector<double> ys, means, rstds, dxs;
  std::vector<double> dweights(static_cast<size_t>(columns)), dbiases(static_cast<size_t>(columns));
  double eps = 1e-5;
  auto weight_at = [&](int64_t i) { return has_weight ? weight.at(i) : 1.0; };
  for (int64_t row = 0; row < rows; row++) {
    long double sum = 0, squares = 0, of_grad = 0, product = 0;
    auto n = static_cast<double>(columns);
    auto at = [&](int64_t i) { return row * columns + i; };
    for (int64_t i = 0; i < columns; i++) sum += x.at(at(i));
    double center = centered ? static_cast<double>(sum / n) : 0;
    for (int64_t i = 0; i < columns; i++) squares += std::pow(x.at(at(i)) - center, 2);
    auto scale = static_cast<double>(1 / std::sqrt(squares / n + eps));
    means.push_back(center);
    rstds.push_back(scale);
    for (int64_t i = 0; i < columns; i++) {
      double normal = (x.at(at(i)) - center) * scale, g = grad.at(at(i));
      ys.push_back(normal * weight_at(i) + (has_bias ? bias.at(i) : 0));
      of_grad += g * weight_at(i);
      product += g * weight_at(i) * normal;
      dweights[static_cast<size_t>(i)] += g * normal;
      dbiases[static_cast<size_t>(i)] += g;
    }
    for (int64_t i = 0; i < columns; i++) {
      double normal = (x.at(at(i)) - center) * scale;
      auto lost = static_cast<double>((centered ? of_grad / n : 0) + normal * product / n);
      dxs.push_back((grad.at(at(i)) * weight_at(i) - lost) * scale);
    }
  }
  std::string what = text(dtype, shape, layout) + " to " + dtype_name(of_y) +
                     (has_weight ? " w" : "") + (has_bias ? " b" : "");
  const char* row = centered ? "layer_norm" : "rms_norm";
  // A single column has no deviation but eps: its error is as large as 1 / sqrt(eps).
  double tight = columns < 3 && centered ? 400 : 8;
  auto or_null = [](bool has, const View& view) { return has ? &view : nullptr; };
  auto forward = [&](const Kernels& k, Stream& stream, Views v) {
    const View* w = or_null(has_weight, v[1]);
    if (!centered) return k.rms_norm(stream, v[0], w, eps, v[3], v[5]);
    return k.layer_norm(stream, v[0], w, or_null(has_bias, v[2]), eps, v[3], v[4], v[5]);
  };
  std::vector<Expect> expects{{&y, ys, {}, 32, tight}, {&rstd, rstds, {}, 32, tight}};
  if (centered) expects.push_back({&mean, means, {}, 16, 1});
  if (centered ? s.runner.table().layer_norm != nullptr : s.runner.table().rms_norm != nullptr)
    s.check(row, &Kernels::name, what, {&x, &weight, &bias, &y, &mean, &rstd}, forward, expects);
  expects.push_back({&sum_of_both, x.values(), {}, 1});
  if (has_term)
    s.check(
        "add_norm", &Kernels::add_norm, what,
        {&before, &term, &weight, &bias, &sum_of_both, &y, &mean, &rstd},
        [&](const Kernels& k, Stream& stream, Views v) {
          return k.add_norm(stream, v[0], v[1], or_null(has_weight, v[2]), or_null(has_bias, v[3]),
                            eps, v[4], v[5], or_null(centered, v[6]), v[7]);
        },
        expects);
  for (int64_t i = 0; i < rows; i++) {
    mean.set(i, means[static_cast<size_t>(i)]);
    rstd.set(i, rstds[static_cast<size_t>(i)]);
  }
  bool wants = s.integer(0, 3) > 0, adds = s.integer(0, 2) == 0;
  if (adds) {
    dx = s.filled(dtype, shape, layout);
    for (int64_t i = 0; i < dx.count(); i++) dxs[static_cast<size_t>(i)] += dx.at(i);
  }
  auto backward = [&](const Kernels& k, Stream& stream, Views v) {
    const View* w = or_null(has_weight, v[1]);
    if (!centered)
      return k.rms_norm_backward(stream, v[0], w, v[3], v[4], v[5], or_null(wants, v[6]), adds);
    return k.layer_norm_backward(stream, v[0], w, v[2], v[3], v[4], v[5], or_null(wants, v[6]),
                                 or_null(wants, v[7]), adds);
  };
  expects = {{&dx, dxs, {}, 64, tight * 4}};
  double long_sum = 4 * std::sqrt(static_cast<double>(rows) + 1);
  if (wants) expects.push_back({&dweight, dweights, {}, 32, long_sum * tight});
  if (wants && centered) expects.push_back({&dbias, dbiases, {}, 32, long_sum});
  if (centered ? s.runner.table().layer_norm_backward != nullptr
               : s.runner.table().rms_norm_backward != nullptr)
    s.check(centered ? "layer_norm_backward" : "rms_norm_backward", &Kernels::name, what,
            {&x, &weight, &mean, &rstd, &grad, &dx, &dweight, &dbias}, backward, expects);
}

}  // namespace

void check_norms(Suite& s) {
  for (DType dtype : kFloats)
    for (bool centered : {true, false}) {
      for (const Shape& shape : kShapes)
        for (Layout layout : kLayouts) check_norm(s, dtype, dtype, shape, layout, centered);
      check_norm(s, dtype, dtype, {700, 9}, Layout::dense, centered);
      // One, two and four packs of a thread, which are rows of a warp or a block.
      for (const Shape& shape : {Shape{37, 640}, Shape{9, 512}, Shape{5, 4160}})
        check_norm(s, dtype, dtype, shape, Layout::dense, centered);
      // Rows wider than a block.
      for (const Shape& shape : {Shape{2, 9000}, Shape{1, 40000}, Shape{1, 70000}})
        if (dtype == DType::f32 || dtype == DType::f64)
          check_norm(s, dtype, dtype, shape, Layout::dense, centered);
    }
  for (DType of_y : {DType::f16, DType::bf16})
    for (bool centered : {true, false}) {
      for (const Shape& shape : kShapes)
        for (Layout layout : kLayouts) check_norm(s, DType::f32, of_y, shape, layout, centered);
      for (const Shape& shape : {Shape{37, 640}, Shape{9, 512}, Shape{5, 4160}})
        check_norm(s, DType::f32, of_y, shape, Layout::dense, centered);
    }
}

}  // namespace flow::suite
