// Arithmetic, comparison, functions of one number, and matrix products.
#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "kernels/shared/types.hpp"
#include "lua/tensor/tensor.hpp"

namespace flow::lua {
namespace {

using kernels::Number;
using tensors::Binary;
using tensors::Compare;
using tensors::Tensor;
using tensors::Unary;

bool is_number(lua_State* L, int index) {
  return lua_type(L, index) == LUA_TNUMBER || lua_isboolean(L, index);
}

[[noreturn]] void reject_pair(lua_State* L, const char* verb) {
  if (test_object(L, 1) == nullptr && test_object(L, 2) == nullptr)
    raise(L, fmt::format("cannot {} two numbers here: one is a tensor", verb));
  raise(L, fmt::format("cannot {} {} and {}", verb, describe(L, 1), describe(L, 2)));
}

// true counts as 1 among numbers, and does not change a tensor's type.
Number operand_number(lua_State* L, int index) { return check_number(L, index, "an operand"); }

template <Binary op>
int binary(lua_State* L) {
  const Tensor *a = test_object(L, 1), *b = test_object(L, 2);
  if (a != nullptr && b != nullptr) {
    push_object(L, tensors::binary(op, *a, *b));
  } else if (a != nullptr && is_number(L, 2)) {
    push_object(L, tensors::binary(op, *a, operand_number(L, 2)));
  } else if (b != nullptr && is_number(L, 1)) {
    push_object(L, tensors::binary(op, *b, operand_number(L, 1), true));
  } else {
    reject_pair(L, tensors::verb_of(op));
  }
  return 1;
}

Compare mirrored(Compare op) {
  switch (op) {
    case Compare::lt:
      return Compare::gt;
    case Compare::le:
      return Compare::ge;
    case Compare::gt:
      return Compare::lt;
    case Compare::ge:
      return Compare::le;
    default:
      return op;
  }
}

template <Compare op>
int compare(lua_State* L) {
  const Tensor *a = test_object(L, 1), *b = test_object(L, 2);
  if (a != nullptr && b != nullptr) {
    push_object(L, tensors::compare(op, *a, *b));
  } else if (a != nullptr && is_number(L, 2)) {
    push_object(L, tensors::compare(op, *a, operand_number(L, 2)));
  } else if (b != nullptr && is_number(L, 1)) {
    push_object(L, tensors::compare(mirrored(op), *b, operand_number(L, 1)));
  } else {
    reject_pair(L, "compare");
  }
  return 1;
}

template <Unary op>
int unary(lua_State* L) {
  push_object(L, tensors::unary(op, check_object(L, 1, "the operand")));
  return 1;
}

int gelu(lua_State* L) {  // x:gelu(), x:gelu("tanh")
  const Tensor& x = check_object(L, 1, "x in x:gelu()");
  std::string_view kind = luaL_optstring(L, 2, "none");
  if (kind != "none" && kind != "tanh")
    raise(L, fmt::format("x:gelu takes \"none\" or \"tanh\", not \"{}\"", kind));
  push_object(L, tensors::unary(kind == "tanh" ? Unary::gelu_tanh : Unary::gelu, x));
  return 1;
}

Number bound(lua_State* L, int index, double otherwise) {
  if (lua_isnoneornil(L, index)) return Number::of(otherwise);
  return check_number(L, index, "a bound of x:clamp");
}

int clamp(lua_State* L) {  // x:clamp(low, high); either may be nil
  const Tensor& x = check_object(L, 1, "x in x:clamp(low, high)");
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  push_object(L, tensors::clamp(x, bound(L, 2, -kInfinity), bound(L, 3, kInfinity)));
  return 1;
}

int masked_fill(lua_State* L) {  // x:masked_fill(mask, value)
  const Tensor& x = check_object(L, 1, "x in x:masked_fill(mask, value)");
  const Tensor& mask = check_object(L, 2, "the mask of x:masked_fill");
  Number value = check_number(L, 3, "the value of x:masked_fill");
  Tensor filler = Tensor::full(x.dtype(), {}, value, x.device());
  push_object(L, tensors::where(mask, filler, x));
  return 1;
}

template <Tensor (*function)(const Tensor&, const Tensor&, const Tensor&, double)>
int add_term(lua_State* L) {  // x:addcmul(a, b [, factor])
  push_object(L, function(check_object(L, 1, "x"), check_object(L, 2, "the second operand"),
                          check_object(L, 3, "the third operand"), luaL_optnumber(L, 4, 1)));
  return 1;
}

int lerp(lua_State* L) {
  push_object(L, tensors::lerp(check_object(L, 1, "x"), check_object(L, 2, "the end of x:lerp"),
                               luaL_checknumber(L, 3)));
  return 1;
}

int dropout(lua_State* L) {  // x:dropout(p [, seed])
  const Tensor& x = check_object(L, 1, "x in x:dropout(p)");
  double p = luaL_checknumber(L, 2);
  kernels::Seed seed =
      lua_isnoneornil(L, 3) ? next_seed(L) : static_cast<uint64_t>(luaL_checkinteger(L, 3));
  push_object(L, tensors::dropout(x, p, seed));
  return 1;
}

int reject_operator(lua_State* L) {
  raise(L,
        "tensors have +, -, *, /, //, %, ^ and unary -; for others use methods and "
        "x:table()");
}

// ---- in place; each returns x

int done(lua_State* L) {
  lua_settop(L, 1);
  return 1;
}

// Integer tensors reject in-place operands that would be rounded.
void reject_fraction(lua_State* L, const char* method, const Tensor& target, int index) {
  if (kernels::is_float(target.dtype()) || lua_type(L, index) != LUA_TNUMBER) return;
  if (lua_isinteger(L, index) || std::floor(lua_tonumber(L, index)) == lua_tonumber(L, index))
    return;
  raise(L, fmt::format("x:{} of {} takes integers: write x:to(\"f32\") before it", method,
                       tensors::text_of(target)));
}

// A float without a fraction is an integer for an integer tensor.
Number number_for(lua_State* L, const char* method, const Tensor& target, int index) {
  reject_fraction(L, method, target, index);
  Number number = check_number(L, index, "an operand");
  if (!kernels::is_integer(target.dtype()) || number.is_integer) return number;
  return Number::of(static_cast<int64_t>(tensors::checked(number, target.dtype()).real));
}

Number product_for(lua_State* L, const Tensor& target, const Number& a, const Number& b) {
  if (!a.is_integer || !b.is_integer) return Number::of(a.real * b.real);
  int64_t product = 0;
  if (__builtin_mul_overflow(a.integer, b.integer, &product))
    raise(L, fmt::format("{} times {} does not fit into a tensor of {}: write x:to(\"f64\") first",
                         a.integer, b.integer, dtype_name(target.dtype())));
  return Number::of(product);
}

int add_to(lua_State* L) {  // x:add_(y [, factor])
  const Tensor& x = check_object(L, 1, "x in x:add_(y)");
  luaL_optnumber(L, 3, 1);
  Number factor = lua_isnoneornil(L, 3) ? Number::of(int64_t{1}) : number_for(L, "add_", x, 3);
  if (const Tensor* y = test_object(L, 2)) {
    tensors::add_in_place(x, *y, factor);
    return done(L);
  }
  Number term = product_for(L, x, number_for(L, "add_", x, 2), factor);
  tensors::binary_in_place(Binary::add, x, term);
  return done(L);
}

template <Binary op>
int binary_in_place(lua_State* L) {
  constexpr const char* name = op == Binary::sub ? "sub_" : op == Binary::mul ? "mul_" : "div_";
  const Tensor& x = check_object(L, 1, "x");
  if (const Tensor* y = test_object(L, 2)) {
    tensors::binary_in_place(op, x, *y);
  } else {
    if (!is_number(L, 2)) reject_pair(L, tensors::verb_of(op));
    tensors::binary_in_place(op, x, number_for(L, name, x, 2));
  }
  return done(L);
}

template <Unary op>
int unary_in_place(lua_State* L) {
  tensors::unary_in_place(op, check_object(L, 1, "x"));
  return done(L);
}

int fill_in_place(lua_State* L) {  // x:fill_(number)
  const Tensor& x = check_object(L, 1, "x in x:fill_(v)");
  reject_fraction(L, "fill_", x, 2);
  if (!is_number(L, 2)) raise(L, "x:fill_(v) takes a number or a boolean, not " + describe(L, 2));
  tensors::fill_in_place(x, check_number(L, 2, "what x:fill_ writes"));
  return done(L);
}

int zero_in_place(lua_State* L) {
  tensors::fill_in_place(check_object(L, 1, "x in x:zero_()"), Number::of(int64_t{0}));
  return done(L);
}

int copy_in_place(lua_State* L) {  // x:copy_(y)
  tensors::copy_in_place(check_object(L, 1, "x in x:copy_(y)"),
                         check_object(L, 2, "y in x:copy_(y)"));
  return done(L);
}

// ---- products

int product(lua_State* L) {  // x:matmul(y)
  push_object(L, tensors::matmul(check_object(L, 1, "x in x:matmul(y)"),
                                 check_object(L, 2, "y in x:matmul(y)")));
  return 1;
}

}  // namespace

const luaL_Reg kTensorOperators[] = {{"__add", protected_call<binary<Binary::add>>},
                                     {"__sub", protected_call<binary<Binary::sub>>},
                                     {"__mul", protected_call<binary<Binary::mul>>},
                                     {"__div", protected_call<binary<Binary::div>>},
                                     {"__pow", protected_call<binary<Binary::pow>>},
                                     {"__mod", protected_call<binary<Binary::mod>>},
                                     {"__idiv", protected_call<binary<Binary::floor_div>>},
                                     {"__unm", protected_call<unary<Unary::neg>>},
                                     {"__band", reject_operator},
                                     {"__bor", reject_operator},
                                     {nullptr, nullptr}};

const luaL_Reg kTensorMath[] = {{"add", protected_call<binary<Binary::add>>},
                                {"sub", protected_call<binary<Binary::sub>>},
                                {"mul", protected_call<binary<Binary::mul>>},
                                {"div", protected_call<binary<Binary::div>>},
                                {"pow", protected_call<binary<Binary::pow>>},
                                {"floor_divide", protected_call<binary<Binary::floor_div>>},
                                {"remainder", protected_call<binary<Binary::mod>>},
                                {"maximum", protected_call<binary<Binary::maximum>>},
                                {"minimum", protected_call<binary<Binary::minimum>>},
                                {"eq", protected_call<compare<Compare::eq>>},
                                {"ne", protected_call<compare<Compare::ne>>},
                                {"lt", protected_call<compare<Compare::lt>>},
                                {"le", protected_call<compare<Compare::le>>},
                                {"gt", protected_call<compare<Compare::gt>>},
                                {"ge", protected_call<compare<Compare::ge>>},
                                {"neg", protected_call<unary<Unary::neg>>},
                                {"abs", protected_call<unary<Unary::abs>>},
                                {"sign", protected_call<unary<Unary::sign>>},
                                {"square", protected_call<unary<Unary::square>>},
                                {"relu", protected_call<unary<Unary::relu>>},
                                {"exp", protected_call<unary<Unary::exp>>},
                                {"expm1", protected_call<unary<Unary::expm1>>},
                                {"log", protected_call<unary<Unary::log>>},
                                {"log1p", protected_call<unary<Unary::log1p>>},
                                {"sqrt", protected_call<unary<Unary::sqrt>>},
                                {"rsqrt", protected_call<unary<Unary::rsqrt>>},
                                {"reciprocal", protected_call<unary<Unary::reciprocal>>},
                                {"sin", protected_call<unary<Unary::sin>>},
                                {"cos", protected_call<unary<Unary::cos>>},
                                {"tanh", protected_call<unary<Unary::tanh>>},
                                {"sigmoid", protected_call<unary<Unary::sigmoid>>},
                                {"erf", protected_call<unary<Unary::erf>>},
                                {"silu", protected_call<unary<Unary::silu>>},
                                {"softplus", protected_call<unary<Unary::softplus>>},
                                {"floor", protected_call<unary<Unary::floor>>},
                                {"ceil", protected_call<unary<Unary::ceil>>},
                                {"round", protected_call<unary<Unary::round>>},
                                {"gelu", protected_call<gelu>},
                                {"clamp", protected_call<clamp>},
                                {"masked_fill", protected_call<masked_fill>},
                                {"addcmul", protected_call<add_term<tensors::add_product>>},
                                {"addcdiv", protected_call<add_term<tensors::add_quotient>>},
                                {"lerp", protected_call<lerp>},
                                {"dropout", protected_call<dropout>},
                                {"matmul", protected_call<product>},
                                {"add_", protected_call<add_to>},
                                {"sub_", protected_call<binary_in_place<Binary::sub>>},
                                {"mul_", protected_call<binary_in_place<Binary::mul>>},
                                {"div_", protected_call<binary_in_place<Binary::div>>},
                                {"neg_", protected_call<unary_in_place<Unary::neg>>},
                                {"exp_", protected_call<unary_in_place<Unary::exp>>},
                                {"relu_", protected_call<unary_in_place<Unary::relu>>},
                                {"fill_", protected_call<fill_in_place>},
                                {"zero_", protected_call<zero_in_place>},
                                {"copy_", protected_call<copy_in_place>},
                                {nullptr, nullptr}};

}  // namespace flow::lua
