// Making tensors: flow.tensor, zeros, ones, full, rand, randn, arange, cat, stack.
#include <fmt/format.h>

#include <cmath>

#include "kernels/cpu/copy.hpp"
#include "kernels/cpu/random.hpp"
#include "kernels/shared/types.hpp"
#include "lua/tensor.hpp"

namespace flow::lua {
namespace {

// ---- nested lists

struct Found {
  bool integer = false, number = false, boolean = false;
};

void check_rank(lua_State* L, const kernels::Shape& shape) {
  if (shape.rank >= kernels::kRankMax)
    raise(L, fmt::format("a tensor has at most {} dimensions", kernels::kRankMax));
}

kernels::Shape shape_of_lists(lua_State* L, int index) {
  kernels::Shape shape;
  lua_pushvalue(L, index);
  while (lua_type(L, -1) == LUA_TTABLE) {
    check_rank(L, shape);
    shape.push(static_cast<int64_t>(lua_rawlen(L, -1)));
    lua_rawgeti(L, -1, 1);
    lua_remove(L, -2);
  }
  lua_pop(L, 1);
  return shape;
}

class ListReader {
 public:
  ListReader(lua_State* L, const kernels::Shape& shape) : L_(L), shape_(shape) {}

  // Visits the elements under the list at the top of the stack, in order.
  template <typename F>
  void walk(int dim, F f) {
    if (dim == shape_.rank) return f();
    if (lua_type(L_, -1) != LUA_TTABLE) fail(dim, "is " + describe(L_, -1) + ", not a list");
    auto length = static_cast<int64_t>(lua_rawlen(L_, -1));
    if (length != shape_[dim])
      fail(dim, fmt::format("has {} items, the first list there has {}", length, shape_[dim]));
    for (int64_t i = 1; i <= length; i++) {
      at_[dim] = i;
      lua_rawgeti(L_, -1, i);
      walk(dim + 1, f);
      lua_pop(L_, 1);
    }
  }

  [[noreturn]] void fail(int depth, const std::string& problem) {
    std::string place = "the list";
    for (int dim = 0; dim < depth; dim++) place += fmt::format("[{}]", at_[dim]);
    raise(L_,
          fmt::format("flow.tensor takes nested lists of one length each: {} {}", place, problem));
  }

  void notice(Found& found) {
    switch (lua_type(L_, -1)) {
      case LUA_TNUMBER:
        (lua_isinteger(L_, -1) ? found.integer : found.number) = true;
        return;
      case LUA_TBOOLEAN:
        found.boolean = true;
        return;
      default:
        fail(shape_.rank, "is " + describe(L_, -1) + ", not a number or a boolean");
    }
  }

  void store(const kernels::View& out, int64_t at) {
    kernels::View element{
        out.dtype, {}, {}, out.data + at * static_cast<int64_t>(dtype_size(out.dtype))};
    if (lua_isboolean(L_, -1)) return cpu::fill(element, int64_t{lua_toboolean(L_, -1)});
    if (lua_isinteger(L_, -1)) return cpu::fill(element, int64_t{lua_tointeger(L_, -1)});
    cpu::fill(element, lua_tonumber(L_, -1));
  }

