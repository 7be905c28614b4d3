// x[i], x[{a, b, step}], x[{{a, b}, {c, d}}], x[rows], the same as targets of =, and x.field.
#include <fmt/format.h>

#include <algorithm>

#include "kernels/cpu/copy.hpp"
#include "kernels/shared/types.hpp"
#include "lua/tensor.hpp"

namespace flow::lua {
namespace {

constexpr const char* kForms =
    "x[i], x[{a, b}], x[{a, b, step}], x[{{a, b}, {c, d}}], x[rows] (a tensor of row numbers or of "
    "booleans)";

int64_t check_position(lua_State* L, int index, const kernels::View& view, int dim) {
  int exact = 0;
  lua_Integer at = lua_tointegerx(L, index, &exact);
  if (!exact)
    raise(L, fmt::format("a tensor is indexed as {}, not by {}", kForms, describe(L, index)));
  if (at < 1 || at > view.shape[dim])
    raise(L, fmt::format("index {} is outside 1..{}, dimension {} of {}", at, view.shape[dim],
                         dim + 1, describe(view)));
  return at - 1;
}

// Field `i` of the table at `range`, or `otherwise` where it is nil.
int64_t range_part(lua_State* L, int range, int i, int64_t otherwise) {
  int64_t value = otherwise;
  if (lua_rawgeti(L, range, i) != LUA_TNIL) {
    int exact = 0;
    value = lua_tointegerx(L, -1, &exact);
    if (!exact)
      raise(L, fmt::format("a range is {{a, b}} or {{a, b, step}} of integers, not of {}",
                           describe(L, -1)));
  }
  lua_pop(L, 1);
  return value;
}

kernels::View narrow_range(lua_State* L, int range, const kernels::View& view, int dim) {
  range = lua_absindex(L, range);
  int64_t size = view.shape[dim];
  int64_t first = range_part(L, range, 1, 1), last = range_part(L, range, 2, size),
          step = range_part(L, range, 3, 1);
  if (lua_rawlen(L, range) > 3)
    raise(L, "a range is {a, b} or {a, b, step}: it has no fourth item");
  if (step < 1) raise(L, fmt::format("the step of a range is 1 or more, not {}", step));
  bool empty = last == first - 1 && first >= 1 && first <= size + 1;
  if (!empty && (first < 1 || last > size || first > last))
    raise(L, fmt::format("the range {{{}, {}}} is outside 1..{}, dimension {} of {}", first, last,
                         size, dim + 1, describe(view)));
  int64_t length = empty ? 0 : (last - first) / step + 1;
  return kernels::narrow(view, dim, first - 1, length, step);
}

// x[{{a, b}, c, {}}]: a range, an index or everything for each dimension.
kernels::View narrow_each(lua_State* L, int key, kernels::View view) {
  auto given = static_cast<int>(lua_rawlen(L, key));
  if (given > view.rank())
    raise(L, fmt::format("{} ranges are too many for {}", given, describe(view)));
  int dim = 0;
  for (int i = 1; i <= given; i++) {
    if (lua_rawgeti(L, key, i) == LUA_TTABLE) {
      view = narrow_range(L, -1, view, dim++);
    } else {
      view = kernels::select(view, dim, check_position(L, -1, view, dim));
    }
    lua_pop(L, 1);
  }
  return view;
}

kernels::View part_of(lua_State* L, int key, const kernels::View& view) {
  if (view.rank() == 0)
    raise(L, "a tensor without dimensions has no parts: x:item() is its number");
  if (lua_type(L, key) != LUA_TTABLE)
    return kernels::select(view, 0, check_position(L, key, view, 0));
  bool each = lua_rawgeti(L, key, 1) == LUA_TTABLE;
  lua_pop(L, 1);
  return each ? narrow_each(L, key, view) : narrow_range(L, key, view, 0);
}

// The rows (0-based) that a tensor of row numbers or of booleans names.
std::vector<int64_t> rows_of(lua_State* L, const kernels::View& key, const kernels::View& view) {
  bool mask = key.dtype == DType::boolean;
  if (kernels::is_float(key.dtype) || key.rank() != 1)
    raise(L,
          fmt::format("rows are named by a tensor of one dimension, of integers or bool, not by {}",
                      describe(key)));
  if (view.rank() == 0) raise(L, "a tensor without dimensions has no rows");
  if (mask && key.shape[0] != view.shape[0])
    raise(L, fmt::format("{} cannot choose among the rows of {}", describe(key), describe(view)));
  std::vector<int64_t> rows;
  for (int64_t i = 0; i < key.shape[0]; i++) {
    int64_t number = cpu::first_as_integer(kernels::select(key, 0, i));
    if (mask) {
      if (number != 0) rows.push_back(i);
      continue;
    }
    if (number < 1 || number > view.shape[0])
      raise(L, fmt::format("row {} (item {} of the index) is outside 1..{} of {}", number, i + 1,
                           view.shape[0], describe(view)));
    rows.push_back(number - 1);
  }
  return rows;
}

void push_rows(lua_State* L, const kernels::View& key, const kernels::View& view) {
  std::vector<int64_t> rows = rows_of(L, key, view);
  kernels::Shape shape = view.shape;
  shape[0] = static_cast<int64_t>(rows.size());
  cpu::gather_rows(view, rows.data(), new_tensor(L, view.dtype, shape));
}

void push_field(lua_State* L, const kernels::View& view) {
  std::string_view name = lua_tostring(L, 2);
  if (name == "shape") {
    lua_createtable(L, view.rank(), 0);
    for (int dim = 0; dim < view.rank(); dim++) {
      lua_pushinteger(L, view.shape[dim]);
      lua_rawseti(L, -2, dim + 1);
    }
    return;
  }
  if (name == "dtype") {
    lua_pushstring(L, dtype_name(view.dtype));
    return;
  }
  lua_pushvalue(L, 2);
  if (lua_rawget(L, lua_upvalueindex(1)) != LUA_TNIL) return;
  std::vector<std::string> names = {"shape", "dtype"};
  lua_pushnil(L);
  while (lua_next(L, lua_upvalueindex(1))) {
    names.emplace_back(lua_tostring(L, -2));
    lua_pop(L, 1);
  }
  std::sort(names.begin(), names.end());
  std::string near = nearest_name(name, names);
  raise(L, fmt::format("a tensor has no `{}`{}", name,
                       near.empty() ? ": its fields are `shape` and `dtype`, the rest are methods, "
                                      "x:sum()"
                                    : "; did you mean `" + near + "`?"));
}

// The value at `index` written all over `target`.
void assign(lua_State* L, int index, const kernels::View& target) {
  switch (lua_type(L, index)) {
    case LUA_TNUMBER:
      if (lua_isinteger(L, index)) return cpu::fill(target, int64_t{lua_tointeger(L, index)});
      return cpu::fill(target, lua_tonumber(L, index));
    case LUA_TBOOLEAN:
      return cpu::fill(target, int64_t{lua_toboolean(L, index)});
    case LUA_TTABLE:
      push_tensor_of_table(L, index, nullptr);
      break;
    default:
      check_tensor(L, index, "what is assigned to a part of a tensor");
      lua_pushvalue(L, index);
  }
  kernels::View source = *test_tensor(L, -1);
  kernels::Shape common;
  if (!kernels::broadcast(source.shape, target.shape, common) || !(common == target.shape))
    raise(L, fmt::format("cannot assign {} to a part of shape {}", describe(source),
                         kernels::text_of(target.shape)));
  // The source may lie in the memory that is written.
  lua_getiuservalue(L, -1, 1);
  lua_getiuservalue(L, 1, 1);
  bool shared = lua_rawequal(L, -1, -2);
  lua_pop(L, 2);
  if (shared) {
    kernels::View apart = new_tensor(L, source.dtype, source.shape);
    cpu::copy(source, apart);
    source = apart;
  }
  cpu::copy(kernels::stretch(source, target.shape), target);
}

}  // namespace

int tensor_index(lua_State* L) {
  const kernels::View& view = check_tensor(L, 1, "what is indexed");
  if (lua_type(L, 2) == LUA_TSTRING) {
    push_field(L, view);
    return 1;
  }
  if (const kernels::View* key = test_tensor(L, 2)) {
    push_rows(L, *key, view);
    return 1;
  }
  kernels::View part = part_of(L, 2, view);
  if (part.rank() == 0) {
    push_first(L, part);
  } else {
    push_view(L, part, 1);
  }
  return 1;
}

int tensor_new_index(lua_State* L) {
  const kernels::View& view = check_tensor(L, 1, "what is assigned to");
  if (lua_type(L, 2) == LUA_TSTRING)
    raise(L, fmt::format("a tensor has no field `{}` to set: parts are set as {}",
                         lua_tostring(L, 2), kForms));
  if (const kernels::View* key = test_tensor(L, 2)) {
    std::vector<int64_t> rows = rows_of(L, *key, view);
    kernels::Shape shape = view.shape;
    shape[0] = static_cast<int64_t>(rows.size());
    kernels::View values = new_tensor(L, view.dtype, shape);
    assign(L, 3, values);
    for (size_t i = 0; i < rows.size(); i++)
      cpu::copy(kernels::select(values, 0, static_cast<int64_t>(i)),
                kernels::select(view, 0, rows[i]));
    return 0;
  }
  assign(L, 3, part_of(L, 2, view));
  return 0;
}

int tensor_pairs(lua_State* L) {
  raise(L, "a tensor is no table: write `for i = 1, #x do local row = x[i] … end`, or x:table()");
}

}  // namespace flow::lua
