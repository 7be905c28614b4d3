// Sums, means and extremes: of all elements, or along one dimension.
#include <fmt/format.h>

#include "kernels/cpu/copy.hpp"
#include "kernels/cpu/elementwise.hpp"
#include "kernels/cpu/reduce.hpp"
#include "kernels/shared/types.hpp"
#include "lua/tensor.hpp"

namespace flow::lua {
namespace {

using kernels::View;

struct Request {
  View in;               // the dimension to reduce is the last
  kernels::Shape shape;  // of the result
  kernels::Shape kept;   // with the dimension as 1, where the caller wants that
  bool all = false;      // of all elements: the result is a number
  bool keep = false;
};

// x:sum(), x:sum(dim), x:sum(dim, true)
Request read_request(lua_State* L, const char* function) {
  Request request;
  View in = check_tensor(L, 1, "what is reduced");
  if (lua_isnoneornil(L, 2)) {
    request.all = true;
    request.in = as_dense(L, in, in.dtype);
    request.in = kernels::dense(in.dtype, kernels::Shape{in.count()}, request.in.data);
    return request;
  }
  int dim = check_dim(L, 2, in, function);
  request.keep = lua_toboolean(L, 3);
  request.kept = in.shape;
  request.kept[dim] = 1;
  for (int at = dim; at + 1 < in.rank(); at++) in = kernels::swap_dims(in, at, at + 1);
  request.in = in;
  request.shape = in.shape;
  request.shape.rank--;
  return request;
}

// Replaces the dense tensor at the top by one with the reduced dimension, where that is wanted.
void finish(lua_State* L, const Request& request, View out) {
  if (!request.keep) return;
  push_view(L, kernels::dense(out.dtype, request.kept, out.data), lua_gettop(L));
  lua_remove(L, -2);
}

int sum(lua_State* L) {
  Request request = read_request(L, "sum");
  DType in = request.in.dtype;
  DType result = kernels::is_float(in) ? in : DType::i64;
  if (request.all) {
    alignas(8) char memory[8];
    View out = kernels::dense(kernels::is_float(in) ? DType::f64 : DType::i64, {}, memory);
    cpu::sum_last(request.in, out);
    push_first(L, out);
    return 1;
  }
  View out = new_tensor(L, result, request.shape);
  cpu::sum_last(request.in, out);
  finish(L, request, out);
  return 1;
}

int mean(lua_State* L) {
  Request request = read_request(L, "mean");
  int64_t count = request.in.shape[request.in.rank() - 1];
  if (count == 0) raise(L, fmt::format("{} has no mean: nothing is in it", describe(L, 1)));
  alignas(8) char memory[8];
  View divisor = kernels::dense(DType::f64, {}, memory);
  cpu::fill(divisor, count);
  if (!kernels::is_float(request.in.dtype)) {  // integers are summed exactly only up to 2^53
    View copy = new_tensor(L, DType::f64, request.in.shape);
    cpu::copy(request.in, copy);
    request.in = copy;
  }
  View sums = new_tensor(L, DType::f64, request.shape);
  cpu::sum_last(request.in, sums);
  cpu::binary(cpu::Binary::div, sums, kernels::stretch(divisor, sums.shape), sums);
  if (request.all) {
    push_first(L, sums);
    return 1;
  }
  DType from = test_tensor(L, 1)->dtype, result = kernels::is_float(from) ? from : DType::f32;
  View out = new_tensor(L, result, request.shape);
  cpu::copy(sums, out);
  finish(L, request, out);
  return 1;
}

int extreme(lua_State* L, const char* function, bool largest, bool want_value) {
  Request request = read_request(L, function);
  DType dtype = request.in.dtype, compute = compute_type(dtype);
  if (request.in.shape[request.in.rank() - 1] == 0)
    raise(L, fmt::format("x:{} of {}: nothing is in it", function, describe(L, 1)));
  if (compute != dtype) {
    View copy = new_tensor(L, compute, request.in.shape);
    cpu::copy(request.in, copy);
    request.in = copy;
  }
  View value = new_tensor(L, compute, request.shape);
  int value_at = lua_gettop(L);
  View index = new_tensor(L, DType::i64, request.shape);
  int index_at = lua_gettop(L);
  cpu::extreme_last(largest, request.in, value, index);
  for (int64_t i = 0; i < index.count(); i++) index.at<int64_t>()[i]++;  // Lua counts from 1
  if (request.all) {
    if (want_value) {
      if (dtype == DType::boolean) value.dtype = DType::boolean;
      push_first(L, value);
    }
    push_first(L, index);
    return want_value ? 2 : 1;
  }
  if (want_value) {
    lua_pushvalue(L, value_at);
    if (compute != dtype) value = as_dense(L, value, dtype);
    finish(L, request, value);
  }
  lua_pushvalue(L, index_at);
  finish(L, request, index);
  return want_value ? 2 : 1;
}

int largest(lua_State* L) { return extreme(L, "max", true, true); }
int smallest(lua_State* L) { return extreme(L, "min", false, true); }
int index_of_largest(lua_State* L) { return extreme(L, "argmax", true, false); }
int index_of_smallest(lua_State* L) { return extreme(L, "argmin", false, false); }

}  // namespace

const luaL_Reg kTensorReductions[] = {{"sum", sum},
                                      {"mean", mean},
                                      {"max", largest},
                                      {"min", smallest},
                                      {"argmax", index_of_largest},
                                      {"argmin", index_of_smallest},
                                      {nullptr, nullptr}};

}  // namespace flow::lua