 private:
  lua_State* L_;
  const kernels::Shape& shape_;
  std::array<int64_t, kernels::kRankMax> at_{};
};

// ---- shapes as arguments

struct Options {
  kernels::Shape shape;
  DType dtype = DType::f32;
  bool has_dtype = false, has_seed = false;
  uint64_t seed = 0;
  int next = 0;  // the first argument that is none of the shape
};

void read_size(lua_State* L, const char* function, int index, kernels::Shape& shape) {
  int exact = 0;
  lua_Integer size = lua_tointegerx(L, index, &exact);
  if (!exact || lua_type(L, index) != LUA_TNUMBER || size < 0)
    raise(L, fmt::format("flow.{} takes sizes, integers of 0 or more, not {}", function,
                         exact ? std::to_string(size) : describe(L, index)));
  check_rank(L, shape);
  shape.push(size);
}

// flow.zeros(2, 3) or flow.zeros({2, 3})
Options read_shape(lua_State* L, const char* function) {
  Options options;
  int top = lua_gettop(L);
  if (lua_type(L, 1) == LUA_TTABLE) {
    for (lua_Integer i = 1; i <= static_cast<lua_Integer>(lua_rawlen(L, 1)); i++) {
      lua_rawgeti(L, 1, i);
      read_size(L, function, -1, options.shape);
      lua_pop(L, 1);
    }
    options.next = 2;
    return options;
  }
  int index = 1;
  for (; index <= top && lua_type(L, index) == LUA_TNUMBER; index++)
    read_size(L, function, index, options.shape);
  if (index == 1)
    raise(L, fmt::format("flow.{} takes a shape: flow.{}(2, 3) or flow.{}({{2, 3}}), not {}",
                         function, function, function, describe(L, 1)));
  options.next = index;
  return options;
}

// What follows the shape: a type, or a table of options.
void read_rest(lua_State* L, const char* function, Options& options, bool random) {
  int index = options.next;
  if (lua_isnoneornil(L, index)) return;
  if (lua_type(L, index) == LUA_TSTRING) {
    options.dtype = check_dtype(L, index);
    options.has_dtype = true;
    return;
  }
  if (lua_type(L, index) != LUA_TTABLE)
    raise(L, fmt::format("flow.{} takes a type such as \"f32\" after the shape, not {}", function,
                         describe(L, index)));
  lua_pushnil(L);
  while (lua_next(L, index)) {
    std::string key = lua_type(L, -2) == LUA_TSTRING ? lua_tostring(L, -2) : describe(L, -2);
    if (key == "dtype") {
      options.dtype = check_dtype(L, -1);
      options.has_dtype = true;
    } else if (key == "seed" && random) {
      if (!lua_isinteger(L, -1)) raise(L, "the option `seed` is an integer");
      options.seed = static_cast<uint64_t>(lua_tointeger(L, -1));
      options.has_seed = true;
    } else {
      raise(L, fmt::format("flow.{} has no option `{}`: there {}", function, key,
                           random ? "are `dtype` and `seed`" : "is `dtype`"));
    }
    lua_pop(L, 1);
  }
}

int make_filled(lua_State* L, const char* function, int64_t value) {
  Options options = read_shape(L, function);
  read_rest(L, function, options, false);
  cpu::fill(new_tensor(L, options.dtype, options.shape), value);
  return 1;
}

int make_zeros(lua_State* L) { return make_filled(L, "zeros", 0); }
int make_ones(lua_State* L) { return make_filled(L, "ones", 1); }

// flow.full({2, 3}, 0.5)
int make_full(lua_State* L) {
  if (lua_type(L, 1) != LUA_TTABLE)
    raise(L, fmt::format("flow.full takes a shape and a value: flow.full({{2, 3}}, 0.5), not {}",
                         describe(L, 1)));
  Options options = read_shape(L, "full");
  options.next = 3;
  read_rest(L, "full", options, false);
  if (lua_isboolean(L, 2)) {
    if (!options.has_dtype) options.dtype = DType::boolean;
    cpu::fill(new_tensor(L, options.dtype, options.shape), int64_t{lua_toboolean(L, 2)});
  } else if (lua_isinteger(L, 2)) {
    cpu::fill(new_tensor(L, options.dtype, options.shape), int64_t{lua_tointeger(L, 2)});
  } else {
    double value = luaL_checknumber(L, 2);
    cpu::fill(new_tensor(L, options.dtype, options.shape), value);
  }
  return 1;
}

int make_random(lua_State* L, const char* function, bool normal) {
  Options options = read_shape(L, function);
  read_rest(L, function, options, true);
  if (!kernels::is_float(options.dtype))
    raise(L, fmt::format("flow.{} makes floats, not {}", function, dtype_name(options.dtype)));
  uint64_t seed = options.has_seed ? options.seed : next_seed(L);
  kernels::View view = new_tensor(L, compute_type(options.dtype), options.shape);
  if (normal) {
    cpu::fill_normal(view, seed, 0, 1);
  } else {
    cpu::fill_uniform(view, seed, 0, 1);
  }
  if (view.dtype != options.dtype) as_dense(L, view, options.dtype);
  return 1;
}

int make_rand(lua_State* L) { return make_random(L, "rand", false); }
int make_randn(lua_State* L) { return make_random(L, "randn", true); }

// Exactly, where doubles would round: how many integers flow.arange gives.
int64_t integers_between(lua_State* L, int numbers) {
  lua_Integer first = numbers > 1 ? lua_tointeger(L, 1) : 1;
  lua_Integer last = lua_tointeger(L, numbers > 1 ? 2 : 1);
  lua_Integer step = numbers > 2 ? lua_tointeger(L, 3) : 1;
  if (step > 0 ? first > last : first < last) return 0;
  uint64_t length = step > 0 ? static_cast<uint64_t>(last) - static_cast<uint64_t>(first)
                             : static_cast<uint64_t>(first) - static_cast<uint64_t>(last);
  uint64_t stride = step > 0 ? static_cast<uint64_t>(step) : 0 - static_cast<uint64_t>(step);
  return static_cast<int64_t>(length / stride) + 1;
}

// flow.arange(n) is 1..n; flow.arange(a, b[, step]) counts as `for i = a, b, step` does.
int make_arange(lua_State* L) {
  int numbers = 0;
  bool integers = true;
  while (numbers < 3 && lua_type(L, numbers + 1) == LUA_TNUMBER) {
    numbers++;
    integers = integers && lua_isinteger(L, numbers);
  }
  if (numbers == 0) raise(L, "flow.arange takes numbers: flow.arange(n), flow.arange(a, b, step)");
  Options options;
  options.dtype = integers ? DType::i64 : DType::f32;
  options.next = numbers + 1;
  read_rest(L, "arange", options, false);
  double first = numbers > 1 ? lua_tonumber(L, 1) : 1;
  double last = lua_tonumber(L, numbers > 1 ? 2 : 1);
  double step = numbers > 2 ? lua_tonumber(L, 3) : 1;
  if (step == 0 || !std::isfinite(first) || !std::isfinite(last) || !std::isfinite(step))
    raise(L, "flow.arange takes finite numbers and a step that is not 0");
  double count = std::floor((last - first) / step + 1e-9) + 1;
  if (count > static_cast<double>(kTensorBytesMax)) raise(L, "flow.arange: this is too long");
  kernels::Shape shape{integers    ? integers_between(L, numbers)
                       : count > 0 ? static_cast<int64_t>(count)
                                   : 0};
  kernels::View out = new_tensor(L, integers ? DType::i64 : DType::f64, shape);
  lua_Integer start = numbers > 1 ? lua_tointeger(L, 1) : 1;
  lua_Integer stride = numbers > 2 ? lua_tointeger(L, 3) : 1;
  for (int64_t i = 0; i < shape[0]; i++) {
    if (integers) {
      out.at<int64_t>()[i] = static_cast<int64_t>(
          static_cast<uint64_t>(start) + static_cast<uint64_t>(i) * static_cast<uint64_t>(stride));
    } else {
      out.at<double>()[i] = first + static_cast<double>(i) * step;
    }
  }
  as_dense(L, out, options.dtype);
  if (lua_isnil(L, -1)) lua_pop(L, 1);
  return 1;
}

int make_tensor(lua_State* L) {
  DType dtype = DType::f32;
  bool typed = !lua_isnoneornil(L, 2);
  if (typed) dtype = check_dtype(L, 2);
  if (const kernels::View* view = test_tensor(L, 1)) {
    cpu::copy(*view, new_tensor(L, typed ? dtype : view->dtype, view->shape));
    return 1;
  }
  refuse_handle(L, 1, "flow.tensor");
  push_tensor_of_table(L, 1, typed ? &dtype : nullptr);
  return 1;
}

// ---- joining

// The tensors of the list at 1: all of one type, and one shape but for `free` (0-based, -1 none).
std::vector<kernels::View> read_tensors(lua_State* L, const char* function, int free) {
  if (lua_type(L, 1) != LUA_TTABLE || lua_rawlen(L, 1) == 0)
    raise(L, fmt::format("flow.{} takes a list of tensors, not {}", function,
                         lua_istable(L, 1) ? "an empty one" : describe(L, 1)));
  std::vector<kernels::View> views;
  for (lua_Integer i = 1; i <= static_cast<lua_Integer>(lua_rawlen(L, 1)); i++) {
    lua_rawgeti(L, 1, i);
    views.push_back(check_tensor(L, -1, fmt::format("item {} of flow.{}", i, function).c_str()));
    lua_pop(L, 1);  // the list keeps it
    kernels::Shape shape = views.back().shape, first = views[0].shape;
    if (free >= 0 && free < shape.rank && shape.rank == first.rank) shape[free] = first[free];
    if (!(shape == first) || views.back().dtype != views[0].dtype)
      raise(L, fmt::format("flow.{} cannot join {} and {} (item {})", function, describe(views[0]),
                           describe(views.back()), i));
  }
  return views;
}

int join_existing(lua_State* L) {
  int exact = 1;
  lua_Integer dim = lua_isnoneornil(L, 2) ? 1 : lua_tointegerx(L, 2, &exact);
  if (!exact || dim < 1 || dim > kernels::kRankMax)
    raise(L, "flow.cat takes a list of tensors and a dimension");
  int at = static_cast<int>(dim) - 1;
  std::vector<kernels::View> views = read_tensors(L, "cat", at);
  if (at >= views[0].rank())
    raise(L, fmt::format("flow.cat cannot join dimension {} of {}", dim, describe(views[0])));
  kernels::Shape shape = views[0].shape;
  shape[at] = 0;
  for (const kernels::View& view : views) shape[at] += view.shape[at];
  kernels::View out = new_tensor(L, views[0].dtype, shape);
  int64_t first = 0;
  for (const kernels::View& view : views) {
    cpu::copy(view, kernels::narrow(out, at, first, view.shape[at]));
    first += view.shape[at];
  }
  return 1;
}

int join_new(lua_State* L) {
  std::vector<kernels::View> views = read_tensors(L, "stack", -1);
  kernels::Shape shape{static_cast<int64_t>(views.size())};
  for (int dim = 0; dim < views[0].rank(); dim++) {
    check_rank(L, shape);
    shape.push(views[0].shape[dim]);
  }
  kernels::View out = new_tensor(L, views[0].dtype, shape);
  for (size_t i = 0; i < views.size(); i++)
    cpu::copy(views[i], kernels::select(out, 0, static_cast<int64_t>(i)));
  return 1;
}

int is_tensor_function(lua_State* L) {
  lua_pushboolean(L, is_tensor(L, 1));
  return 1;
}

}  // namespace

void push_tensor_of_table(lua_State* L, int index, const DType* dtype) {
  index = lua_absindex(L, index);
  luaL_checkstack(L, kernels::kRankMax + 8, "the lists are nested too deep");
  kernels::Shape shape = shape_of_lists(L, index);
  ListReader reader(L, shape);
  Found found;
  lua_pushvalue(L, index);
  reader.walk(0, [&] { reader.notice(found); });
  lua_pop(L, 1);
  if (found.boolean && (found.integer || found.number) && dtype == nullptr)
    raise(L,
          "flow.tensor takes numbers or booleans, not both: give a type, flow.tensor(t, \"f32\")");
  DType type = found.boolean                    ? DType::boolean
               : found.integer && !found.number ? DType::i64
                                                : DType::f32;
  kernels::View out = new_tensor(L, dtype ? *dtype : type, shape);
  int64_t at = 0;
  lua_pushvalue(L, index);
  reader.walk(0, [&] { reader.store(out, at++); });
  lua_pop(L, 1);
}

void open_tensor_makers(lua_State* L, int flow_table) {
  luaL_Reg functions[] = {{"tensor", make_tensor}, {"zeros", make_zeros},
                          {"ones", make_ones},     {"full", make_full},
                          {"rand", make_rand},     {"randn", make_randn},
                          {"arange", make_arange}, {"cat", join_existing},
                          {"stack", join_new},     {"is_tensor", is_tensor_function},
                          {nullptr, nullptr}};
  lua_pushvalue(L, flow_table);
  luaL_setfuncs(L, functions, 0);
  lua_pop(L, 1);
}

}  // namespace flow::lua
