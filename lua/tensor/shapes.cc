// Shapes, types and devices of a tensor, and its elements as Lua values.
#include <fmt/format.h>

#include <algorithm>

#include "kernels/shared/types.hpp"
#include "lua/tensor/tensor.hpp"

namespace flow::lua {
namespace {

using kernels::Shape;
using kernels::View;
using tensors::Tensor;

int size(lua_State* L) {  // x:size(dim), or all sizes
  const Tensor& x = check_object(L, 1, "x in x:size()");
  if (!lua_isnoneornil(L, 2)) {
    lua_pushinteger(L, x.size(check_dim(L, 2, x.view(), "size")));
    return 1;
  }
  for (int dim = 0; dim < x.rank(); dim++) lua_pushinteger(L, x.size(dim));
  return x.rank();
}

int count(lua_State* L) {
  lua_pushinteger(L, check_object(L, 1, "x in x:count()").count());
  return 1;
}

int dims(lua_State* L) {
  lua_pushinteger(L, check_object(L, 1, "x in x:dims()").rank());
  return 1;
}

int is_contiguous(lua_State* L) {
  lua_pushboolean(L, kernels::is_dense(check_object(L, 1, "x").view()));
  return 1;
}

int transpose(lua_State* L) {  // x:t(), or x:t(a, b)
  const Tensor& x = check_object(L, 1, "x in x:t()");
  int a = 0, b = 1;
  if (!lua_isnoneornil(L, 2)) {
    a = check_dim(L, 2, x.view(), "t");
    b = check_dim(L, 3, x.view(), "t");
  } else if (x.rank() != 2) {
    raise(L, fmt::format("x:t() is of a matrix, not of {}: name two dimensions, x:t(1, 2)",
                         tensors::text_of(x)));
  }
  push_object(L, tensors::swap_dims(x, a, b));
  return 1;
}

int permute(lua_State* L) {  // x:permute(2, 3, 1)
  const Tensor& x = check_object(L, 1, "x in x:permute(…)");
  bool in_table = lua_istable(L, 2);
  tensors::Dims order;
  if (in_table) {
    order = check_dims(L, 2, x.view(), "permute");
  } else {
    for (int i = 2; i <= lua_gettop(L); i++) order.push_back(check_dim(L, i, x.view(), "permute"));
  }
  tensors::Dims sorted = order;
  std::sort(sorted.begin(), sorted.end());
  bool each = static_cast<int>(order.size()) == x.rank() &&
              std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end();
  if (!each)
    raise(L, fmt::format("x:permute names each dimension of {} once", tensors::text_of(x)));
  push_object(L, tensors::permute(x, order.data()));
  return 1;
}

// x:reshape(2, -1) or x:reshape({2, -1}): -1 is computed.
int reshape(lua_State* L) {
  const Tensor& x = check_object(L, 1, "x in x:reshape(…)");
  constexpr int64_t kMost = int64_t{1} << 40;
  Shape shape = check_shape(L, 2, "x:reshape", true);
  int open = -1;
  int64_t known = 1;
  for (int dim = 0; dim < shape.rank; dim++) {
    if (shape[dim] == -1) {
      if (open >= 0) raise(L, "x:reshape takes sizes, one of which may be -1, not -1");
      open = dim;
    } else if (shape[dim] > 0 && known > kMost / shape[dim]) {
      known = kMost + 1;
    } else {
      known *= shape[dim];
    }
  }
  if (open >= 0) shape[open] = known == 0 ? 0 : x.count() / known;
  if (known > kMost || shape.count() != x.count()) {
    if (open >= 0) shape[open] = -1;
    raise(L, fmt::format("cannot reshape {} ({} elements) to {}", tensors::text_of(x), x.count(),
                         kernels::text_of(shape)));
  }
  push_object(L, tensors::reshape(x, shape));
  return 1;
}

int flatten(lua_State* L) {  // x:flatten([first [, last]])
  const Tensor& x = check_object(L, 1, "x in x:flatten()");
  int first = lua_isnoneornil(L, 2) ? 0 : check_dim(L, 2, x.view(), "flatten");
  int last = lua_isnoneornil(L, 3) ? x.rank() - 1 : check_dim(L, 3, x.view(), "flatten");
  if (first > last && x.rank() > 0) raise(L, "x:flatten takes its first dimension before its last");
  Shape shape;
  for (int dim = 0; dim < first; dim++) shape.push(x.size(dim));
  int64_t joined = 1;
  for (int dim = first; dim <= last; dim++) joined *= x.size(dim);
  shape.push(joined);
  for (int dim = last + 1; dim < x.rank(); dim++) shape.push(x.size(dim));
  push_object(L, tensors::reshape(x, shape));
  return 1;
}

int squeeze(lua_State* L) {  // x:squeeze([dim])
  Tensor x = check_object(L, 1, "x in x:squeeze()");
  if (!lua_isnoneornil(L, 2)) {
    int dim = check_dim(L, 2, x.view(), "squeeze");
    push_object(L, x.size(dim) == 1 ? tensors::squeeze(x, dim) : x);
    return 1;
  }
  for (int dim = x.rank() - 1; dim >= 0; dim--)
    if (x.size(dim) == 1) x = tensors::squeeze(x, dim);
  push_object(L, x);
  return 1;
}

int unsqueeze(lua_State* L) {  // x:unsqueeze(dim)
  const Tensor& x = check_object(L, 1, "x in x:unsqueeze(dim)");
  lua_Integer dim = luaL_checkinteger(L, 2);
  if (dim < 0) dim += x.rank() + 2;
  if (dim < 1 || dim > x.rank() + 1)
    raise(L, fmt::format("x:unsqueeze takes a dimension of 1..{} of {}, not {}", x.rank() + 1,
                         tensors::text_of(x), lua_tointeger(L, 2)));
  push_object(L, tensors::unsqueeze(x, static_cast<int>(dim) - 1));
  return 1;
}

int expand(lua_State* L) {  // x:expand(2, -1, 3): -1 keeps the size
  const Tensor& x = check_object(L, 1, "x in x:expand(…)");
  Shape shape = check_shape(L, 2, "x:expand", true);
  for (int back = 1; back <= shape.rank; back++) {
    int64_t& size = shape[shape.rank - back];
    if (size != -1) continue;
    if (back > x.rank())
      raise(L, fmt::format("x:expand: {} has no size to keep there", tensors::text_of(x)));
    size = x.size(x.rank() - back);
  }
  push_object(L, tensors::expand(x, shape));
  return 1;
}

int narrow(lua_State* L) {  // x:narrow(dim, first, length)
  const Tensor& x = check_object(L, 1, "x in x:narrow(dim, first, length)");
  int dim = check_dim(L, 2, x.view(), "narrow");
  push_object(L, tensors::narrow(x, dim, luaL_checkinteger(L, 3) - 1, luaL_checkinteger(L, 4)));
  return 1;
}

int select(lua_State* L) {  // x:select(dim, index): always a tensor
  const Tensor& x = check_object(L, 1, "x in x:select(dim, index)");
  int dim = check_dim(L, 2, x.view(), "select");
  lua_Integer at = luaL_checkinteger(L, 3);
  if (at < 1 || at > x.size(dim))
    raise(L, fmt::format("x:select: {} is outside 1..{}, dimension {} of {}", at, x.size(dim),
                         dim + 1, tensors::text_of(x)));
  push_object(L, tensors::select(x, dim, at - 1));
  return 1;
}

int chunk(lua_State* L) {  // x:chunk(parts [, dim]): a list of views
  Tensor x = check_object(L, 1, "x in x:chunk(parts, dim)");
  lua_Integer parts = luaL_checkinteger(L, 2);
  int dim = lua_isnoneornil(L, 3) ? 0 : check_dim(L, 3, x.view(), "chunk");
  if (parts < 1 || x.rank() == 0) raise(L, "x:chunk takes a number of parts of 1 or more");
  int64_t size = x.size(dim), step = std::max<int64_t>((size + parts - 1) / parts, 1);
  lua_newtable(L);
  int64_t i = 1;
  for (int64_t first = 0; first < size; first += step, i++) {
    push_object(L, tensors::narrow(x, dim, first, std::min(step, size - first)));
    lua_rawseti(L, -2, i);
  }
  return 1;
}

int flip(lua_State* L) {  // x:flip(dim): a view
  const Tensor& x = check_object(L, 1, "x in x:flip(dim)");
  int dim = check_dim(L, 2, x.view(), "flip");
  int64_t size = x.size(dim);
  push_object(L, size == 0 ? x : tensors::narrow(x, dim, size - 1, size, -1));
  return 1;
}

// x:to("f64"), x:to("cuda:0"), x:to(y): x itself if nothing changes
int to(lua_State* L) {
  Tensor x = check_object(L, 1, "x in x:to(type)");
  if (const Tensor* like = test_object(L, 2)) {
    push_object(L, tensors::move(tensors::cast(x, like->dtype()), like->device()));
    return 1;
  }
  for (int index = 2; index <= std::max(lua_gettop(L), 2); index++) {
    if (is_device_name(L, index)) {
      x = tensors::move(x, check_device(L, index));
    } else {
      x = tensors::cast(x, check_dtype(L, index));
    }
  }
  if (x == check_object(L, 1, "x in x:to(type)")) {
    lua_settop(L, 1);
    return 1;
  }
  push_object(L, x);
  return 1;
}

int clone(lua_State* L) {
  push_object(L, tensors::copy_of(check_object(L, 1, "x in x:clone()")));
  return 1;
}

int contiguous(lua_State* L) {
  const Tensor& x = check_object(L, 1, "x in x:contiguous()");
  if (kernels::is_dense(x.view())) {
    lua_settop(L, 1);
  } else {
    push_object(L, tensors::copy_of(x));
  }
  return 1;
}

int item(lua_State* L) {
  const Tensor& x = check_object(L, 1, "x in x:item()");
  if (x.count() != 1)
    raise(L, fmt::format("x:item() is of one element, not of {}", tensors::text_of(x)));
  push_item(L, x);
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
  const Tensor& x = check_object(L, 1, "x in x:table()");
  Tensor here = tensors::move(x.detached(), {});
  push_lists(L, here.view());
  return 1;
}

int gather(lua_State* L) {  // x:gather(dim, index)
  const Tensor& x = check_object(L, 1, "x in x:gather(dim, index)");
  int dim = check_dim(L, 2, x.view(), "gather");
  push_object(L, tensors::gather(x, dim, check_object(L, 3, "the index of x:gather"), 1));
  return 1;
}

int scatter_add(lua_State* L) {  // x:scatter_add(dim, index, source)
  const Tensor& x = check_object(L, 1, "x in x:scatter_add(dim, index, source)");
  int dim = check_dim(L, 2, x.view(), "scatter_add");
  push_object(L, tensors::scatter_add(x, dim, check_object(L, 3, "the index of x:scatter_add"),
                                      check_object(L, 4, "the source of x:scatter_add"), 1));
  return 1;
}

int index_select(lua_State* L) {  // x:index_select(dim, index)
  const Tensor& x = check_object(L, 1, "x in x:index_select(dim, index)");
  int dim = check_dim(L, 2, x.view(), "index_select");
  push_object(L,
              tensors::index_select(x, dim, check_object(L, 3, "the index of x:index_select"), 1));
  return 1;
}

}  // namespace

const luaL_Reg kTensorShapes[] = {{"size", size},
                                  {"count", count},
                                  {"dims", dims},
                                  {"is_contiguous", is_contiguous},
                                  {"t", protected_call<transpose>},
                                  {"transpose", protected_call<transpose>},
                                  {"permute", protected_call<permute>},
                                  {"reshape", protected_call<reshape>},
                                  {"view", protected_call<reshape>},
                                  {"flatten", protected_call<flatten>},
                                  {"squeeze", protected_call<squeeze>},
                                  {"unsqueeze", protected_call<unsqueeze>},
                                  {"expand", protected_call<expand>},
                                  {"narrow", protected_call<narrow>},
                                  {"select", protected_call<select>},
                                  {"chunk", protected_call<chunk>},
                                  {"flip", protected_call<flip>},
                                  {"to", protected_call<to>},
                                  {"clone", protected_call<clone>},
                                  {"contiguous", protected_call<contiguous>},
                                  {"item", protected_call<item>},
                                  {"table", protected_call<table>},
                                  {"gather", protected_call<gather>},
                                  {"scatter_add", protected_call<scatter_add>},
                                  {"index_select", protected_call<index_select>},
                                  {nullptr, nullptr}};

}  // namespace flow::lua
