// Reductions: of all elements (a number), or along dimensions.
#include <fmt/format.h>

#include <limits>

#include "kernels/shared/types.hpp"
#include "lua/tensor/tensor.hpp"

namespace flow::lua {
namespace {

using tensors::Dims;
using tensors::Reduce;
using tensors::Tensor;

// x:sum(), x:sum(dim), x:sum({dims}), each followed by `true` to keep the dimensions with size 1.
template <Reduce op>
int reduce(lua_State* L) {
  const Tensor& x = check_object(L, 1, "what is reduced");
  Dims dims = check_dims(L, 2, x.view(), kernels::name_of(op));
  push_result(L, tensors::reduce(op, x, dims, lua_toboolean(L, 3)));
  return 1;
}

// x:sum() and x:mean() of floats without a gradient are summed in f64, because the result is a
// number.
template <Reduce op>
int sum_or_mean(lua_State* L) {
  const Tensor& x = check_object(L, 1, "what is reduced");
  bool all = lua_isnoneornil(L, 2);
  if (all && op == Reduce::mean && x.count() == 0)
    raise(L, fmt::format("{} has no mean: it is empty", tensors::text_of(x)));
  bool as_number = all && !lua_toboolean(L, 3) && kernels::is_float(x.dtype()) && !x.is_tracked();
  if (!as_number) return reduce<op>(L);
  Tensor out = Tensor::empty(DType::f64, {}, x.device());
  tensors::call(x.device(), &kernels::Kernels::reduce, kernels::name_of(op), op, x.view(), 0.0,
                out.view());
  push_item(L, out);
  return 1;
}

template <bool root>
int variance(lua_State* L) {  // x:var([dims [, keep [, correction]]])
  const Tensor& x = check_object(L, 1, "what is reduced");
  Dims dims = check_dims(L, 2, x.view(), root ? "std" : "var");
  auto* reduce = root ? tensors::deviation : tensors::variance;
  push_result(L, reduce(x, dims, luaL_optnumber(L, 4, 1), lua_toboolean(L, 3)));
  return 1;
}

template <bool largest>
int extremes(lua_State* L) {  // x:amax([dims [, keep]])
  const Tensor& x = check_object(L, 1, "what is reduced");
  Dims dims = check_dims(L, 2, x.view(), largest ? "amax" : "amin");
  push_result(L, tensors::extreme_of(largest, x, dims, lua_toboolean(L, 3)));
  return 1;
}

// x:max() -> value, position in row-major order; x:max(dim) -> values, positions along dim.
int extreme(lua_State* L, const char* function, bool largest, bool want_value) {
  Tensor x = check_object(L, 1, "what is reduced");
  int dim = 0;
  if (lua_isnoneornil(L, 2)) {
    x = tensors::reshape(x, kernels::Shape{x.count()});
  } else {
    dim = check_dim(L, 2, x.view(), function);
  }
  tensors::Extreme found = tensors::extreme(largest, x, dim, 1, lua_toboolean(L, 3));
  if (want_value) push_result(L, found.value);
  push_result(L, found.index);
  return want_value ? 2 : 1;
}

int largest(lua_State* L) { return extreme(L, "max", true, true); }
int smallest(lua_State* L) { return extreme(L, "min", false, true); }
int index_of_largest(lua_State* L) { return extreme(L, "argmax", true, false); }
int index_of_smallest(lua_State* L) { return extreme(L, "argmin", false, false); }

int cumsum(lua_State* L) {
  const Tensor& x = check_object(L, 1, "what is summed");
  push_object(L, tensors::cumsum(x, check_dim(L, 2, x.view(), "cumsum")));
  return 1;
}

int logsumexp(lua_State* L) {  // x:logsumexp(dim [, keep])
  Tensor x = check_object(L, 1, "what is reduced");
  Dims dims{check_dim(L, 2, x.view(), "logsumexp")};
  // The maximum is subtracted first, without a gradient: exp would overflow. If it is infinite, so
  // is the result.
  Tensor top = tensors::extreme_of(true, x.detached(), dims, true);
  Tensor infinite = tensors::compare(tensors::Compare::eq, tensors::unary(tensors::Unary::abs, top),
                                     kernels::Number::of(std::numeric_limits<double>::infinity()));
  top = tensors::where(infinite, Tensor::zeros(top.dtype(), {}, top.device()), top);
  Tensor sum = tensors::reduce(
      Reduce::sum,
      tensors::unary(tensors::Unary::exp, tensors::binary(tensors::Binary::sub, x, top)), dims,
      true);
  Tensor out = tensors::binary(tensors::Binary::add, tensors::unary(tensors::Unary::log, sum), top);
  push_result(L, lua_toboolean(L, 3) ? out : tensors::squeeze(out, dims[0]));
  return 1;
}

int top_k(lua_State* L) {  // x:topk(k) -> values, positions, along the last dimension
  tensors::TopK found =
      tensors::top_k(check_object(L, 1, "x in x:topk(k)"), luaL_checkinteger(L, 2), 1);
  push_object(L, found.values);
  push_object(L, found.index);
  return 2;
}

int histogram(lua_State* L) {  // x:histogram(bins, low, high)
  push_object(L, tensors::histogram(check_object(L, 1, "x in x:histogram(bins, low, high)"),
                                    luaL_checkinteger(L, 2), luaL_checknumber(L, 3),
                                    luaL_checknumber(L, 4)));
  return 1;
}

}  // namespace

const luaL_Reg kTensorReductions[] = {{"sum", protected_call<sum_or_mean<Reduce::sum>>},
                                      {"mean", protected_call<sum_or_mean<Reduce::mean>>},
                                      {"prod", protected_call<reduce<Reduce::product>>},
                                      {"norm", protected_call<reduce<Reduce::norm>>},
                                      {"any", protected_call<reduce<Reduce::any>>},
                                      {"all", protected_call<reduce<Reduce::all>>},
                                      {"var", protected_call<variance<false>>},
                                      {"std", protected_call<variance<true>>},
                                      {"amax", protected_call<extremes<true>>},
                                      {"amin", protected_call<extremes<false>>},
                                      {"max", protected_call<largest>},
                                      {"min", protected_call<smallest>},
                                      {"argmax", protected_call<index_of_largest>},
                                      {"argmin", protected_call<index_of_smallest>},
                                      {"cumsum", protected_call<cumsum>},
                                      {"logsumexp", protected_call<logsumexp>},
                                      {"topk", protected_call<top_k>},
                                      {"histogram", protected_call<histogram>},
                                      {nullptr, nullptr}};

}  // namespace flow::lua
