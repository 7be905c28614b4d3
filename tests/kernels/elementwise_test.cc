// Elementwise operations: each one against libm in double, over types, layouts and sizes.
#include <memory>

#include "kernels/cpu/elementwise.hpp"
#include "kernels/shared/scalar.hpp"
#include "tests/kernels/tensors.hpp"

namespace flow::kernels {
namespace {

const Shape kShapes[] = {{7, 5}, {1}, {0, 3}, {3, 2, 17}, {4, 3001}};

template <int op>
double unary_reference_of(Unary wanted, double x) {
  if (static_cast<int>(wanted) == op) {
    if (op == static_cast<int>(Unary::gelu)) return 0.5 * x * std::erfc(-x * kRootHalf);
    return unary_of<static_cast<Unary>(op)>(x);
  }
  if constexpr (op + 1 < kUnaryCount) return unary_reference_of<op + 1>(wanted, x);
  return NAN;
}
double unary_reference(Unary op, double x) { return unary_reference_of<0>(op, x); }

template <int op>
double binary_reference_of(Binary wanted, double a, double b) {
  if (static_cast<int>(wanted) == op) return binary_of<static_cast<Binary>(op)>(a, b);
  if constexpr (op + 1 < kBinaryCount) return binary_reference_of<op + 1>(wanted, a, b);
  return NAN;
}
double binary_reference(Binary op, double a, double b) { return binary_reference_of<0>(op, a, b); }

bool compare_reference(Compare op, double a, double b) {
  switch (op) {
    case Compare::eq:
      return a == b;
    case Compare::ne:
      return a != b;
    case Compare::lt:
      return a < b;
    case Compare::le:
      return a <= b;
    case Compare::gt:
      return a > b;
    default:
      return a >= b;
  }
}

// One operation in every layout: `make` gives an input, `run` calls the row.
using Inputs = std::vector<Tensor>;
void check_layouts(const std::string& name, DType in_type, DType out_type, int inputs,
                   const std::function<Tensor(int, const Shape&, Layout)>& make,
                   const std::function<int(Stream&, const Inputs&, const View&)>& run,
                   const std::function<double(const Inputs&, int64_t)>& expected, double tolerance,
                   const std::function<double(const Inputs&, int64_t)>& scale = nullptr) {
  (void)in_type;
  for (const Shape& shape : kShapes) {
    size_t turn = 0;
    for (Layout layout : kLayouts) {
      Inputs in;
      for (int i = 0; i < inputs; i++)
        in.push_back(make(i, shape, kLayouts[(turn + static_cast<size_t>(i)) % 6]));
      Tensor out(out_type, shape, kOutLayouts[turn % 5]);
      turn++;
      (void)layout;
      for_setups([&](Runner& runner) {
        out.poison();
        REQUIRE(runner([&](Stream& stream) { return run(stream, in, out.view); }) == kDone);
        check(
            name, out, [&](int64_t i) { return expected(in, i); }, tolerance,
            scale ? std::function<double(int64_t)>([&](int64_t i) { return scale(in, i); })
                  : nullptr);
      });
    }
  }
}

double tolerance_of(DType dtype, double f32) {
  return dtype == DType::f32 ? f32 : dtype == DType::f64 ? 8 : 0.6;
}

TEST_CASE("a unary function equals libm's, in every type and layout") {
  Generator random = generator("unary");
  for (int i = 0; i < kUnaryCount; i++) {
    Unary op = static_cast<Unary>(i);
    bool positive = op == Unary::log || op == Unary::sqrt || op == Unary::rsqrt;
    bool beyond = op == Unary::log1p;
    for (DType dtype : kNumbers) {
      if (!is_float(dtype)) {
        bool of_integers = op == Unary::identity || op == Unary::neg || op == Unary::abs ||
                           op == Unary::sign || op == Unary::square || op == Unary::relu;
        Tensor in(dtype, {3}), out(dtype, {3});
        Runner runner(1);
        if (!of_integers) {
          CHECK(table().unary(runner.stream, op, in.view, out.view) == kUnsupported);
          continue;
        }
      }
      check_layouts(
          std::string("unary ") + name_of(op), dtype, dtype, 1,
          [&](int, const Shape& shape, Layout layout) {
            if (!is_float(dtype)) return random_tensor(random, dtype, shape, layout);
            return random_tensor(random, dtype, shape, layout,
                                 positive ? 0.01
                                 : beyond ? -0.99
                                          : -6,
                                 6);
          },
          [&](Stream& stream, const Inputs& in, const View& out) {
            return table().unary(stream, op, in[0].view, out);
          },
          [&](const Inputs& in, int64_t at) {
            double x = in[0].get(at), y = unary_reference(op, x);
            return dtype == DType::u8 && y < 0 ? y + 256 : y;
          },
          tolerance_of(dtype, 4), [&](const Inputs& in, int64_t at) {  // of the terms that cancel
            return op == Unary::gelu || op == Unary::gelu_tanh ? std::fabs(in[0].get(at))
                   : op == Unary::sin || op == Unary::cos      ? 0x1p-10
                                                               : 0.0;
          });
    }
  }
}

TEST_CASE("special numbers give the results of libm") {
  const double specials[] = {0.0,  -0.0, INFINITY, -INFINITY, NAN,   1e-40, -1e-40, 88.9,
                             -104, 1e6,  -1e6,     3e38,      -3e38, 1,     -1,     700};
  for (int i = 0; i < kUnaryCount; i++) {
    Unary op = static_cast<Unary>(i);
    for (DType dtype : {DType::f32, DType::f64}) {
      Tensor in(dtype, {16}), out(dtype, {16});
      for (int64_t at = 0; at < 16; at++) in.set(at, specials[at]);
      for_setups([&](Runner& runner) {
        REQUIRE(table().unary(runner.stream, op, in.view, out.view) == kDone);
        for (int64_t at = 0; at < 16; at++) {
          double x = in.get(at), expected = op == Unary::gelu
                                                ? 0.5 * x * (1 + std::erf(x * kRootHalf))
                                                : unary_reference(op, x);
          INFO(name_of(op) << " of " << x << " is " << out.get(at) << ", expected " << expected);
          double tiny = dtype == DType::f32 ? 0x1p-126 : 0;
          double error = error_of(
              dtype, out.get(at),
              dtype == DType::f32 ? static_cast<double>(static_cast<float>(expected)) : expected,
              tiny);
          if (std::fabs(x) < 1e30 && (op == Unary::gelu || op == Unary::gelu_tanh))
            error = std::min(error, error_of(dtype, out.get(at), expected, std::fabs(x)));
          bool vanishes = std::fabs(expected) < tiny && std::fabs(out.get(at)) < tiny;
          CHECK((error <= 8 || vanishes));
        }
      });
    }
  }
}

template <int op>
double slope_reference_of(Unary wanted, double x, double y, double grad) {
  if (static_cast<int>(wanted) == op) return unary_backward_of<static_cast<Unary>(op)>(x, y, grad);
  if constexpr (op + 1 < kUnaryCount) return slope_reference_of<op + 1>(wanted, x, y, grad);
  return NAN;
}

TEST_CASE("the gradient of each function equals finite differences in double, in all types") {
  Generator random = generator("slopes");
  for (int i = 0; i < kUnaryCount; i++) {
    Unary op = static_cast<Unary>(i);
    bool positive = op == Unary::log || op == Unary::sqrt || op == Unary::rsqrt ||
                    op == Unary::reciprocal || op == Unary::log1p;
    bool steps = op == Unary::floor || op == Unary::ceil || op == Unary::round || op == Unary::sign;
    for (double x = positive ? 0.3 : -3.013; x < 3; x += 0.0217) {
      auto f = [&](double v) { return unary_reference(op, v); };
      double h = 1e-4;  // fourth-order differences
      double slope = (8 * (f(x + h) - f(x - h)) - (f(x + 2 * h) - f(x - 2 * h))) / (12 * h);
      INFO(name_of(op) << " at " << x);
      CHECK(std::fabs(slope_reference_of<0>(op, x, f(x), 1) - (steps ? 0 : slope)) < 1e-8);
    }
    for (DType dtype : kFloats) {
      auto y_of = [&](const Inputs& in, int64_t at) {
        return visit_float(dtype, [&](auto type) {
          using T = decltype(type);
          return convert<double>(convert<T>(unary_reference(op, in[0].get(at))));
        });
      };
      check_layouts(
          std::string("unary_backward ") + name_of(op), dtype, dtype, 2,
          [&](int which, const Shape& shape, Layout layout) {
            return random_tensor(random, dtype, shape, layout,
                                 which == 0 ? (positive ? 0.3 : -3) : -2, which == 0 ? 3 : 2);
          },
          [&](Stream& stream, const Inputs& in, const View& out) {
            Tensor y(dtype, in[0].view.shape);
            for (int64_t at = 0; at < y.count(); at++) y.set(at, y_of(in, at));
            return table().unary_backward(stream, op, in[0].view, y.view, in[1].view, out);
          },
          [&](const Inputs& in, int64_t at) {
            return slope_reference_of<0>(op, in[0].get(at), y_of(in, at), in[1].get(at));
          },
          op == Unary::gelu_tanh && epsilon_of(dtype) < 1e-6
              ? 24
              : tolerance_of(dtype, 6),  // 1 - tanh² of a large one
          [&](const Inputs& in, int64_t at) { return std::fabs(in[1].get(at)); });
    }
  }
}

TEST_CASE("a binary operation equals that in double, and integers wrap") {
  Generator random = generator("binary");
  for (int i = 0; i < kBinaryCount; i++) {
    Binary op = static_cast<Binary>(i);
    for (DType dtype : kNumbers) {
      if (!is_float(dtype) && op == Binary::div) {
        Tensor in(dtype, {3}), out(dtype, {3});
        Runner runner(1);
        CHECK(table().binary(runner.stream, op, in.view, in.view, out.view) == kUnsupported);
        continue;
      }
      bool whole = op == Binary::mod || op == Binary::floor_div;
      auto make = [&](int which, const Shape& shape, Layout layout) {
        if (!is_float(dtype) && op == Binary::pow)  // no negative exponents
          return random_tensor(random, dtype, shape, layout, which == 0 ? -2 : 0, 5);
        if (!is_float(dtype)) return random_tensor(random, dtype, shape, layout);
        if (op == Binary::pow)
          return random_tensor(random, dtype, shape, layout, which == 0 ? 0.1 : -2, 3);
        Tensor made = random_tensor(random, dtype, shape, layout);
        // A quotient near a whole number may round to either side.
        if (whole)
          made.fill(
              [&](int64_t) { return std::floor(static_cast<double>(random() % 60) - 30) / 4; });
        return made;
      };
      auto expected = [&](double a, double b) {
        if (!is_float(dtype) && whole && b == 0) return 0.0;
        double value = binary_reference(op, a, b);
        if (!is_float(dtype) && op == Binary::pow)
          value = std::trunc(value);  // a fraction becomes 0
        return dtype == DType::u8 ? value - 256 * std::floor(value / 256) : value;
      };
      check_layouts(
          std::string("binary ") + name_of(op), dtype, dtype, 2, make,
          [&](Stream& stream, const Inputs& in, const View& out) {
            return table().binary(stream, op, in[0].view, in[1].view, out);
          },
          [&](const Inputs& in, int64_t at) { return expected(in[0].get(at), in[1].get(at)); },
          tolerance_of(dtype, 2));
      for (bool reversed : {false, true}) {
        check_layouts(
            std::string("binary_number ") + name_of(op), dtype, dtype, 1, make,
            [&](Stream& stream, const Inputs& in, const View& out) {
              return table().binary_number(stream, op, in[0].view, Number::of(int64_t{2}), reversed,
                                           out);
            },
            [&](const Inputs& in, int64_t at) {
              double x = in[0].get(at);
              return reversed ? expected(2, x) : expected(x, 2);
            },
            tolerance_of(dtype, 2));
      }
    }
  }
}

TEST_CASE("integer powers are exact, wrap, and are 0 for a fraction") {
  const int64_t bases[] = {4999, -3, 2, 3, 0, 1, -1, -1, 2, 7},
                powers[] = {2, 3, 63, 50, 0, -4, -3, -2, -1, 64},
                expected[] = {24990001,
                              -27,
                              std::numeric_limits<int64_t>::min(),
                              6048575297968530377,
                              1,
                              1,
                              -1,
                              1,
                              0,
                              1843124298495784449};
  Tensor a(DType::i64, {10}), b(DType::i64, {10}), out(DType::i64, {10});
  for (int64_t i = 0; i < 10; i++) a.set_whole(i, bases[i]), b.set_whole(i, powers[i]);
  Runner runner(1);
  REQUIRE(table().binary(runner.stream, Binary::pow, a.view, b.view, out.view) == kDone);
  for (int64_t i = 0; i < 10; i++) CHECK(out.whole(i) == expected[i]);
}

TEST_CASE("a comparison with a half rounds the number to its type") {
  for (DType dtype : {DType::f16, DType::bf16}) {
    for (double number : {0.1, 0.7, -1e4, 3.0}) {
      Tensor x(dtype, {3}), out(DType::boolean, {3});
      x.fill([&](int64_t) { return number; });
      Runner runner(1);
      for (Compare op :
           {Compare::eq, Compare::ne, Compare::lt, Compare::le, Compare::gt, Compare::ge}) {
        REQUIRE(table().compare_number(runner.stream, op, x.view, Number::of(number), out.view) ==
                kDone);
        bool holds = op == Compare::eq || op == Compare::le || op == Compare::ge;
        for (int64_t i = 0; i < 3; i++) CHECK(out.whole(i) == (holds ? 1 : 0));
      }
    }
  }
}

TEST_CASE("an interpolation reaches both ends exactly") {
  for (DType dtype : kFloats) {
    double large = dtype == DType::f16 ? 6e4 : 1e8;
    Tensor a(dtype, {4}), b(dtype, {4}), out(dtype, {4});
    const double from[] = {large, -large, 1, 0.3}, to[] = {1, 0.5, large, 0.7};
    a.fill([&](int64_t i) { return from[i]; }), b.fill([&](int64_t i) { return to[i]; });
    Runner runner(1);
    REQUIRE(table().lerp(runner.stream, a.view, b.view, 1, out.view) == kDone);
    for (int64_t i = 0; i < 4; i++) CHECK(out.get(i) == b.get(i));
    REQUIRE(table().lerp(runner.stream, a.view, b.view, 0, out.view) == kDone);
    for (int64_t i = 0; i < 4; i++) CHECK(out.get(i) == a.get(i));
  }
}

TEST_CASE("64-bit integers wrap, and division by 0 is 0") {
  constexpr int64_t low = std::numeric_limits<int64_t>::min(), high = ~low;
  const int64_t a[] = {high, low, low, 7, -7, 7, -7, low}, b[] = {1, 1, -1, 2, 2, -2, 0, low};
  const int64_t sums[] = {low, low + 1, high, 9, -5, 5, -7, 0},
                quotients[] = {high, low, low, 3, -4, -4, 0, 1},
                rests[] = {0, 0, 0, 1, 1, -1, 0, 0};
  Tensor x(DType::i64, {8}), y(DType::i64, {8}), out(DType::i64, {8});
  for (int64_t i = 0; i < 8; i++) x.set_whole(i, a[i]), y.set_whole(i, b[i]);
  for_setups([&](Runner& runner) {
    auto run = [&](Binary op, const int64_t* expected) {
      REQUIRE(table().binary(runner.stream, op, x.view, y.view, out.view) == kDone);
      for (int64_t i = 0; i < 8; i++) CHECK(out.whole(i) == expected[i]);
    };
    run(Binary::add, sums);
    run(Binary::floor_div, quotients);
    run(Binary::mod, rests);
  });
}

TEST_CASE("comparisons give 0 and 1, also for numbers outside of the type's range") {
  Generator random = generator("compare");
  for (int i = 0; i < kCompareCount; i++) {
    Compare op = static_cast<Compare>(i);
    for (DType dtype : kNumbers) {
      auto make = [&](int, const Shape& shape, Layout layout) {
        Tensor made = random_tensor(random, dtype, shape, layout);
        for (int64_t at = 0; at < made.count(); at++) made.set(at, std::floor(made.get(at)));
        if (is_float(dtype) && made.count() > 2) made.set(1, NAN);
        return made;
      };
      check_layouts(
          std::string("compare ") + name_of(op), dtype, DType::boolean, 2, make,
          [&](Stream& stream, const Inputs& in, const View& out) {
            return table().compare(stream, op, in[0].view, in[1].view, out);
          },
          [&](const Inputs& in, int64_t at) {
            return compare_reference(op, in[0].get(at), in[1].get(at)) ? 1.0 : 0.0;
          },
          0);
      for (Number number :
           {Number::of(1.0), Number::of(0.5), Number::of(-300.0), Number::of(1e30),
            Number::of(int64_t{300}), Number::of(double{NAN}), Number::of(double{-INFINITY})}) {
        if (is_small_float<Half> && dtype == DType::f16 && number.real == 1e30) continue;
        check_layouts(
            std::string("compare_number ") + name_of(op), dtype, DType::boolean, 1, make,
            [&](Stream& stream, const Inputs& in, const View& out) {
              return table().compare_number(stream, op, in[0].view, number, out);
            },
            [&](const Inputs& in, int64_t at) {
              return compare_reference(op, in[0].get(at), number.real) ? 1.0 : 0.0;
            },
            0);
      }
    }
  }
}

TEST_CASE("where, clamp, lerp and the fused products equal their formulas") {
  Generator random = generator("fused");
  for (DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16, DType::i64, DType::i32,
                      DType::u8, DType::boolean}) {
    check_layouts(
        "where", dtype, dtype, 3,
        [&](int which, const Shape& shape, Layout layout) {
          return random_tensor(random, which == 0 ? DType::boolean : dtype, shape, layout);
        },
        [&](Stream& stream, const Inputs& in, const View& out) {
          return table().where(stream, in[0].view, in[1].view, in[2].view, out);
        },
        [&](const Inputs& in, int64_t at) {
          return in[0].get(at) != 0 ? in[1].get(at) : in[2].get(at);
        },
        0);
  }
  auto make_of = [&](DType dtype) {
    return [&random, dtype](int which, const Shape& shape, Layout layout) {
      return random_tensor(random, dtype, shape, layout, which == 2 ? 0.5 : -2, 2);
    };
  };
  for (DType dtype : kNumbers) {
    check_layouts(
        "clamp", dtype, dtype, 1,
        [&](int, const Shape& shape, Layout layout) {
          Tensor made = random_tensor(random, dtype, shape, layout);
          if (is_float(dtype) && made.count() > 0) made.set(0, NAN);
          return made;
        },
        [&](Stream& stream, const Inputs& in, const View& out) {
          return table().clamp(stream, in[0].view, Number::of(int64_t{-1}), Number::of(1.0), out);
        },
        [&](const Inputs& in, int64_t at) {
          double x = in[0].get(at);
          return x < -1 ? -1 : x > 1 ? 1 : x;
        },
        0);
  }
  auto three = [](const Inputs& in, int64_t at) {
    return std::fabs(in[0].get(at)) + 3 * std::fabs(in[1].get(at)) * 2;
  };
  for (DType dtype : kFloats) {
    check_layouts(
        "add_product", dtype, dtype, 3, make_of(dtype),
        [&](Stream& stream, const Inputs& in, const View& out) {
          return table().add_product(stream, in[0].view, in[1].view, in[2].view, -1.5, out);
        },
        [&](const Inputs& in, int64_t at) {
          return in[0].get(at) - 1.5 * in[1].get(at) * in[2].get(at);
        },
        tolerance_of(dtype, 3), three);
    check_layouts(
        "add_quotient", dtype, dtype, 3, make_of(dtype),
        [&](Stream& stream, const Inputs& in, const View& out) {
          return table().add_quotient(stream, in[0].view, in[1].view, in[2].view, -1.5, out);
        },
        [&](const Inputs& in, int64_t at) {
          return in[0].get(at) - 1.5 * in[1].get(at) / in[2].get(at);
        },
        tolerance_of(dtype, 3), three);
    // tanh(a * b + 0.5) - c, in one pass.
    FusedElementwise fused;
    fused.inputs = 3;
    fused.steps = 4;
    constexpr int8_t room = kFusedInputs;
    fused.step[0] = {FusedStep::binary, static_cast<uint8_t>(Binary::mul), 0, 1, 0, 0, 0};
    fused.step[1] = {FusedStep::number, static_cast<uint8_t>(Binary::add), room, 0, 1, 0.5, 0};
    fused.step[2] = {FusedStep::unary, static_cast<uint8_t>(Unary::tanh), room + 1, 0, 0, 0, 0};
    fused.step[3] = {FusedStep::binary, static_cast<uint8_t>(Binary::sub), room, 2, 1, 0, 0};
    check_layouts(
        "chain", dtype, dtype, 3, make_of(dtype),
        [&](Stream& stream, const Inputs& in, const View& out) {
          View views[] = {in[0].view, in[1].view, in[2].view};
          const View* inputs = views;
          return table().fused_elementwise(stream, fused, inputs, out);
        },
        [&](const Inputs& in, int64_t at) {
          return std::tanh(in[0].get(at) * in[1].get(at) + 0.5) - in[2].get(at);
        },
        tolerance_of(dtype, 3),
        // The last subtraction may cancel most of the exact digits.
        [&](const Inputs& in, int64_t at) { return 1 + std::fabs(in[2].get(at)); });
    check_layouts(
        "lerp", dtype, dtype, 2, make_of(dtype),
        [&](Stream& stream, const Inputs& in, const View& out) {
          return table().lerp(stream, in[0].view, in[1].view, 0.25, out);
        },
        [&](const Inputs& in, int64_t at) {
          return in[0].get(at) + (in[1].get(at) - in[0].get(at)) * 0.25;
        },
        tolerance_of(dtype, 3),
        [](const Inputs& in, int64_t at) {
          return std::fabs(in[0].get(at)) + std::fabs(in[1].get(at));
        });
    uint64_t seed = random(), first = random() % 1000;
    check_layouts(
        "dropout", dtype, dtype, 1, make_of(dtype),
        [&](Stream& stream, const Inputs& in, const View& out) {
          return table().dropout(stream, in[0].view, 0.3, seed, first, out);
        },
        [&](const Inputs& in, int64_t at) {
          uint64_t number = first + static_cast<uint64_t>(at);
          bool drops = dtype == DType::f64
                           ? is_below_by_double(seed, number, 0.3, RandomUse::dropout)
                           : is_below(seed, number, 0.3, RandomUse::dropout);
          return drops ? 0.0 : in[0].get(at) / 0.7;
        },
        tolerance_of(dtype, 2));
  }
}

TEST_CASE("an operand may be the result") {
  Generator random = generator("in place");
  for (DType dtype : kFloats) {
    for (Layout layout : kOutLayouts) {
      for_setups([&](Runner& runner) {
        Tensor a = random_tensor(random, dtype, {5, 40003}, layout),
               b = random_tensor(random, dtype, {5, 40003}, Layout::dense);
        std::vector<double> before = a.values();
        REQUIRE(table().binary(runner.stream, Binary::mul, a.view, b.view, a.view) == kDone);
        check(
            "binary mul", a, [&](int64_t i) { return before[static_cast<size_t>(i)] * b.get(i); },
            tolerance_of(dtype, 1));
      });
    }
  }
}

TEST_CASE("a copy casts each type to each other, between any strides") {
  Generator random = generator("copy");
  constexpr DType all[] = {DType::f32, DType::f64, DType::f16, DType::bf16,
                           DType::i64, DType::i32, DType::u8,  DType::boolean};
  for (DType from : all) {
    for (DType to : all) {
      check_layouts(
          "copy", from, to, 1,
          [&](int, const Shape& shape, Layout layout) {
            Tensor made = random_tensor(random, from, shape, layout);
            if (is_float(from) && made.count() > 3) made.set(0, NAN), made.set(2, 1e9);
            return made;
          },
          [&](Stream& stream, const Inputs& in, const View& out) {
            return table().copy(stream, in[0].view, out);
          },
          [&](const Inputs& in, int64_t at) {
            return visit(to, [&](auto type) {
              using T = decltype(type);
              T made = visit(from, [&](auto source) {
                using S = decltype(source);
                return is_float(from) ? convert<T>(convert<S>(in[0].get(at)))
                                      : convert<T>(convert<S>(in[0].whole(at)));
              });
              return convert<double>(made);
            });
          },
          0);
    }
    for (Layout layout : kOutLayouts) {
      Tensor out(from, {3, 70}, layout);
      for_setups([&](Runner& runner) {
        out.poison();
        REQUIRE(table().fill(runner.stream, out.view, Number::of(int64_t{1})) == kDone);
        check(
            "fill", out, [](int64_t) { return 1.0; }, 0);
      });
    }
  }
}

TEST_CASE("large matrices are transposed by several threads") {
  Generator random = generator("turn");
  for (DType dtype : {DType::f32, DType::f64, DType::f16, DType::u8}) {
    Tensor in = random_tensor(random, dtype, {2, 301, 403}), out(dtype, {2, 403, 301});
    for_setups([&](Runner& runner) {
      out.poison();
      REQUIRE(table().copy(runner.stream, swap_dims(in.view, 1, 2), out.view) == kDone);
      check(
          "copy", out,
          [&](int64_t i) {
            int64_t row = i / 301 % 403, column = i % 301, matrix = i / 301 / 403;
            return in.get((matrix * 301 + column) * 403 + row);
          },
          0);
    });
  }
}

TEST_CASE("a copied reference to a loop does not depend on the original") {
  int64_t elements = 0;
  auto count = [&](const void* const*, void*, int64_t n, int64_t) { elements += n; };
  auto first = std::make_unique<cpu::RunCall>(count);
  cpu::RunCall second(*first);
  first.reset();
  second(nullptr, nullptr, 3, 0);
  CHECK(elements == 3);
}

}  // namespace
}  // namespace flow::kernels
