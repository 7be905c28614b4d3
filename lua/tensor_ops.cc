// Arithmetic, comparison, functions of one number and products of tensors.
#include <fmt/format.h>

#include <cmath>

#include "kernels/cpu/copy.hpp"
#include "kernels/cpu/elementwise.hpp"
#include "kernels/cpu/matmul.hpp"
#include "kernels/shared/types.hpp"
#include "lua/tensor.hpp"

namespace flow::lua {
namespace {

using cpu::Binary;
using cpu::Compare;
using cpu::Unary;
using kernels::View;

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

// The type that holds both: integers give way to floats, narrow to wide.
DType common_type(DType a, DType b) {
  if (a == b) return a;
  if (width_of(a) == width_of(b)) return DType::f32;  // f16 and bf16
  return width_of(a) > width_of(b) ? a : b;
}

// One side of an operator: a tensor, or a number standing for a tensor of any shape.
struct Operand {
  View view;
  bool is_number = false;
  alignas(8) char memory[8] = {};
};

struct Pair {
  Operand a, b;
  DType dtype;  // of both, as the rules of promotion say
};

bool is_number(lua_State* L, int index) {
  return lua_type(L, index) == LUA_TNUMBER || lua_isboolean(L, index);
}

// A number takes the tensor's type, but a fraction makes integers floats.
DType type_of_number(lua_State* L, int index, DType tensor) {
  if (lua_isboolean(L, index)) return tensor;
  if (lua_isinteger(L, index)) return tensor == DType::boolean ? DType::i64 : tensor;
  return kernels::is_float(tensor) ? tensor : DType::f32;
}

void read_number(lua_State* L, int index, DType dtype, Operand& out) {
  out.is_number = true;
  out.view = kernels::dense(compute_type(dtype), {}, out.memory);
  if (lua_isboolean(L, index)) return cpu::fill(out.view, int64_t{lua_toboolean(L, index)});
  if (!lua_isinteger(L, index)) return cpu::fill(out.view, lua_tonumber(L, index));
  int64_t number = lua_tointeger(L, index);
  cpu::fill(out.view, number);
  if (!kernels::is_float(dtype) && cpu::first_as_integer(out.view) != number)
    raise(L, fmt::format("{} does not fit into a tensor of {}: write x:to(\"i64\") first", number,
                         dtype_name(dtype)));
}

void read_pair(lua_State* L, const char* verb, Pair& pair) {
  const View *a = test_tensor(L, 1), *b = test_tensor(L, 2);
  if ((a == nullptr && !is_number(L, 1)) || (b == nullptr && !is_number(L, 2)))
    raise(L, fmt::format("cannot {} {} and {}", verb, describe(L, 1), describe(L, 2)));
  if (a == nullptr && b == nullptr)
    raise(L, fmt::format("cannot {} two numbers here: one is a tensor", verb));
  pair.dtype = a == nullptr   ? type_of_number(L, 1, b->dtype)
               : b == nullptr ? type_of_number(L, 2, a->dtype)
                              : common_type(a->dtype, b->dtype);
  if (a != nullptr) pair.a.view = *a;
  if (b != nullptr) pair.b.view = *b;
}

// Brings both sides to `dtype` (a computing one) and one shape, which is returned.
kernels::Shape settle(lua_State* L, const char* verb, Pair& pair, DType dtype) {
  for (int index : {1, 2}) {
    Operand& side = index == 1 ? pair.a : pair.b;
    if (is_number(L, index)) {
      read_number(L, index, dtype, side);
    } else if (side.view.dtype != dtype) {
      View cast = new_tensor(L, dtype, side.view.shape);
      cpu::copy(side.view, cast);
      side.view = cast;
    }
  }
  kernels::Shape shape;
  if (!kernels::broadcast(pair.a.view.shape, pair.b.view.shape, shape))
    raise(L,
          fmt::format("cannot {} {} and {}: shapes fit where their sizes, from the last dimension "
                      "on, are equal or 1",
                      verb, describe(L, 1), describe(L, 2)));
  pair.a.view = kernels::stretch(pair.a.view, shape);
  pair.b.view = kernels::stretch(pair.b.view, shape);
  return shape;
}

int push_as(lua_State* L, const View& view, DType dtype) {
  if (view.dtype != dtype) as_dense(L, view, dtype);
  return 1;
}

int arithmetic(lua_State* L, Binary op, const char* verb) {
  Pair pair;
  read_pair(L, verb, pair);
  DType result = pair.dtype;
  if (result == DType::boolean) result = DType::i64;
  if ((op == Binary::div || op == Binary::pow) && !kernels::is_float(result)) result = DType::f32;
  kernels::Shape shape = settle(L, verb, pair, compute_type(result));
  View out = new_tensor(L, compute_type(result), shape);
  cpu::binary(op, pair.a.view, pair.b.view, out);
  return push_as(L, out, result);
}

template <Binary op>
int arithmetic_of(lua_State* L) {
  constexpr const char* verbs[] = {"add",
                                   "subtract",
                                   "multiply",
                                   "divide",
                                   "raise",
                                   "take the maximum of",
                                   "take the minimum of"};
  return arithmetic(L, op, verbs[static_cast<int>(op)]);
}

template <Compare op>
int compare_of(lua_State* L) {
  Pair pair;
  read_pair(L, "compare", pair);
  kernels::Shape shape = settle(L, "compare", pair, compute_type(pair.dtype));
  cpu::compare(op, pair.a.view, pair.b.view, new_tensor(L, DType::boolean, shape));
  return 1;
}

template <Unary op>
int unary_of(lua_State* L) {
  constexpr bool any_type = op == Unary::neg || op == Unary::abs || op == Unary::relu;
  View in = check_tensor(L, 1, "the operand");
  DType result = in.dtype;
  if (!kernels::is_float(result) && !any_type) result = DType::f32;
  if (result == DType::boolean) result = DType::i64;
  DType compute = compute_type(result);
  if (in.dtype != compute) in = as_dense(L, in, compute);
  View out = new_tensor(L, compute, in.shape);
  cpu::unary(op, in, out);
  return push_as(L, out, result);
}

int refuse_operator(lua_State* L) {
  raise(L, "tensors have +, -, *, /, ^ and unary -; for others there are methods and x:table()");
}

// ---- in place

// Integers take nothing in place that would be rounded.
void refuse_fraction(lua_State* L, const char* method, const View& target, int index) {
  if (kernels::is_float(target.dtype)) return;
  bool floats = is_tensor(L, index) && kernels::is_float(check_tensor(L, index, method).dtype);
  bool fraction = lua_type(L, index) == LUA_TNUMBER && !lua_isinteger(L, index) &&
                  std::floor(lua_tonumber(L, index)) != lua_tonumber(L, index);
  if (floats || fraction)
    raise(L, fmt::format("x:{} of {} takes integers: write x:to(\"f32\") before it", method,
                         describe(target)));
}

int add_to(lua_State* L) {  // x:add_(y[, factor])
  View target = check_tensor(L, 1, "x in x:add_(y)");
  DType compute = compute_type(target.dtype);
  if (compute != target.dtype)
    raise(L, fmt::format("x:add_ works on f32, f64, i64, i32 and u8, not on {}", describe(target)));
  refuse_fraction(L, "add_", target, 2);
  refuse_fraction(L, "add_", target, 3);
  double factor = luaL_optnumber(L, 3, 1);
  lua_settop(L, 2);
  Pair pair;
  read_pair(L, "add", pair);
  kernels::Shape shape = settle(L, "add", pair, compute);
  if (!(shape == target.shape))
    raise(L, fmt::format("cannot add {} to {} in place: the sum has shape {}", describe(L, 2),
                         describe(target), kernels::text_of(shape)));
  View term = pair.b.view;
  if (factor != 1) {
    Operand scale;
    lua_pushnumber(L, factor);
    read_number(L, -1, compute, scale);
    View scaled = new_tensor(L, compute, shape);
    cpu::binary(Binary::mul, term, kernels::stretch(scale.view, shape), scaled);
    term = scaled;
  }
  cpu::binary(Binary::add, target, term, target);
  lua_settop(L, 1);
  return 1;
}

int multiply_in_place(lua_State* L) {  // x:mul_(y)
  View target = check_tensor(L, 1, "x in x:mul_(y)");
  DType compute = compute_type(target.dtype);
  if (compute != target.dtype)
    raise(L, fmt::format("x:mul_ works on f32, f64, i64, i32 and u8, not on {}", describe(target)));
  refuse_fraction(L, "mul_", target, 2);
  Pair pair;
  read_pair(L, "multiply", pair);
  kernels::Shape shape = settle(L, "multiply", pair, compute);
  if (!(shape == target.shape))
    raise(L, fmt::format("cannot multiply {} by {} in place: the product has shape {}",
                         describe(target), describe(L, 2), kernels::text_of(shape)));
  cpu::binary(Binary::mul, target, pair.b.view, target);
  lua_settop(L, 1);
  return 1;
}

int fill_in_place(lua_State* L) {  // x:fill_(number)
  View target = check_tensor(L, 1, "x in x:fill_(v)");
  if (lua_type(L, 2) != LUA_TNUMBER && !lua_isboolean(L, 2))
    raise(L, "x:fill_(v) takes a number or a boolean, not " + describe(L, 2));
  refuse_fraction(L, "fill_", target, 2);
  if (lua_isinteger(L, 2) || lua_isboolean(L, 2)) {
    cpu::fill(target,
              lua_isboolean(L, 2) ? int64_t{lua_toboolean(L, 2)} : int64_t{lua_tointeger(L, 2)});
  } else {
    cpu::fill(target, lua_tonumber(L, 2));
  }
  lua_settop(L, 1);
  return 1;
}

// ---- products

int product(lua_State* L) {  // x:matmul(y)
  View a = check_tensor(L, 1, "x in x:matmul(y)"), b = check_tensor(L, 2, "y in x:matmul(y)");
  if (a.rank() != 2 || b.rank() != 2 || a.shape[1] != b.shape[0])
    raise(L, fmt::format("cannot multiply the matrices {} and {}: [m, k] times [k, n] is [m, n]",
                         describe(a), describe(b)));
  DType result = common_type(a.dtype, b.dtype);
  if (!kernels::is_float(result))
    raise(L,
          fmt::format("cannot multiply the matrices {} and {}: a product is of f32 or f64; write "
                      "x:to(\"f32\")",
                      describe(a), describe(b)));
  DType compute = compute_type(result);
  for (View* view : {&a, &b}) {
    constexpr int64_t kSizeMax = INT32_MAX;  // BLAS counts with 32 bits
    if (view->shape[0] > kSizeMax || view->shape[1] > kSizeMax)
      raise(L, fmt::format("{} is too large to multiply: at most {} rows and columns",
                           describe(*view), kSizeMax));
    if (view->dtype != compute || !cpu::is_matmul_operand(*view)) {
      View copy = new_tensor(L, compute, view->shape);
      cpu::copy(*view, copy);
      *view = copy;
    }
  }
  const AttemptRequest* request = context(L).request;
  Status ready = cpu::prepare_matmul(request == nullptr ? 1 : static_cast<int>(request->cpus));
  if (!ready.ok()) raise(L, ready.error().message);
  View out = new_tensor(L, compute, kernels::Shape{a.shape[0], b.shape[1]});
  cpu::matmul(a, b, out);
  return push_as(L, out, result);
}

}  // namespace

const luaL_Reg kTensorOperators[] = {{"__add", arithmetic_of<Binary::add>},
                                     {"__sub", arithmetic_of<Binary::sub>},
                                     {"__mul", arithmetic_of<Binary::mul>},
                                     {"__div", arithmetic_of<Binary::div>},
                                     {"__pow", arithmetic_of<Binary::pow>},
                                     {"__unm", unary_of<Unary::neg>},
                                     {"__mod", refuse_operator},
                                     {"__idiv", refuse_operator},
                                     {nullptr, nullptr}};

const luaL_Reg kTensorMath[] = {{"maximum", arithmetic_of<Binary::maximum>},
                                {"minimum", arithmetic_of<Binary::minimum>},
                                {"eq", compare_of<Compare::eq>},
                                {"ne", compare_of<Compare::ne>},
                                {"lt", compare_of<Compare::lt>},
                                {"le", compare_of<Compare::le>},
                                {"gt", compare_of<Compare::gt>},
                                {"ge", compare_of<Compare::ge>},
                                {"abs", unary_of<Unary::abs>},
                                {"exp", unary_of<Unary::exp>},
                                {"log", unary_of<Unary::log>},
                                {"sqrt", unary_of<Unary::sqrt>},
                                {"tanh", unary_of<Unary::tanh>},
                                {"sigmoid", unary_of<Unary::sigmoid>},
                                {"relu", unary_of<Unary::relu>},
                                {"matmul", product},
                                {"add_", add_to},
                                {"mul_", multiply_in_place},
                                {"fill_", fill_in_place},
                                {nullptr, nullptr}};

}  // namespace flow::lua
