// Matrix products, attention and rotary positions against simple loops in double.
#include <algorithm>

#include "tests/kernels/tensors.hpp"

namespace flow::kernels {
namespace {

double tolerance_of(DType dtype, double f32, double f64 = 16) {
  return dtype == DType::f32 ? f32 : dtype == DType::f64 ? f64 : 0.6;
}

double activate(Unary op, double x) {
  switch (op) {
    case Unary::relu:
      return x < 0 ? 0 : x;
    case Unary::gelu:
      return 0.5 * x * std::erfc(-x * std::sqrt(0.5));
    case Unary::gelu_tanh:
      return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    default:
      return x;
  }
}

TEST_CASE("a product equals three loops: batches, strides, bias and activation") {
  Generator random = generator("matmul");
  struct Case {
    int64_t batch, m, n, k;
  };
  const Case cases[] = {{1, 3, 4, 5},    {2, 1, 7, 3},    {1, 0, 3, 2},    {2, 3, 4, 0},
                        {1, 65, 33, 70}, {3, 40, 50, 20}, {1, 1, 300, 90}, {1, 90, 1, 200},
                        {5, 17, 18, 19}, {1, 520, 40, 30}};
  int turn = 0;
  for (const Case& each : cases) {
    for (DType dtype : kFloats) {
      for (int variant = 0; variant < 6; variant++) {
        auto layout = [&](int i) { return kLayouts[(turn + i) % 6]; };
        turn++;
        bool shared = variant == 1;  // one b for the whole batch
        Layout b_layout = shared ? Layout::broadcast : layout(1);
        if (!shared && b_layout == Layout::broadcast) b_layout = Layout::transposed;
        Tensor a = random_tensor(random, dtype, {each.batch, each.m, each.k},
                                 variant == 0 ? Layout::dense : layout(0)),
               b = random_tensor(random, dtype, {each.batch, each.k, each.n},
                                 variant == 0 ? Layout::dense : b_layout),
               c(dtype, {each.batch, each.m, each.n}, variant % 2 ? Layout::padded : Layout::dense),
               bias = random_tensor(random, dtype, {each.n});
        std::vector<double> before;
        Tensor start = random_tensor(random, dtype, c.view.shape);
        double alpha = variant == 2 ? 0.5 : 1, beta = variant >= 3 ? 1 : 0;
        bool biased = variant == 4 || variant == 2;
        Unary activation = variant == 4   ? Unary::gelu_tanh
                           : variant == 5 ? Unary::relu
                           : variant == 2 ? Unary::gelu
                                          : Unary::identity;
        std::vector<double> expected, sizes;
        for (int64_t i = 0; i < c.count(); i++) {
          int64_t column = i % each.n, row = i / each.n % each.m, matrix = i / each.n / each.m;
          double sum = 0, size = 0;
          for (int64_t p = 0; p < each.k; p++) {
            double part = a.get((matrix * each.m + row) * each.k + p) *
                          b.get((matrix * each.k + p) * each.n + column);
            sum += part, size += std::fabs(part);
          }
          double value =
              alpha * sum + (beta != 0 ? start.get(i) : 0) + (biased ? bias.get(column) : 0);
          expected.push_back(activate(activation, value));
          sizes.push_back(size + 3);
        }
        for_setups([&](Runner& runner) {
          // The scratch protocol may call twice: c is read if beta is not 0.
          c.poison();
          if (beta != 0) c.fill([&](int64_t i) { return start.get(i); });
          REQUIRE(runner([&](Stream& s) {
                    return table().matmul(s, a.view, b.view, alpha, beta,
                                          biased ? &bias.view : nullptr, activation, c.view);
                  }) == kDone);
          check(
              "matmul", c, [&](int64_t i) { return expected[static_cast<size_t>(i)]; },
              tolerance_of(dtype, 3), [&](int64_t i) { return sizes[static_cast<size_t>(i)]; });
        });
      }
    }
  }
}

TEST_CASE("the epilogue of a product is an activation, its gradient, or sums") {
  Generator random = generator("product");
  constexpr int64_t m = 5, n = 7, k = 6;
  for (DType dtype : kFloats) {
    Tensor a = random_tensor(random, dtype, {m, k}), b = random_tensor(random, dtype, {k, n}),
           bias = random_tensor(random, dtype, {n});
    auto sum_at = [&](int64_t i) {
      double sum = 0;
      for (int64_t p = 0; p < k; p++) sum += a.get(i / n * k + p) * b.get(p * n + i % n);
      return sum;
    };
    auto size = [](int64_t) { return 10.0; };
    Tensor before(dtype, {m, n}), c(dtype, {m, n});
    for_setups([&](Runner& runner) {
      ProductEpilogue layer;
      layer.bias = &bias.view;
      layer.activation = Unary::gelu_tanh;
      layer.before = &before.view;
      before.poison(), c.poison();
      REQUIRE(runner([&](Stream& s) {
                return table().product(s, a.view, b.view, layer, c.view);
              }) == kDone);
      check(
          "product", before, [&](int64_t i) { return sum_at(i) + bias.get(i % n); },
          tolerance_of(dtype, 3), size);
      check(
          "product", c, [&](int64_t i) { return activate(Unary::gelu_tanh, before.get(i)); },
          tolerance_of(dtype, 3), size);
      // The gradient: relu's is 0 or 1.
      ProductEpilogue gradient;
      Tensor columns(dtype, {n}), dx(dtype, {m, n});
      gradient.activation = Unary::relu;
      gradient.is_gradient = true;
      gradient.before = &before.view;
      gradient.column_sums = &columns.view;
      REQUIRE(runner([&](Stream& s) {
                return table().product(s, a.view, b.view, gradient, dx.view);
              }) == kDone);
      check(
          "product", dx, [&](int64_t i) { return before.get(i) > 0 ? sum_at(i) : 0; },
          tolerance_of(dtype, 3), size);
      check(
          "product", columns,
          [&](int64_t j) {
            double sum = 0;
            for (int64_t i = 0; i < m; i++) sum += dx.get(i * n + j);
            return sum;
          },
          tolerance_of(dtype, 3), size);
      // Smaller floats are summed into f32.
      DType wide = dtype == DType::f64 ? dtype : DType::f32;
      Tensor dw(wide, {m, n}), rows(wide, {m});
      ProductEpilogue sums;
      sums.row_sums = &rows.view;
      REQUIRE(runner([&](Stream& s) {
                return table().product(s, a.view, b.view, sums, dw.view);
              }) == kDone);
      check("product", dw, sum_at, tolerance_of(wide, 3), size);
      check(
          "product", rows,
          [&](int64_t i) {
            double sum = 0;
            for (int64_t p = 0; p < k; p++) sum += a.get(i * k + p);
            return sum;
          },
          tolerance_of(wide, 3), size);
    });
  }
}

TEST_CASE("a large product is split between threads and has the same bits on each call") {
  Generator random = generator("large matmul");
  for (DType dtype : {DType::f32, DType::bf16}) {
    Tensor a = random_tensor(random, dtype, {300, 257}),
           b = random_tensor(random, dtype, {257, 1300}), c(dtype, {300, 1300}),
           again(dtype, {300, 1300});
    for (int threads : {1, 2, 3, 4}) {
      Runner runner(threads);
      auto run = [&](Tensor& out) {
        out.poison();
        REQUIRE(runner([&](Stream& s) {
                  return table().matmul(s, a.view, b.view, 1, 0, nullptr, Unary::identity,
                                        out.view);
                }) == kDone);
      };
      run(c), run(again);
      CHECK(c.bytes() == again.bytes());
      for (int64_t i = 0; i < c.count(); i += 997) {
        double sum = 0, size = 0;
        for (int64_t p = 0; p < 257; p++) {
          double part = a.get(i / 1300 * 257 + p) * b.get(p * 1300 + i % 1300);
          sum += part, size += std::fabs(part);
        }
        CHECK(error_of(dtype, c.get(i), sum, size) < 3);
      }
    }
  }
}

struct Heads {
  int64_t batch, heads, groups, queries, keys, d;
};

// The formula, row by row; accessor functions read its inputs.
struct Reference {
  Heads of;
  bool causal;
  double scale;
  const Tensor &q, &k, &v;

