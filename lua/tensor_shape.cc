// Shapes and types of a tensor, and its elements as Lua values.
#include <fmt/format.h>

#include "kernels/cpu/copy.hpp"
#include "kernels/shared/types.hpp"
#include "lua/tensor.hpp"

namespace flow::lua {
namespace {

using kernels::View;

int size(lua_State* L) {  // x:size(dim), or all sizes
  const View& view = check_tensor(L, 1, "x in x:size()");
  if (!lua_isnoneornil(L, 2)) {
    lua_pushinteger(L, view.shape[check_dim(L, 2, view, "size")]);
    return 1;
  }
  for (int dim = 0; dim < view.rank(); dim++) lua_pushinteger(L, view.shape[dim]);
  return view.rank();
}

int count(lua_State* L) {
  lua_pushinteger(L, check_tensor(L, 1, "x in x:count()").count());
  return 1;
}

int dims(lua_State* L) {
  lua_pushinteger(L, check_tensor(L, 1, "x in x:dims()").rank());
  return 1;
}

int transpose(lua_State* L) {  // x:t(), or x:t(a, b)
  const View& view = check_tensor(L, 1, "x in x:t()");
  int a = 0, b = 1;
  if (!lua_isnoneornil(L, 2)) {
    a = check_dim(L, 2, view, "t");
    b = check_dim(L, 3, view, "t");
  } else if (view.rank() != 2) {
    raise(L, fmt::format("x:t() is of a matrix, not of {}: name two dimensions, x:t(1, 2)",
                         describe(view)));
  }
  push_view(L, kernels::swap_dims(view, a, b), 1);
  return 1;
}

// x:reshape(2, -1) or x:reshape({2, -1}): -1 is what remains.
int reshape(lua_State* L) {
  View view = check_tensor(L, 1, "x in x:reshape(…)");
  bool in_table = lua_type(L, 2) == LUA_TTABLE;
  auto given = in_table ? static_cast<int>(lua_rawlen(L, 2)) : lua_gettop(L) - 1;
  if (given > kernels::kRankMax)
    raise(L, fmt::format("a tensor has at most {} dimensions", kernels::kRankMax));
  kernels::Shape shape;
  int open = -1;
  int64_t known = 1;
  for (int i = 0; i < given; i++) {
    if (in_table) {
      lua_rawgeti(L, 2, i + 1);
    } else {
      lua_pushvalue(L, 2 + i);
    }
    int exact = 0;
    lua_Integer length = lua_tointegerx(L, -1, &exact);
    if (!exact || length < -1 || (length == -1 && open >= 0))
      raise(L, fmt::format("x:reshape takes sizes, one of which may be -1, not {}",
                           exact ? std::to_string(length) : describe(L, -1)));
    lua_pop(L, 1);
    if (length == -1) open = i;
    if (length > 0 && known > kTensorBytesMax / length)
      known = kTensorBytesMax + 1;
    else if (length >= 0)
      known *= length;
    shape.push(length);
  }
  if (open >= 0) shape[open] = known == 0 ? 0 : view.count() / known;
  if (known > kTensorBytesMax || shape.count() != view.count()) {
    if (open >= 0) shape[open] = -1;
    raise(L, fmt::format("cannot reshape {} ({} elements) to {}", describe(view), view.count(),
                         kernels::text_of(shape)));
  }
  int owner = 1;
  if (!kernels::is_dense(view)) {
    view = as_dense(L, view, view.dtype);
    owner = lua_gettop(L);
  }
  push_view(L, kernels::dense(view.dtype, shape, view.data), owner);
  return 1;
}

int cast(lua_State* L) {  // x:to("f64"); x itself where it has that type
  const View& view = check_tensor(L, 1, "x in x:to(type)");
  DType dtype = check_dtype(L, 2);
  if (view.dtype == dtype) {
    lua_settop(L, 1);
    return 1;
  }
  cpu::copy(view, new_tensor(L, dtype, view.shape));
  return 1;
}

int clone(lua_State* L) {
  const View& view = check_tensor(L, 1, "x in x:clone()");
  cpu::copy(view, new_tensor(L, view.dtype, view.shape));
  return 1;
}

int contiguous(lua_State* L) {
  const View& view = check_tensor(L, 1, "x in x:contiguous()");
  as_dense(L, view, view.dtype);
  lua_settop(L, lua_isnil(L, -1) ? 1 : lua_gettop(L));
  return 1;
}

int item(lua_State* L) {
  const View& view = check_tensor(L, 1, "x in x:item()");
  if (view.count() != 1)
    raise(L, fmt::format("x:item() is of one element, not of {}", describe(view)));
  push_first(L, view);
  return 1;
}

void push_lists(lua_State* L, const View& view) {
  if (view.rank() == 0) return push_first(L, view);
  luaL_checkstack(L, 4, nullptr);
  constexpr int64_t kHintMax = int64_t{1} << 24;
  lua_createtable(L, static_cast<int>(std::min(view.shape[0], kHintMax)), 0);
  for (int64_t i = 0; i < view.shape[0]; i++) {
    push_lists(L, kernels::select(view, 0, i));
    lua_rawseti(L, -2, i + 1);
  }
}

int table(lua_State* L) {
  push_lists(L, check_tensor(L, 1, "x in x:table()"));
  return 1;
}

}  // namespace

const luaL_Reg kTensorShapes[] = {{"size", size},   {"count", count},           {"dims", dims},
                                  {"t", transpose}, {"reshape", reshape},       {"to", cast},
                                  {"clone", clone}, {"contiguous", contiguous}, {"item", item},
                                  {"table", table}, {nullptr, nullptr}};

}  // namespace flow::lua
