// x[i], x[{a, b, step}], x[{{a, b}, {c, d}}], x[rows], assignments to them, and x.field.
#include <fmt/format.h>

#include <algorithm>

#include "kernels/shared/types.hpp"
#include "lua/tensor/tensor.hpp"

namespace flow::lua {
namespace {

using kernels::Shape;
using tensors::Tensor;

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

// Field `i` of the table at `range`, or `otherwise` if it is nil.
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

// {a, b, step}: counts like `for i = a, b, step`; a missing end is the dimension's.
Tensor narrow_range(lua_State* L, int range, const Tensor& x, int dim) {
  range = lua_absindex(L, range);
  int64_t size = x.size(dim), step = range_part(L, range, 3, 1);
  int64_t first = range_part(L, range, 1, step > 0 ? 1 : size);
  int64_t last = range_part(L, range, 2, step > 0 ? size : 1);
  if (lua_rawlen(L, range) > 3)
    raise(L, "a range is {a, b} or {a, b, step}: it has no fourth item");
  if (step == 0) raise(L, "the step of a range is not 0");
  int64_t low = std::min(first, last), high = std::max(first, last);
  bool empty = step > 0 ? last == first - 1 && first >= 1 && first <= size + 1
                        : last == first + 1 && first >= 0 && first <= size;
  bool counts = step > 0 ? first <= last : first >= last;
  if (!empty && (low < 1 || high > size || !counts))
    raise(L, fmt::format("the range {{{}, {}}} is outside 1..{}, dimension {} of {}", first, last,
                         size, dim + 1, tensors::text_of(x)));
  int64_t length = empty ? 0 : (last - first) / step + 1;
  return tensors::narrow(x, dim, empty ? 0 : first - 1, length, step);
}

// x[{{a, b}, c, {}}]: a range, an index or everything for each dimension.
Tensor narrow_each(lua_State* L, int key, Tensor x) {
  auto given = static_cast<int>(lua_rawlen(L, key));
  if (given > x.rank())
    raise(L, fmt::format("{} ranges are too many for {}", given, tensors::text_of(x)));
  int dim = 0;
  for (int i = 1; i <= given; i++) {
    if (lua_rawgeti(L, key, i) == LUA_TTABLE) {
      x = narrow_range(L, -1, x, dim++);
    } else {
      x = tensors::select(x, dim, check_position(L, -1, x.view(), dim));
    }
    lua_pop(L, 1);
  }
  return x;
}

Tensor part_of(lua_State* L, int key, const Tensor& x) {
  if (x.rank() == 0) raise(L, "a tensor without dimensions has no parts: x:item() is its number");
  if (lua_type(L, key) != LUA_TTABLE)
    return tensors::select(x, 0, check_position(L, key, x.view(), 0));
  bool each = lua_rawgeti(L, key, 1) == LUA_TTABLE;
  lua_pop(L, 1);
  return each ? narrow_each(L, key, x) : narrow_range(L, key, x, 0);
}

// The row numbers (from 1, i64) selected by a tensor of row numbers or of booleans.
Tensor rows_of(lua_State* L, const Tensor& key, const Tensor& x) {
  bool mask = key.dtype() == DType::boolean;
  if (kernels::is_float(key.dtype()) || key.rank() != 1)
    raise(L,
          fmt::format("rows are named by a tensor of one dimension, of integers or bool, not by {}",
                      tensors::text_of(key)));
  if (x.rank() == 0) raise(L, "a tensor without dimensions has no rows");
  if (!mask) {
    Tensor rows = tensors::cast(key, DType::i64);
    tensors::check_indices(rows, 1, x.size(0), "row");
    return tensors::move(rows, x.device());
  }
  if (key.size(0) != x.size(0))
    raise(L,
          fmt::format("{} cannot select rows of {}", tensors::text_of(key), tensors::text_of(x)));
  Tensor flags = tensors::contiguous(tensors::move(key, {}));
  const uint8_t* flag = flags.view().at<uint8_t>();
  std::vector<int64_t> chosen;
  for (int64_t i = 0; i < key.size(0); i++)
    if (flag[i] != 0) chosen.push_back(i + 1);
  Tensor rows = Tensor::empty(DType::i64, Shape{static_cast<int64_t>(chosen.size())});
  std::copy(chosen.begin(), chosen.end(), rows.view().at<int64_t>());
  return tensors::move(rows, x.device());
}

void push_field(lua_State* L, const Tensor& x) {
  std::string_view name = lua_tostring(L, 2);
  lua_pushvalue(L, 2);
  if (lua_rawget(L, lua_upvalueindex(1)) != LUA_TNIL) return;
  if (name == "shape") {
    lua_createtable(L, x.rank(), 0);
    for (int dim = 0; dim < x.rank(); dim++) {
      lua_pushinteger(L, x.size(dim));
      lua_rawseti(L, -2, dim + 1);
    }
    return;
  }
  if (name == "dtype") return void(lua_pushstring(L, dtype_name(x.dtype())));
  if (name == "device") return void(lua_pushstring(L, tensors::text_of(x.device()).c_str()));
  if (name == "requires_grad") return lua_pushboolean(L, x.is_tracked());
  if (name == "is_parameter") return lua_pushboolean(L, x.is_parameter());
  if (name == "is_leaf") return lua_pushboolean(L, !x.node());
  if (name == "grad") {
    if (!x.gradient()) return lua_pushnil(L);
    return push_object(L, x.gradient());
  }
  std::vector<std::string> names = {"shape",   "dtype", "device",      "requires_grad",
                                    "is_leaf", "grad",  "is_parameter"};
  lua_pushnil(L);
  while (lua_next(L, lua_upvalueindex(1))) {
    names.emplace_back(lua_tostring(L, -2));
    lua_pop(L, 1);
  }
  std::sort(names.begin(), names.end());
  std::string near = nearest_name(name, names);
  raise(L, fmt::format("a tensor has no `{}`{}", name,
                       near.empty() ? ": its fields are `shape`, `dtype`, `device`, `grad`, "
                                      "`requires_grad` and `is_leaf`, the rest are methods, x:sum()"
                                    : " (did you mean `" + near + "`?)"));
}

// x.grad = nil, x.grad = y, x.requires_grad = true
void set_field(lua_State* L, Tensor x) {
  std::string_view name = lua_tostring(L, 2);
  if (name == "requires_grad") return x.want_gradient(lua_toboolean(L, 3));
  if (name != "grad")
    raise(L, fmt::format("a tensor has no field `{}` to set: parts are set as {}", name, kForms));
  if (context(L).phase != ScriptPhase::task)
    raise(L, "gradients can be set in tasks only, not while the script loads");
  if (lua_isnil(L, 3)) return x.set_gradient({});
  const Tensor& grad = check_object(L, 3, "a gradient");
  if (!(grad.shape() == x.shape()) || grad.dtype() != x.dtype() || !(grad.device() == x.device()))
    raise(L, fmt::format("the gradient {} does not fit {}", tensors::text_of(grad),
                         tensors::text_of(x)));
  // Elements with the same address could not be scaled one by one, as clip_grad_norm does.
  Tensor plain = grad.detached();
  x.set_gradient(kernels::overlaps_itself(plain.view()) ? tensors::contiguous(plain) : plain);
}

// Writes the value at `index` to all of `target`.
void assign(lua_State* L, int index, const Tensor& target) {
  DType dtype = target.dtype();
  switch (lua_type(L, index)) {
    case LUA_TNUMBER:
    case LUA_TBOOLEAN:
      return tensors::fill_in_place(target, check_number(L, index, "what is assigned"));
    case LUA_TTABLE:
      push_tensor_of_table(L, index, &dtype);
      break;
    default:
      check_object(L, index, "what is assigned to a part of a tensor");
      lua_pushvalue(L, index);
  }
  tensors::copy_in_place(target, *test_object(L, -1));
  lua_pop(L, 1);
}

}  // namespace

int tensor_index(lua_State* L) {
  const Tensor& x = check_object(L, 1, "what is indexed");
  if (lua_type(L, 2) == LUA_TSTRING) {
    push_field(L, x);
    return 1;
  }
  if (const Tensor* key = test_object(L, 2)) {
    push_object(L, tensors::index_select(x, 0, rows_of(L, *key, x), 1));
    return 1;
  }
  push_result(L, part_of(L, 2, x));
  return 1;
}

int tensor_new_index(lua_State* L) {
  Tensor x = check_object(L, 1, "what is assigned to");
  if (lua_type(L, 2) == LUA_TSTRING) {
    set_field(L, x);
    return 0;
  }
  // Windows that overlap cannot be written as a whole, but each of them can.
  const auto* strides = x.view().strides;
  bool is_stretched = std::any_of(strides, strides + x.rank(), [](int64_t s) { return s == 0; });
  bool is_windows = !is_stretched && !x.is_tracked() && kernels::overlaps_itself(x.view());
  (is_windows ? tensors::select(x, 0, 0) : x).note_write("assignment");
  if (const Tensor* value = test_object(L, 3)) tensors::reject_tracked(*value);
  tensors::NoRecord off;
  if (const Tensor* key = test_object(L, 2)) {
    Tensor rows = tensors::move(rows_of(L, *key, x), {});
    Shape shape = x.shape();
    shape[0] = rows.size(0);
    Tensor values = Tensor::empty(x.dtype(), shape, x.device());
    assign(L, 3, values);
    Tensor dense = tensors::contiguous(rows);
    for (int64_t i = 0; i < rows.size(0); i++)
      tensors::copy_in_place(tensors::select(x, 0, dense.view().at<int64_t>()[i] - 1),
                             tensors::select(values, 0, i));
    return 0;
  }
  assign(L, 3, part_of(L, 2, x.detached()));
  return 0;
}

int tensor_pairs(lua_State* L) {
  raise(L,
        "a tensor is not a table: write `for i = 1, #x do local row = x[i] … end`, or x:table()");
}

}  // namespace flow::lua
