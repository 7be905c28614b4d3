// Elementwise operations: every one on each of its types, and with every layout of the operands.
#include "kernels/shared/philox.hpp"
#include "kernels/shared/scalar.hpp"
#include "tests/kernels/suite/suite.hpp"

namespace flow::suite {
namespace {

const Shape kShapes[] = {{}, {0}, {1}, {7}, {1003}, {64}, {3, 5}, {2, 0, 3}, {4, 33, 6}, {5, 16}};
constexpr Layout kLayouts[] = {Layout::dense,   Layout::shifted,   Layout::rows,     Layout::gaps,
                               Layout::swapped, Layout::backwards, Layout::broadcast};

std::string text(DType dtype, const Shape& shape, Layout layout) {
  return std::string(" ") + dtype_name(dtype) + " " + text_of(shape) + " " + name_of(layout);
}
Layout for_result(Layout layout) { return layout == Layout::broadcast ? Layout::dense : layout; }

template <int from = 0, typename F>
void with_op(Unary op, F f) {
  if constexpr (from < kUnaryCount) {
    if (static_cast<int>(op) == from) return f.template operator()<static_cast<Unary>(from)>();
    with_op<from + 1>(op, f);
  }
}
template <int from = 0, typename F>
void with_op(Binary op, F f) {
  if constexpr (from < kBinaryCount) {
    if (static_cast<int>(op) == from) return f.template operator()<static_cast<Binary>(from)>();
    with_op<from + 1>(op, f);
  }
}

// In double, or exactly in the type for integers.
double unary_value(DType dtype, Unary op, double x) {
  double y = 0;
  with_op(op, [&]<Unary known>() {
    if (is_float(dtype))
      y = unary_of<known>(x);
    else
      y = visit_number(dtype, [&](auto type) {
        return convert<double>(unary_of<known>(convert<decltype(type)>(x)));
      });
  });
  return y;
}
double binary_value(DType dtype, Binary op, double a, double b) {
  double y = 0;
  with_op(op, [&]<Binary known>() {
    if (is_float(dtype))
      y = binary_of<known>(a, b);
    else
      y = visit_number(dtype, [&](auto type) {
        using T = decltype(type);
        return convert<double>(binary_of<known>(convert<T>(a), convert<T>(b)));
      });
  });
  return y;
}
bool compare_value(Compare op, double a, double b) {
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

bool of_integers(Unary op) {
  return op == Unary::neg || op == Unary::abs || op == Unary::sign || op == Unary::square ||
         op == Unary::relu;
}

void check_copies(Suite& s) {
  for (DType from : kAllTypes)
    for (DType to : kAllTypes)
      for (Layout layout : kLayouts) {
        Shape shape = kShapes[s.integer(0, 9)];
        Array in = s.filled(from, shape, layout, -300, 300), out(to, shape, for_result(layout));
        if (is_float(from) && in.count() > 2 && layout != Layout::broadcast) {
          in.set(0, NAN);
          in.set(1, INFINITY);
          in.set(2, -1e30);
        }
        std::vector<double> want;
        for (int64_t i = 0; i < in.count(); i++)
          want.push_back(visit(from, [&](auto type) {
            using From = decltype(type);
            return visit(to, [&](auto other) {
              From x;
              std::copy_n(in.memory() + in.place(i), sizeof x, reinterpret_cast<char*>(&x));
              return convert<double>(convert<decltype(other)>(x));
            });
          }));
        // A double cannot hold the largest i64: such values are compared as integers.
        std::vector<int64_t> exact;
        if (to == DType::i64)
          for (int64_t i = 0; i < in.count(); i++)
            exact.push_back(is_float(from) ? convert<int64_t>(in.at(i)) : in.integer_at(i));
        s.check(
            "copy", &Kernels::copy, std::string(dtype_name(from)) + " to" + text(to, shape, layout),
            {&in, &out},
            [](const Kernels& k, Stream& stream, Views v) { return k.copy(stream, v[0], v[1]); },
            {{&out, want, exact, 0}});
      }
  // Transposed, and large enough for tiles.
  for (DType dtype : {DType::f32, DType::bf16, DType::u8, DType::f64}) {
    Shape shape{3, 50, 70};
    Array in = s.filled(dtype, shape, Layout::swapped), out(dtype, shape);
    s.check("copy", &Kernels::copy, "transposed" + text(dtype, shape, Layout::swapped), {&in, &out},
            [](const Kernels& k, Stream& stream, Views v) { return k.copy(stream, v[0], v[1]); },
            {{&out, in.values(), {}, 0}});
  }
  for (DType dtype : kAllTypes)
    for (Layout layout : kLayouts) {
      Shape shape = kShapes[s.integer(0, 9)];
      Array out(dtype, shape, for_result(layout));
      Number value = s.integer(0, 1) ? Number::of(int64_t{3}) : Number::of(1.5);
      double want = visit(dtype, [&](auto type) {
        using T = decltype(type);
        return convert<double>(value.is_integer ? convert<T>(value.integer)
                                                : convert<T>(value.real));
      });
      s.check(
          "fill", &Kernels::fill, text(dtype, shape, layout), {&out},
          [&](const Kernels& k, Stream& stream, Views v) { return k.fill(stream, v[0], value); },
          {{&out, std::vector<double>(static_cast<size_t>(out.count()), want), {}, 0}});
    }
}

void check_unary(Suite& s) {
  for (int number = 0; number < kUnaryCount; number++) {
    auto op = static_cast<Unary>(number);
    bool positive = op == Unary::log || op == Unary::sqrt || op == Unary::rsqrt ||
                    op == Unary::reciprocal || op == Unary::log1p;
    for (DType dtype : kNumbers) {
      if (!is_float(dtype) && !of_integers(op)) continue;
      for (int time = 0; time < 3; time++) {
        Shape shape = kShapes[s.integer(0, 9)];
        Layout layout = kLayouts[s.integer(0, 6)];
        Array in = s.filled(dtype, shape, layout, positive ? 0.1 : -4, 4);
        Array out(dtype, shape, for_result(layout));
        if (is_float(dtype) && in.count() > 1) in.set(in.count() - 1, NAN);
        std::vector<double> want;
        for (double x : in.values()) want.push_back(unary_value(dtype, op, x));
        bool rounds = op == Unary::round || op == Unary::floor || op == Unary::ceil;
        s.check("unary", &Kernels::unary, name_of(op) + text(dtype, shape, layout), {&in, &out},
                [&](const Kernels& k, Stream& stream, Views v) {
                  return k.unary(stream, op, v[0], v[1]);
                },
                {{&out, want, {}, rounds ? 0.0 : 16.0, rounds ? 0.0 : 1.0}});
        if (!is_float(dtype)) continue;
        Array grad = s.filled(dtype, shape, layout), dx(dtype, shape, for_result(layout));
        Array y(dtype, shape);
        for (int64_t i = 0; i < in.count(); i++) y.set(i, want[static_cast<size_t>(i)]);
        std::vector<double> slopes;
        for (int64_t i = 0; i < in.count(); i++)
          with_op(op, [&]<Unary known>() {
            slopes.push_back(unary_backward_of<known>(in.at(i), y.at(i), grad.at(i)));
          });
        double steep = positive ? 2000 : 200;  // the terms whose sum the gradient is
        s.check("unary_backward", &Kernels::unary_backward,
                name_of(op) + text(dtype, shape, layout), {&in, &y, &grad, &dx},
                [&](const Kernels& k, Stream& stream, Views v) {
                  return k.unary_backward(stream, op, v[0], v[1], v[2], v[3]);
                },
                {{&dx, slopes, {}, 16, dtype == DType::f32 || dtype == DType::f64 ? steep : 1.0}});
      }
    }
  }
}

void check_binary(Suite& s) {
  for (int number = 0; number < kBinaryCount; number++) {
    auto op = static_cast<Binary>(number);
    for (DType dtype : kNumbers) {
      if (!is_float(dtype) && op == Binary::div) continue;
      for (int time = 0; time < 4; time++) {
        Shape shape = kShapes[s.integer(0, 9)];
        Layout layout = kLayouts[s.integer(0, 6)], other = kLayouts[s.integer(0, 6)];
        bool positive = op == Binary::pow;
        Array a = s.filled(dtype, shape, layout, positive && is_float(dtype) ? 0.1 : -4, 4);
        Array b = s.filled(dtype, shape, other, -4, 4), out(dtype, shape, for_result(layout));
        // Integer powers stay below 2^53: the expected values are kept as doubles.
        for (int64_t i = 0; positive && !is_float(dtype) && i < b.count(); i++)
          b.set_integer(i, s.integer(dtype == DType::u8 ? 0 : -1, 6));
        if (is_float(dtype) && a.count() > 1) {
          a.set(0, NAN);
          b.set(b.count() - 1, NAN);
        }
        // For results that jump at a whole quotient, use numbers that are exact in all types.
        bool jumps = op == Binary::floor_div || op == Binary::mod;
        if (jumps && is_float(dtype))
          for (Array* each : {&a, &b})
            for (int64_t i = 0; i < each->count(); i++)
              each->set(i, std::rint(each->at(i) * 8) / 8);
        // Quotients like 3.75 / 1.25 must not round up to a whole number.
        if (jumps && is_float(dtype))
          for (int64_t i = 0; i < b.count(); i++) b.set(i, std::exp2(std::rint(b.at(i))));
        std::vector<double> want, with_number;
        for (int64_t i = 0; i < a.count(); i++)
          want.push_back(binary_value(dtype, op, a.at(i), b.at(i)));
        std::string what = name_of(op) + text(dtype, shape, layout) + "/" + name_of(other);
        double slack = jumps ? 0 : op == Binary::pow ? 64 : 4;
        s.check("binary", &Kernels::binary, what, {&a, &b, &out},
                [&](const Kernels& k, Stream& stream, Views v) {
                  return k.binary(stream, op, v[0], v[1], v[2]);
                },
                {{&out, want, {}, slack}});
        bool reversed = s.integer(0, 1) == 1;
        for (double x : a.values())
          with_number.push_back(reversed ? binary_value(dtype, op, 2, x)
                                         : binary_value(dtype, op, x, 2));
        if (jumps && is_float(dtype) && reversed) continue;
        s.check("binary_number", &Kernels::binary_number, what, {&a, &out},
                [&](const Kernels& k, Stream& stream, Views v) {
                  return k.binary_number(stream, op, v[0], Number::of(2.0), reversed, v[1]);
                },
                {{&out, with_number, {}, slack}});
      }
    }
  }
  // In place.
  Array a = s.filled(DType::f32, {33, 5}, Layout::swapped), b = s.filled(DType::f32, {33, 5});
  std::vector<double> want;
  for (int64_t i = 0; i < a.count(); i++) want.push_back(a.at(i) + b.at(i));
  s.check("binary", &Kernels::binary, "in place", {&a, &b},
          [](const Kernels& k, Stream& stream, Views v) {
            return k.binary(stream, Binary::add, v[0], v[1], v[0]);
          },
          {{&a, want, {}, 1}});
}

void check_compare(Suite& s) {
  for (int number = 0; number < kCompareCount; number++) {
    auto op = static_cast<Compare>(number);
    for (DType dtype : kNumbers) {
      Shape shape = kShapes[s.integer(0, 9)];
      Layout layout = kLayouts[s.integer(0, 6)];
      Array a = s.filled(dtype, shape, layout), b = s.filled(dtype, shape);
      Array out(DType::boolean, shape, for_result(layout));
      for (Array* each : {&a, &b})  // so that some are equal
        for (int64_t i = 0; i < each->count(); i++) each->set(i, std::fabs(std::rint(each->at(i))));
      if (is_float(dtype) && b.count() > 1) b.set(0, NAN);
      std::vector<double> want, with_number;
      double number = std::vector<double>{1, 1.5, 300, -1}[static_cast<size_t>(s.integer(0, 3))];
      for (int64_t i = 0; i < a.count(); i++) {
        want.push_back(compare_value(op, a.at(i), b.at(i)));
        with_number.push_back(compare_value(op, a.at(i), number));
      }
      std::string what = name_of(op) + text(dtype, shape, layout);
      s.check("compare", &Kernels::compare, what, {&a, &b, &out},
              [&](const Kernels& k, Stream& stream, Views v) {
                return k.compare(stream, op, v[0], v[1], v[2]);
              },
              {{&out, want, {}, 0}});
      s.check("compare_number", &Kernels::compare_number, what, {&a, &out},
              [&](const Kernels& k, Stream& stream, Views v) {
                return k.compare_number(stream, op, v[0], Number::of(number), v[1]);
              },
              {{&out, with_number, {}, 0}});
    }
  }
}

void check_others(Suite& s) {
  for (DType dtype : kAllTypes)
    for (Layout layout : kLayouts) {
      Shape shape = kShapes[s.integer(0, 9)];
      Array condition = s.filled(DType::boolean, shape, layout), a = s.filled(dtype, shape, layout);
      Array b = s.filled(dtype, shape), out(dtype, shape, for_result(layout));
      std::vector<double> want;
      for (int64_t i = 0; i < a.count(); i++) want.push_back(condition.at(i) ? a.at(i) : b.at(i));
      s.check("where", &Kernels::where, text(dtype, shape, layout), {&condition, &a, &b, &out},
              [](const Kernels& k, Stream& stream, Views v) {
                return k.where(stream, v[0], v[1], v[2], v[3]);
              },
              {{&out, want, {}, 0}});
      if (dtype == DType::boolean) continue;
      want.clear();
      if (is_float(dtype) && a.count() > 1) a.set(0, NAN);
      for (double x : a.values()) want.push_back(clamp_of(x, 1.0, 7.0));
      s.check("clamp", &Kernels::clamp, text(dtype, shape, layout), {&a, &out},
              [](const Kernels& k, Stream& stream, Views v) {
                return k.clamp(stream, v[0], Number::of(int64_t{1}), Number::of(7.0), v[1]);
              },
              {{&out, want, {}, 0}});
      if (!is_float(dtype)) continue;
      Array c = s.filled(dtype, shape, layout, 0.5, 2);
      std::vector<double> product, quotient, between;
      for (int64_t i = 0; i < a.count(); i++) {
        product.push_back(a.at(i) + 0.75 * b.at(i) * c.at(i));
        quotient.push_back(a.at(i) + 0.75 * b.at(i) / c.at(i));
        between.push_back(a.at(i) + (b.at(i) - a.at(i)) * 0.25);
      }
      s.check("add_product", &Kernels::add_product, text(dtype, shape, layout), {&a, &b, &c, &out},
              [](const Kernels& k, Stream& stream, Views v) {
                return k.add_product(stream, v[0], v[1], v[2], 0.75, v[3]);
              },
              {{&out, product, {}, 4, 4}});
      s.check("add_quotient", &Kernels::add_quotient, text(dtype, shape, layout),
              {&a, &b, &c, &out},
              [](const Kernels& k, Stream& stream, Views v) {
                return k.add_quotient(stream, v[0], v[1], v[2], 0.75, v[3]);
              },
              {{&out, quotient, {}, 4, 6}});
      s.check("lerp", &Kernels::lerp, text(dtype, shape, layout), {&a, &b, &out},
              [](const Kernels& k, Stream& stream, Views v) {
                return k.lerp(stream, v[0], v[1], 0.25, v[2]);
              },
              {{&out, between, {}, 4, 4}});
      uint64_t first = static_cast<uint64_t>(s.integer(0, 9)), seed = s.random();
      std::vector<double> kept;
      for (int64_t i = 0; i < a.count(); i++) {
        uint64_t at = first + static_cast<uint64_t>(i);
        double number = dtype == DType::f64
                            ? uniform_double(seed, at, RandomUse::dropout)
                            : static_cast<double>(uniform_float(seed, at, RandomUse::dropout));
        kept.push_back(number < 0.25 ? 0 : a.at(i) / (1 - 0.25));
      }
      s.check("dropout", &Kernels::dropout, text(dtype, shape, layout), {&a, &out},
              [&](const Kernels& k, Stream& stream, Views v) {
                return k.dropout(stream, v[0], 0.25, seed, first, v[1]);
              },
              {{&out, kept, {}, 2}});
    }
}

// A chain that uses `inputs` operands, each kind of step, and every register; its value in double.
struct RandomFused {
  FusedElementwise fused;
  int result = 0;

  void add(FusedStep::Kind kind, int op, int a, int b, int to, double x = 0, double y = 0) {
    fused.step[fused.steps++] = {kind,
                                 static_cast<uint8_t>(op),
                                 static_cast<int8_t>(a),
                                 static_cast<int8_t>(b),
                                 static_cast<int8_t>(to),
                                 x,
                                 y};
  }
  double value(const std::vector<double>& in) const {
    double rooms[kFusedTemporaries] = {}, value = 0;
    auto of = [&](int at) {
      return at < kFusedInputs ? in[static_cast<size_t>(at)] : rooms[at - kFusedInputs];
    };
    for (int i = 0; i < fused.steps; i++) {
      const FusedStep& step = fused.step[i];
      double a = of(step.a);
      auto op = static_cast<Binary>(step.op);
      value = step.kind == FusedStep::unary
                  ? unary_value(DType::f64, static_cast<Unary>(step.op), a)
              : step.kind == FusedStep::binary ? binary_value(DType::f64, op, a, of(step.b))
              : step.kind == FusedStep::number ? binary_value(DType::f64, op, a, step.x)
              : step.kind == FusedStep::clamp  ? clamp_of(a, step.x, step.y)
                                               : binary_value(DType::f64, op, step.x, a);
      rooms[step.to] = value;
    }
    return value;
  }
};

// Uses operations that keep small errors small.
RandomFused random_fused(Suite& s, int inputs) {
  constexpr Unary unaries[] = {Unary::neg,     Unary::abs, Unary::tanh,
                               Unary::sigmoid, Unary::sin, Unary::relu};
  constexpr Binary binaries[] = {Binary::add, Binary::sub, Binary::maximum, Binary::minimum};
  RandomFused made;
  made.fused.inputs = inputs;
  for (int room = 0; room < kFusedTemporaries; room++)
    made.add(FusedStep::unary, static_cast<int>(unaries[s.integer(0, 5)]), room % inputs, 0, room);
  for (int i = 0; i < 16; i++) {
    int a = kFusedInputs + static_cast<int>(s.integer(0, kFusedTemporaries - 1));
    int b = i % 3 == 0 ? static_cast<int>(s.integer(0, inputs - 1))
                       : kFusedInputs + static_cast<int>(s.integer(0, kFusedTemporaries - 1));
    int to =
        (a - kFusedInputs + 1 +
         (b >= kFusedInputs && (a - kFusedInputs + 1) % kFusedTemporaries == b - kFusedInputs)) %
        kFusedTemporaries;
    auto op = static_cast<int>(binaries[s.integer(0, 3)]);
    switch (s.integer(0, 4)) {
      case 0:
        made.add(FusedStep::number, op, a, 0, to, s.uniform(-1, 1));
        break;
      case 1:
        made.add(FusedStep::reversed, op, a, 0, to, s.uniform(-1, 1));
        break;
      case 2:
        made.add(FusedStep::number, static_cast<int>(Binary::mul), a, 0, to, s.uniform(-0.5, 0.5));
        break;
      case 3:
        made.add(FusedStep::clamp, 0, a, 0, to, -1.5, 1.25);
        break;
      default:
        made.add(FusedStep::binary, op, a, b, to);
    }
    // Bounds a value that grows.
    int room = kFusedInputs + to;
    int next = (to + 1) % kFusedTemporaries;
    if (i % 4 == 3) made.add(FusedStep::unary, static_cast<int>(Unary::tanh), room, 0, next);
  }
  return made;
}

void check_fused_elementwise(Suite& s) {
  for (DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16})
    for (Layout layout : kLayouts)
      for (int inputs : {1, 2, 3, kFusedInputs}) {
        Shape shape = kShapes[s.integer(0, 9)];
        RandomFused fused = random_fused(s, inputs);
        std::vector<Array> in;
        for (int i = 0; i < inputs; i++)
          in.push_back(s.filled(dtype, shape, i == 0 ? layout : kLayouts[s.integer(0, 6)], -1, 1));
        Array out(dtype, shape, for_result(layout));
        std::vector<double> want;
        for (int64_t i = 0; i < out.count(); i++) {
          std::vector<double> values;
          for (const Array& each : in) values.push_back(each.at(i));
          want.push_back(fused.value(values));
        }
        std::vector<Array*> operands;
        for (Array& each : in) operands.push_back(&each);
        operands.push_back(&out);
        s.check("chain", &Kernels::fused_elementwise, text(dtype, shape, layout), operands,
                [&](const Kernels& k, Stream& stream, Views v) {
                  return k.fused_elementwise(stream, fused.fused, v, v[inputs]);
                },
                {{&out, want, {}, 256, 4}});
      }
}

}  // namespace

void check_elementwise(Suite& s) {
  check_copies(s);
  check_unary(s);
  check_binary(s);
  check_compare(s);
  check_others(s);
  check_fused_elementwise(s);
}

}  // namespace flow::suite
