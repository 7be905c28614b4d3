// Element-wise operations: converts types, broadcasts shapes, and records the backward.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "kernels/shared/types.hpp"
#include "kernels/tensor/autograd.hpp"
#include "kernels/tensor/fusion.hpp"
#include "kernels/tensor/ops.hpp"

namespace flow::tensors {
namespace {

using kernels::is_float;

int width_of(DType dtype) {
  switch (dtype) {
    case DType::boolean:
      return 0;
    case DType::u8:
      return 1;
    case DType::i32:
      return 2;
    case DType::i64:
      return 3;
    case DType::f16:
    case DType::bf16:
      return 4;
    case DType::f32:
      return 5;
    case DType::f64:
      return 6;
  }
  return 6;
}

void check_device(const char* name, const Tensor& a, const Tensor& b) {
  if (a.device() == b.device()) return;
  if (is_symbol(a) || is_symbol(b)) reject_symbol();
  throw TensorError(
      fmt::format("cannot {} {} and {}: they are on different devices; move one with x:to(\"{}\")",
                  name, text_of(a), text_of(b), text_of(b.device())));
}

Shape common_shape(const char* name, const Tensor& a, const Tensor& b) {
  Shape shape;
  if (!kernels::broadcast(a.shape(), b.shape(), shape))
    throw TensorError(
        fmt::format("cannot {} {} and {}: shapes fit where their sizes, from the last "
                    "dimension on, are equal or 1",
                    name, text_of(a), text_of(b)));
  return shape;
}

View broadcast_view(const Tensor& x, const Shape& shape) {
  return x.shape() == shape ? x.view() : kernels::broadcast_to(x.view(), shape);
}

DType result_type(Binary op, DType operands) {
  if (operands == DType::boolean) operands = DType::i64;
  return op == Binary::div && !is_float(operands) ? DType::f32 : operands;
}

// Whether an integer represents it exactly: Lua's 2^20 and 16 / 2 are floats.
bool is_whole(const Number& number) {
  return number.is_integer ||
         (std::trunc(number.real) == number.real && number.real >= -0x1p63 && number.real < 0x1p63);
}

// Converts it to an integer if it is one.
Number as_whole(const Number& number) {
  bool converts = !number.is_integer && is_whole(number);
  return converts ? Number::of(static_cast<int64_t>(number.real)) : number;
}

// The type of `tensor op number`, or of `number op tensor` if `reversed`.
DType result_with(Binary op, DType tensor, const Number& number, bool reversed) {
  DType dtype = result_type(op, type_with(tensor, number));
  bool is_fraction = op == Binary::pow && !reversed && !is_float(dtype) && number.real < 0;
  return is_fraction ? DType::f32 : dtype;
}

bool any_type(Unary op) {
  return op == Unary::neg || op == Unary::abs || op == Unary::sign || op == Unary::square ||
         op == Unary::relu || op == Unary::identity;
}

Tensor raw_binary(Binary op, const Tensor& a, const Tensor& b, const Shape& shape) {
  Tensor out = Tensor::empty(a.dtype(), shape, a.device());
  call(a.device(), &Kernels::binary, kernels::name_of(op), op, broadcast_view(a, shape),
       broadcast_view(b, shape), out.view());
  return out;
}

Tensor raw_binary(Binary op, const Tensor& a, const Number& b, bool reversed) {
  Tensor out = Tensor::empty(a.dtype(), a.shape(), a.device());
  call(a.device(), &Kernels::binary_number, kernels::name_of(op), op, a.view(), b, reversed,
       out.view());
  return out;
}

Tensor times(const Tensor& a, const Tensor& b) { return binary(Binary::mul, a, b); }
Tensor times(const Tensor& a, double b) { return binary(Binary::mul, a, Number::of(b)); }

Tensor zeros_like(const Tensor& x) { return Tensor::zeros(x.dtype(), x.shape(), x.device()); }

// The gradient where `mask` is true, otherwise 0.
Tensor masked(const Tensor& mask, const Tensor& grad) {
  return where(mask, grad, Tensor::zeros(grad.dtype(), Shape{}, grad.device()));
}

// A maximum's or minimum's gradient goes to the selected operand, half to each of two equal ones,
// and to both if one is NaN.
Tensor share_of(Binary op, const Tensor& mine, const Tensor& other, const Tensor& grad) {
  Tensor same = compare(Compare::eq, mine, other);
  Tensor lost = compare(op == Binary::maximum ? Compare::lt : Compare::gt, mine, other);
  Tensor zero = Tensor::zeros(grad.dtype(), Shape{}, grad.device());
  return where(lost, zero, where(same, times(grad, 0.5), grad));
}

// The gradients of `a op b` with respect to a and b, before they are summed to their shapes.
Tensor left_gradient(Binary op, const Tensor& a, const Tensor& b, const Tensor& y,
                     const Tensor& grad) {
  switch (op) {
    case Binary::add:
    case Binary::sub:
    case Binary::mod:
      return grad;
    case Binary::mul:
      return times(grad, b);
    case Binary::div:
      return binary(Binary::div, grad, b);
    case Binary::pow: {  // b a^(b-1); 0 where b is 0, whatever a is
      Tensor power = binary(Binary::pow, a, binary(Binary::sub, b, Number::of(int64_t{1})));
      Tensor grad_input = times(times(grad, b), power);
      return where(compare(Compare::eq, b, Number::of(int64_t{0})), zeros_like(grad_input),
                   grad_input);
    }
    case Binary::maximum:
    case Binary::minimum:
      return share_of(op, a, b, grad);
    case Binary::floor_div:
      return zeros_like(y);
  }
  return grad;
}

Tensor right_gradient(Binary op, const Tensor& a, const Tensor& b, const Tensor& y,
                      const Tensor& grad) {
  switch (op) {
    case Binary::add:
      return grad;
    case Binary::sub:
      return unary(Unary::neg, grad);
    case Binary::mul:
      return times(grad, a);
    case Binary::div:  // -a / b² = -y / b
      return unary(Unary::neg, binary(Binary::div, times(grad, y), b));
    case Binary::pow: {  // y log a; 0 where a is 0 and b is not negative
      Tensor grad_input = times(times(grad, y), unary(Unary::log, a));
      return where(compare(Compare::eq, a, Number::of(int64_t{0})), zeros_like(grad_input),
                   grad_input);
    }
    case Binary::maximum:
    case Binary::minimum:
      return share_of(op, b, a, grad);
    case Binary::floor_div:
      return zeros_like(y);
    case Binary::mod:  // a - floor(a / b) b
      return unary(Unary::neg, times(grad, binary(Binary::floor_div, a, b)));
  }
  return grad;
}

// Integers have no quotient by 0, and no negative power.
void reject_operand(Binary op, const Tensor& divisor) {
  bool divides = op == Binary::floor_div || op == Binary::mod, raises = op == Binary::pow;
  if ((!divides && !raises) || is_float(divisor.dtype()) || divisor.count() == 0) return;
  Tensor refused = compare(raises ? Compare::lt : Compare::eq, divisor, Number::of(int64_t{0}));
  if (integer_of(reduce(Reduce::any, refused, all_dims(refused), false)) == 0) return;
  if (raises)
    throw TensorError(
        fmt::format("cannot raise integers to a negative power, which is a fraction: {} has one; "
                    "write x:to(\"f32\") first",
                    text_of(divisor)));
  throw TensorError(
      fmt::format("cannot {} integers by 0: {} has one; write x:to(\"f32\") for infinities",
                  verb_of(op), text_of(divisor)));
}
void reject_operand(Binary op, const Number& divisor, DType dtype) {
  bool divides = op == Binary::floor_div || op == Binary::mod;
  if (divides && !is_float(dtype) && divisor.integer == 0)
    throw TensorError(fmt::format("cannot {} integers by 0", verb_of(op)));
}

bool needs_operands(Binary op) { return op != Binary::add && op != Binary::sub; }

}  // namespace

void check_together(const char* name, std::initializer_list<Tensor> operands) {
  const Tensor& first = *operands.begin();
  for (const Tensor& each : operands) {
    if (!each || each.device() == first.device()) continue;
    if (is_symbol(first) || is_symbol(each)) reject_symbol();
    throw TensorError(
        fmt::format("{} of {} and {}: they are on different devices; move one with x:to(\"{}\")",
                    name, text_of(first), text_of(each), text_of(first.device())));
  }
}

Number checked(const Number& number, DType dtype) {
  if (is_float(dtype) || dtype == DType::boolean) return number;
  double whole = std::trunc(number.real);
  bool fits = number.is_integer || (whole >= -0x1p63 && whole < 0x1p63);
  int64_t value = number.is_integer ? number.integer : fits ? static_cast<int64_t>(whole) : 0;
  if (dtype == DType::i32) fits = fits && value == static_cast<int32_t>(value);
  if (dtype == DType::u8) fits = fits && value == static_cast<uint8_t>(value);
  if (!fits)
    throw TensorError(
        fmt::format("{} does not fit into a tensor of {}: write x:to(\"{}\") first",
                    number.is_integer ? std::to_string(value) : fmt::format("{}", number.real),
                    dtype_name(dtype), number.is_integer ? "i64" : "f64"));
  return number;
}

const char* verb_of(Binary op) {
  constexpr const char* verbs[] = {"add",
                                   "subtract",
                                   "multiply",
                                   "divide",
                                   "raise",
                                   "take the maximum of",
                                   "take the minimum of",
                                   "divide",
                                   "take the remainder of"};
  return verbs[static_cast<int>(op)];
}

DType common_type(DType a, DType b) {
  if (a == b) return a;
  if (width_of(a) == width_of(b)) return DType::f32;  // f16 and bf16
  return width_of(a) > width_of(b) ? a : b;
}

DType type_with(DType tensor, const Number& number) {
  if (is_float(tensor)) return tensor;
  if (!is_whole(number)) return DType::f32;
  return tensor == DType::boolean ? DType::i64 : tensor;
}

Tensor unary(Unary op, const Tensor& given) {
  if (is_symbol(given)) return Tracer::unary(op, given);
  DType result = given.dtype();
  if (!is_float(result) && !any_type(op)) result = DType::f32;
  if (result == DType::boolean) result = DType::i64;
  Tensor x = cast(given, result);
  Tensor out = Tensor::empty(result, x.shape(), x.device());
  call(x.device(), &Kernels::unary, kernels::name_of(op), op, x.view(), out.view());
  if (!is_recording(x)) return out;
  return record(kernels::name_of(op), out, {x},
                [op, x = SavedTensor(x), y = SavedTensor(out)](const Tensor& grad, Gradients& to) {
                  Tensor in = x.get();
                  Tensor grad_input = Tensor::empty(in.dtype(), in.shape(), in.device());
                  call(in.device(), &Kernels::unary_backward, kernels::name_of(op), op, in.view(),
                       y.get().view(), grad.view(), grad_input.view());
                  to.set(0, grad_input);
                });
}

namespace {

// Whether a kernel reads f32 and a smaller float together.
bool is_mixed(const Tensor& a, const Tensor& b) {
  auto is_small = [](DType dtype) { return dtype == DType::f16 || dtype == DType::bf16; };
  return (a.dtype() == DType::f32 && is_small(b.dtype())) ||
         (is_small(a.dtype()) && b.dtype() == DType::f32);
}

// a + b or a - b in f32 without a cast before it.
Tensor add_mixed(Binary op, const Tensor& a, const Tensor& b) {
  Shape shape = common_shape(verb_of(op), a, b);
  Tensor out = Tensor::empty(DType::f32, shape, a.device());
  call(a.device(), &Kernels::binary, kernels::name_of(op), op, broadcast_view(a, shape),
       broadcast_view(b, shape), out.view());
  if (!is_recording(a, b)) return out;
  return record(kernels::name_of(op), out, {a, b},
                [op, of_a = a.shape(), of_b = b.shape(), type_a = a.dtype(), type_b = b.dtype()](
                    const Tensor& grad, Gradients& to) {
                  if (to.wants(0)) to.set(0, cast(sum_to(grad, of_a), type_a));
                  if (!to.wants(1)) return;
                  Tensor own = op == Binary::sub ? unary(Unary::neg, grad) : grad;
                  to.set(1, cast(sum_to(own, of_b), type_b));
                });
}

}  // namespace

Tensor binary(Binary op, const Tensor& left, const Tensor& right) {
  if (is_symbol(left) || is_symbol(right)) return Tracer::binary(op, left, right);
  check_device(verb_of(op), left, right);
  if (!needs_operands(op) && is_mixed(left, right)) return add_mixed(op, left, right);
  DType dtype = result_type(op, common_type(left.dtype(), right.dtype()));
  Shape shape = common_shape(verb_of(op), left, right);
  Tensor a = cast(left, dtype), b = cast(right, dtype);
  reject_operand(op, b);
  Tensor out = raw_binary(op, a, b, shape);
  if (!is_recording(a, b)) return out;
  if (!needs_operands(op)) {
    return record(kernels::name_of(op), out, {a, b},
                  [op, of_a = a.shape(), of_b = b.shape()](const Tensor& grad, Gradients& to) {
                    if (to.wants(0)) to.set(0, sum_to(grad, of_a));
                    if (to.wants(1))
                      to.set(1, sum_to(op == Binary::sub ? unary(Unary::neg, grad) : grad, of_b));
                  });
  }
  bool keeps_result = op == Binary::div || op == Binary::pow;
  return record(
      kernels::name_of(op), out, {a, b},
      [op, a = SavedTensor(a), b = SavedTensor(b),
       y = keeps_result ? SavedTensor(out) : SavedTensor()](const Tensor& grad, Gradients& to) {
        Tensor p = a.get(), q = b.get(), r = y.get();
        if (to.wants(0)) to.set(0, sum_to(left_gradient(op, p, q, r ? r : grad, grad), p.shape()));
        if (to.wants(1)) to.set(1, sum_to(right_gradient(op, p, q, r ? r : grad, grad), q.shape()));
      });
}

Tensor binary(Binary op, const Tensor& left, const Number& number, bool reversed) {
  if (is_symbol(left)) return Tracer::number(op, left, number.real, reversed);
  DType dtype = result_with(op, left.dtype(), number, reversed);
  Tensor a = cast(left, dtype);
  Number b = checked(is_float(dtype) ? number : as_whole(number), dtype);
  if (reversed) {
    reject_operand(op, a);
  } else {
    reject_operand(op, b, dtype);
  }
  Tensor out = raw_binary(op, a, b, reversed);
  if (!is_recording(a)) return out;
  if (op == Binary::add || (op == Binary::sub && !reversed)) {
    return record(kernels::name_of(op), out, {a},
                  [](const Tensor& grad, Gradients& to) { to.set(0, grad); });
  }
  if (op == Binary::mul || op == Binary::sub || (op == Binary::div && !reversed)) {
    double factor = op == Binary::sub ? -1 : op == Binary::mul ? b.real : 1 / b.real;
    return record(kernels::name_of(op), out, {a},
                  [factor](const Tensor& grad, Gradients& to) { to.set(0, times(grad, factor)); });
  }
  return record(kernels::name_of(op), out, {a},
                [op, b, reversed, a = SavedTensor(a), y = SavedTensor(out)](const Tensor& grad,
                                                                            Gradients& to) {
                  Tensor p = a.get(), r = y.get();
                  Tensor q = Tensor::full(p.dtype(), Shape{}, b, p.device());
                  if (reversed) {
                    to.set(0, right_gradient(op, q, p, r, grad));
                  } else {
                    to.set(0, left_gradient(op, p, q, r, grad));
                  }
                });
}

Tensor compare(Compare op, const Tensor& left, const Tensor& right) {
  check_device("compare", left, right);
  DType dtype = common_type(left.dtype(), right.dtype());
  if (dtype == DType::boolean) dtype = DType::u8;
  Shape shape = common_shape("compare", left, right);
  NoRecord off;
  Tensor a = cast(left, dtype), b = cast(right, dtype);
  Tensor out = Tensor::empty(DType::boolean, shape, a.device());
  call(a.device(), &Kernels::compare, "compare", op, broadcast_view(a, shape),
       broadcast_view(b, shape), out.view());
  return out;
}

Tensor compare(Compare op, const Tensor& left, const Number& number) {
  NoRecord off;
  // An integer is compared with any number exactly: no common type is needed.
  Tensor a = left.dtype() == DType::boolean ? cast(left, DType::u8) : left;
  Tensor out = Tensor::empty(DType::boolean, a.shape(), a.device());
  call(a.device(), &Kernels::compare_number, "compare", op, a.view(), number, out.view());
  return out;
}

Tensor where(const Tensor& condition, const Tensor& left, const Tensor& right) {
  if (condition.dtype() != DType::boolean)
    throw TensorError(fmt::format("where takes a condition of bool, not {}", text_of(condition)));
  check_device("select from", left, right);
  check_device("select by", condition, left);
  DType dtype = common_type(left.dtype(), right.dtype());
  Tensor a = cast(left, dtype), b = cast(right, dtype);
  Shape both = common_shape("select from", a, b), shape;
  if (!kernels::broadcast(both, condition.shape(), shape))
    throw TensorError(
        fmt::format("cannot select from {} and {} by {}: their shapes do not broadcast "
                    "to one",
                    text_of(a), text_of(b), text_of(condition)));
  Tensor out = Tensor::empty(dtype, shape, a.device());
  call(a.device(), &Kernels::where, "where", broadcast_view(condition, shape),
       broadcast_view(a, shape), broadcast_view(b, shape), out.view());
  if (!is_recording(a, b)) return out;
  return record("where", out, {a, b},
                [mask = SavedTensor(condition), of_a = a.shape(), of_b = b.shape()](
                    const Tensor& grad, Gradients& to) {
                  Tensor zero = Tensor::zeros(grad.dtype(), Shape{}, grad.device());
                  if (to.wants(0)) to.set(0, sum_to(where(mask.get(), grad, zero), of_a));
                  if (to.wants(1)) to.set(1, sum_to(where(mask.get(), zero, grad), of_b));
                });
}

Tensor clamp(const Tensor& given, const Number& low, const Number& high) {
  if (is_symbol(given)) return Tracer::clamp(given, low.real, high.real);
  DType dtype = type_with(type_with(given.dtype(), low), high);
  bool bounded_only = std::isinf(low.real) || std::isinf(high.real);
  if (bounded_only && !is_float(given.dtype())) {  // an open side keeps integers integers
    dtype = given.dtype() == DType::boolean ? DType::i64 : given.dtype();
    if (!std::isinf(low.real)) dtype = type_with(dtype, low);
    if (!std::isinf(high.real)) dtype = type_with(dtype, high);
  }
  Tensor x = cast(given, dtype);
  if (std::isnan(low.real) || std::isnan(high.real))  // NaN propagates
    return binary(Binary::add, x, Number::of(std::nan("")));
  Tensor out = Tensor::empty(dtype, x.shape(), x.device());
  call(x.device(), &Kernels::clamp, "clamp", x.view(), low, high, out.view());
  if (!is_recording(x)) return out;
  return record(
      "clamp", out, {x}, [low, high, x = SavedTensor(x)](const Tensor& grad, Gradients& to) {
        Tensor in = x.get();
        to.set(0,
               masked(compare(Compare::ge, in, low), masked(compare(Compare::le, in, high), grad)));
      });
}

namespace {

// add_product and add_quotient: a + factor * b (op) c.
Tensor add_term(bool product, const Tensor& given_a, const Tensor& given_b, const Tensor& given_c,
                double factor) {
  const char* name = product ? "add_product" : "add_quotient";
  if (is_symbol(given_a) || is_symbol(given_b) || is_symbol(given_c)) {
    Tensor term = binary(product ? Binary::mul : Binary::div, given_b, given_c);
    return binary(Binary::add, given_a, binary(Binary::mul, term, Number::of(factor)));
  }
  check_device(name, given_a, given_b);
  check_device(name, given_b, given_c);
  DType dtype = common_type(common_type(given_a.dtype(), given_b.dtype()), given_c.dtype());
  if (!is_float(dtype)) dtype = DType::f32;
  Tensor a = cast(given_a, dtype), b = cast(given_b, dtype), c = cast(given_c, dtype);
  Shape terms = common_shape(name, b, c), shape;
  if (!kernels::broadcast(a.shape(), terms, shape))
    throw TensorError(fmt::format("{} of {}, {} and {}: their shapes do not broadcast to one", name,
                                  text_of(a), text_of(b), text_of(c)));
  Tensor out = Tensor::empty(dtype, shape, a.device());
  call(a.device(), product ? &Kernels::add_product : &Kernels::add_quotient, name,
       broadcast_view(a, shape), broadcast_view(b, shape), broadcast_view(c, shape), factor,
       out.view());
  if (!is_recording(a, b, c)) return out;
  return record(name, out, {a, b, c},
                [product, factor, of_a = a.shape(), b = SavedTensor(b), c = SavedTensor(c)](
                    const Tensor& grad, Gradients& to) {
                  Tensor p = b.get(), q = c.get(), scaled = times(grad, factor);
                  Binary op = product ? Binary::mul : Binary::div;
                  if (to.wants(0)) to.set(0, sum_to(grad, of_a));
                  if (to.wants(1)) to.set(1, sum_to(binary(op, scaled, q), p.shape()));
                  if (to.wants(2)) {
                    Tensor grad_input = times(scaled, p);
                    if (!product)
                      grad_input = unary(Unary::neg, binary(Binary::div, grad_input, times(q, q)));
                    to.set(2, sum_to(grad_input, q.shape()));
                  }
                });
}

}  // namespace

Tensor add_product(const Tensor& a, const Tensor& b, const Tensor& c, double factor) {
  return add_term(true, a, b, c, factor);
}
Tensor add_quotient(const Tensor& a, const Tensor& b, const Tensor& c, double factor) {
  return add_term(false, a, b, c, factor);
}

Tensor lerp(const Tensor& left, const Tensor& right, double weight) {
  if (is_symbol(left) || is_symbol(right)) {
    bool is_near_left = std::fabs(weight) < 0.5;  // as in kernels::lerp_of
    Tensor step = binary(Binary::mul, binary(Binary::sub, right, left),
                         Number::of(is_near_left ? weight : 1 - weight));
    return is_near_left ? binary(Binary::add, left, step) : binary(Binary::sub, right, step);
  }
  check_device("interpolate between", left, right);
  DType dtype = common_type(left.dtype(), right.dtype());
  if (!is_float(dtype)) dtype = DType::f32;
  Shape shape = common_shape("interpolate between", left, right);
  Tensor a = cast(left, dtype), b = cast(right, dtype);
  Tensor out = Tensor::empty(dtype, shape, a.device());
  call(a.device(), &Kernels::lerp, "lerp", broadcast_view(a, shape), broadcast_view(b, shape),
       weight, out.view());
  if (!is_recording(a, b)) return out;
  return record("lerp", out, {a, b},
                [weight, of_a = a.shape(), of_b = b.shape()](const Tensor& grad, Gradients& to) {
                  if (to.wants(0)) to.set(0, sum_to(times(grad, 1 - weight), of_a));
                  if (to.wants(1)) to.set(1, sum_to(times(grad, weight), of_b));
                });
}

Tensor dropout(const Tensor& given, double p, kernels::Seed seed) {
  if (!(p >= 0 && p <= 1))
    throw TensorError(fmt::format("dropout takes a probability of 0 to 1, not {}", p));
  Tensor x = is_float(given.dtype()) ? given : cast(given, DType::f32);
  Tensor out = Tensor::empty(x.dtype(), x.shape(), x.device());
  call(x.device(), &Kernels::dropout, "dropout", x.view(), p, seed, uint64_t{0}, out.view());
  if (!is_recording(x)) return out;
  return record("dropout", out, {x}, [p, seed](const Tensor& grad, Gradients& to) {
    Tensor grad_input = Tensor::empty(grad.dtype(), grad.shape(), grad.device());
    call(grad.device(), &Kernels::dropout, "dropout", grad.view(), p, seed, uint64_t{0},
         grad_input.view());
    to.set(0, grad_input);
  });
}

// ---- in place

void reject_tracked(const Tensor& source) {
  if (!runtime().records || !source.is_tracked()) return;
  throw TensorError(fmt::format(
      "{} would be written into a tensor, and its gradient could not be passed back: write y = x + "
      "… for a new tensor, join with flow.cat or flow.stack, or write x:detach()",
      text_of(source)));
}

void copy_in_place(const Tensor& target, const Tensor& source) {
  Shape shape;
  if (!kernels::broadcast(source.shape(), target.shape(), shape) || !(shape == target.shape()))
    throw TensorError(fmt::format("cannot assign {} to a part of shape {}", text_of(source),
                                  kernels::text_of(target.shape())));
  target.note_write("assignment");
  reject_tracked(source);
  NoRecord off;
  Tensor from = source.device() == target.device() ? source : move(source, target.device());
  if (from.storage() == target.storage()) from = copy_of(from);
  call(target.device(), &Kernels::copy, "copy", broadcast_view(from, shape), target.view());
}

void fill_in_place(const Tensor& target, const Number& value) {
  Number fits = checked(value, target.dtype());
  target.note_write("fill_");
  call(target.device(), &Kernels::fill, "fill", target.view(), fits);
}

namespace {

// The other operand of an in-place operation: broadcast to the target, in its type.
Tensor operand_in_place(const char* verb, const Tensor& target, const Tensor& given) {
  check_device(verb, target, given);
  reject_tracked(given);
  Shape shape = common_shape(verb, target, given);
  if (!(shape == target.shape()))
    throw TensorError(
        fmt::format("cannot {} {} and {} in place: the result does not have the shape {}", verb,
                    text_of(target), text_of(given), kernels::text_of(target.shape())));
  if (!is_float(target.dtype()) && is_float(given.dtype()))
    throw TensorError(
        fmt::format("{} takes integers in place, not {}: write x:to(\"f32\") before it",
                    text_of(target), text_of(given)));
  Tensor operand = cast(given, target.dtype());
  const View &to = target.view(), &from = operand.view();
  bool same = from.data == to.data && from.shape == to.shape &&
              std::equal(to.strides, to.strides + to.rank(), from.strides);
  return operand.storage() == target.storage() && !same ? copy_of(operand) : operand;
}

const char* in_place_name(Binary op) {
  constexpr const char* names[] = {"add_",     "sub_",     "mul_",          "div_",      "pow_",
                                   "maximum_", "minimum_", "floor_divide_", "remainder_"};
  return names[static_cast<int>(op)];
}

void reject_bool(const char* name, const Tensor& target) {
  if (target.dtype() == DType::boolean)
    throw TensorError(fmt::format("{} works on numbers, not on {}", name, text_of(target)));
}

}  // namespace

void add_in_place(const Tensor& target, const Tensor& given, const Number& factor) {
  reject_bool("add_", target);
  target.note_write("add_");
  Tensor term = operand_in_place("add", target, given);
  NoRecord off;
  if (factor.real != 1) term = binary(Binary::mul, term, factor);
  call(target.device(), &Kernels::binary, "add", Binary::add, target.view(),
       broadcast_view(term, target.shape()), target.view());
}

void binary_in_place(Binary op, const Tensor& target, const Tensor& given) {
  reject_bool(in_place_name(op), target);
  if (result_type(op, target.dtype()) != target.dtype())
    throw TensorError(
        fmt::format("{} can't {} in place: the result is f32. Write x:to(\"f32\") before it",
                    text_of(target), verb_of(op)));
  target.note_write(in_place_name(op));
  Tensor operand = operand_in_place(verb_of(op), target, given);
  reject_operand(op, operand);
  NoRecord off;
  call(target.device(), &Kernels::binary, kernels::name_of(op), op, target.view(),
       broadcast_view(operand, target.shape()), target.view());
}

void binary_in_place(Binary op, const Tensor& target, const Number& number) {
  reject_bool(in_place_name(op), target);
  if (result_with(op, target.dtype(), number, false) != target.dtype())
    throw TensorError(
        fmt::format("{} takes integers in place: write x:to(\"f32\") before it", text_of(target)));
  Number operand = checked(is_float(target.dtype()) ? number : as_whole(number), target.dtype());
  reject_operand(op, operand, target.dtype());
  target.note_write(in_place_name(op));
  call(target.device(), &Kernels::binary_number, kernels::name_of(op), op, target.view(), operand,
       false, target.view());
}

void unary_in_place(Unary op, const Tensor& target) {
  if (!is_float(target.dtype()) && !any_type(op))
    throw TensorError(fmt::format("{} can't be done in place on {}: write x:to(\"f32\") before it",
                                  kernels::name_of(op), text_of(target)));
  reject_bool(kernels::name_of(op), target);
  target.note_write(kernels::name_of(op));
  call(target.device(), &Kernels::unary, kernels::name_of(op), op, target.view(), target.view());
}

}  // namespace flow::tensors