  std::vector<double> weights(int64_t batch, int64_t head, int64_t i, double& lse) const {
    int64_t group = head / (of.heads / of.groups);
    std::vector<double> w;
    double most = -INFINITY, sum = 0;
    for (int64_t j = 0; j < of.keys; j++) {
      bool seen = !causal || j <= i + of.keys - of.queries;
      double dot = 0;
      for (int64_t x = 0; x < of.d; x++)
        dot += q.get(((batch * of.heads + head) * of.queries + i) * of.d + x) *
               k.get(((batch * of.groups + group) * of.keys + j) * of.d + x);
      w.push_back(seen ? dot * scale : -INFINITY);
      most = std::max(most, w.back());
    }
    for (double& each : w) sum += each = most == -INFINITY ? 0 : std::exp(each - most);
    for (double& each : w) each = sum > 0 ? each / sum : 0;
    lse = sum > 0 ? most + std::log(sum) : -INFINITY;
    return w;
  }
  void forward(std::vector<double>& out, std::vector<double>& lse) const {
    for (int64_t row = 0; row < of.batch * of.heads * of.queries; row++) {
      int64_t i = row % of.queries, head = row / of.queries % of.heads,
              batch = row / of.queries / of.heads;
      int64_t group = head / (of.heads / of.groups);
      double total = 0;
      auto w = weights(batch, head, i, total);
      lse.push_back(total);
      for (int64_t x = 0; x < of.d; x++) {
        double sum = 0;
        for (int64_t j = 0; j < of.keys; j++)
          sum += w[static_cast<size_t>(j)] *
                 v.get(((batch * of.groups + group) * of.keys + j) * of.d + x);
        out.push_back(sum);
      }
    }
  }
};

TEST_CASE("attention equals its formula row by row, and its gradients equal finite differences") {
  Generator random = generator("attention");
  const Heads cases[] = {{1, 2, 1, 3, 5, 4}, {2, 2, 2, 5, 3, 4}, {1, 4, 2, 70, 150, 16},
                         {2, 1, 1, 1, 9, 8}, {1, 1, 1, 0, 4, 4}, {1, 2, 2, 130, 130, 32}};
  for (const Heads& of : cases) {
    for (bool causal : {false, true}) {
      Shape queries{of.batch, of.heads, of.queries, of.d}, keys{of.batch, of.groups, of.keys, of.d};
      Attention options{causal, 1 / std::sqrt(static_cast<double>(of.d))};
      Tensor q0 = random_tensor(random, DType::f16, queries),
             k0 = random_tensor(random, DType::f16, keys),
             v0 = random_tensor(random, DType::f16, keys),
             g0 = random_tensor(random, DType::f16, queries);
      Tensor wq = as_double(q0), wk = as_double(k0), wv = as_double(v0), wg = as_double(g0);
      Tensor dq(DType::f64, queries), dk(DType::f64, keys), dv(DType::f64, keys);
      std::vector<double> expected, totals;
      Reference{of, causal, options.scale, wq, wk, wv}.forward(expected, totals);
      auto run = [&](Runner& runner, const Tensor& q, const Tensor& k, const Tensor& v,
                     const Tensor& g, Tensor& out, Tensor& lse, Tensor& a, Tensor& b, Tensor& c) {
        out.poison(), lse.poison(), a.poison(), b.poison(), c.poison();
        REQUIRE(runner([&](Stream& s) {
                  return table().attention(s, options, q.view, k.view, v.view, out.view, lse.view);
                }) == kDone);
        REQUIRE(runner([&](Stream& s) {
                  return table().attention_backward(s, options, q.view, k.view, v.view, out.view,
                                                    lse.view, g.view, a.view, b.view, c.view);
                }) == kDone);
      };
      {
        Runner plain(1);
        Tensor out(DType::f64, queries), lse(DType::f64, {of.batch, of.heads, of.queries});
        run(plain, wq, wk, wv, wg, out, lse, dq, dk, dv);
        if (of.queries * of.keys < 20) {
          auto loss = [&] {
            std::vector<double> made, unused;
            Reference{of, causal, options.scale, wq, wk, wv}.forward(made, unused);
            double sum = 0;
            for (int64_t i = 0; i < wg.count(); i++)
              sum += made[static_cast<size_t>(i)] * wg.get(i);
            return sum;
          };
          auto compare = [&](Tensor& x, const Tensor& slope) {
            for (int64_t i = 0; i < x.count(); i++) {
              double at = x.get(i), h = 1e-5;
              x.set(i, at + h);
              double above = loss();
              x.set(i, at - h);
              double difference = (above - loss()) / (2 * h);
              x.set(i, at);
              CHECK(std::fabs(difference - slope.get(i)) < 1e-6);
            }
          };
          compare(wq, dq), compare(wk, dk), compare(wv, dv);
        }
      }
      for (DType dtype : {DType::f32, DType::f64, DType::f16}) {
        auto copy = [&](const Tensor& from, Layout layout) {
          Tensor made(dtype, from.view.shape, layout);
          made.fill([&](int64_t i) { return from.get(i); });
          return made;
        };
        Tensor q = copy(q0, Layout::padded), k = copy(k0, Layout::dense),
               v = copy(v0, Layout::padded), g = copy(g0, Layout::dense);
        Tensor out(dtype, queries, Layout::padded),
            lse(DType::f64, {of.batch, of.heads, of.queries}), a(dtype, queries),
            b(dtype, keys, Layout::padded), c(dtype, keys);
        for_setups([&](Runner& runner) {
          run(runner, q, k, v, g, out, lse, a, b, c);
          check(
              "attention", out, [&](int64_t i) { return expected[static_cast<size_t>(i)]; },
              tolerance_of(dtype, 8), [](int64_t) { return 2.0; });
          check(
              "attention", lse, [&](int64_t i) { return totals[static_cast<size_t>(i)]; },
              dtype == DType::f64 ? 8 : std::ldexp(8, 29), [](int64_t) { return 4.0; });
          double size = 4 * std::sqrt(static_cast<double>(of.queries) + 1);
          double tolerance = dtype == DType::f16 ? 3 : 16;  // `out` was rounded
          check(
              "attention_backward", a, [&](int64_t i) { return dq.get(i); }, tolerance,
              [](int64_t) { return 4.0; });
          check(
              "attention_backward", b, [&](int64_t i) { return dk.get(i); }, tolerance,
              [&](int64_t) { return size; });
          check(
              "attention_backward", c, [&](int64_t i) { return dv.get(i); }, tolerance,
              [&](int64_t) { return size; });
        });
      }
    }
  }
}

TEST_CASE("rotary positions rotate pairs, and back") {
  Generator random = generator("rotary");
  for (DType dtype : kFloats) {
    Shape shape{2, 3, 50, 8};
    Tensor x = random_tensor(random, dtype, shape, Layout::padded), out(dtype, shape);
    for (bool inverse : {false, true}) {
      for_setups([&](Runner& runner) {
        out.poison();
        REQUIRE(runner([&](Stream& s) {
                  return table().rotary(s, x.view, 7, 10000, inverse, out.view);
                }) == kDone);
        check(
            "rotary", out,
            [&](int64_t at) {
              int64_t i = at % 8, t = at / 8 % 50, pair = i % 4;
              double angle = static_cast<double>(7 + t) *
                             std::pow(10000, -2.0 * static_cast<double>(pair) / 8) *
                             (inverse ? -1 : 1);
              double a = x.get(at - i + pair), b = x.get(at - i + pair + 4);
              return i < 4 ? a * std::cos(angle) - b * std::sin(angle)
                           : b * std::cos(angle) + a * std::sin(angle);
            },
            tolerance_of(dtype, 3), [](int64_t) { return 3.0; });
      });
    }
  }
}

}  // namespace
}  // namespace flow::kernels
