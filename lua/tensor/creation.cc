// Creates tensors: flow.tensor, zeros, ones, full, rand, randn, arange, cat, stack.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "kernels/shared/types.hpp"
#include "kernels/tensor/capture.hpp"
#include "lua/state/exact.hpp"
#include "lua/tensor/tensor.hpp"

namespace flow::lua {
namespace {

// ---- nested lists

struct ElementKinds {
  bool integer = false, number = false, boolean = false;
  std::optional<int64_t> beyond_f32;  // the first integer that f32 would round
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

  // Visits the elements of the list at the top of the stack, in order.
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

  void notice(ElementKinds& found) {
    switch (lua_type(L_, -1)) {
      case LUA_TNUMBER:
        (lua_isinteger(L_, -1) ? found.integer : found.number) = true;
        if (lua_isinteger(L_, -1) && !found.beyond_f32 && !is_exact<float>(lua_tointeger(L_, -1)))
          found.beyond_f32 = lua_tointeger(L_, -1);
        return;
      case LUA_TBOOLEAN:
        found.boolean = true;
        return;
      default:
        fail(shape_.rank, "is " + describe(L_, -1) + ", not a number or a boolean");
    }
  }

  void store(const kernels::View& out, int64_t at) {
    if (kernels::is_integer(out.dtype))
      tensors::checked(check_number(L_, -1, "an element"), out.dtype);
    kernels::visit(out.dtype, [&](auto type) {
      using T = decltype(type);
      T& element = out.at<T>()[at];
      if (lua_isboolean(L_, -1)) {
        element = kernels::convert<T>(int64_t{lua_toboolean(L_, -1)});
      } else if (lua_isinteger(L_, -1)) {
        element = kernels::convert<T>(int64_t{lua_tointeger(L_, -1)});
      } else {
        element = kernels::convert<T>(double{lua_tonumber(L_, -1)});
      }
    });
  }

 private:
  lua_State* L_;
  const kernels::Shape& shape_;
  std::array<int64_t, kernels::kRankMax> at_{};
};

// ---- shapes as arguments

struct CreationOptions {
  kernels::Shape shape;
  DType dtype = DType::f32;
  tensors::Device device;
  bool has_dtype = false, has_device = false, has_seed = false, wants_gradient = false;
  uint64_t seed = 0;
  int next = 0;  // the first argument after the shape
};

// flow.zeros(2, 3) or flow.zeros({2, 3})
CreationOptions read_shape(lua_State* L, const char* function) {
  CreationOptions options;
  std::string name = std::string("flow.") + function;
  if (lua_type(L, 1) == LUA_TTABLE) {
    options.shape = check_shape(L, 1, name.c_str());
    options.next = 2;
    return options;
  }
  int count = 0;
  while (lua_type(L, count + 1) == LUA_TNUMBER) count++;
  if (count == 0)
    raise(L, fmt::format("flow.{} takes a shape: flow.{}(2, 3) or flow.{}({{2, 3}}), not {}",
                         function, function, function, describe(L, 1)));
  for (int i = 1; i <= count; i++) {
    if (i > kernels::kRankMax)
      raise(L, fmt::format("a tensor has at most {} dimensions", kernels::kRankMax));
    int exact = 0;
    lua_Integer size = lua_tointegerx(L, i, &exact);
    if (!exact || size < 0)
      raise(L, fmt::format("flow.{} takes sizes, integers of 0 or more, not {}", function,
                           exact ? std::to_string(size) : describe(L, i)));
    options.shape.push(size);
  }
  options.next = count + 1;
  return options;
}

// The arguments after the shape: a type, a device, or a table of options.
void read_rest(lua_State* L, const char* function, CreationOptions& options, bool random) {
  int index = options.next;
  if (lua_isnoneornil(L, index)) return;
  if (is_device_name(L, index)) {
    options.device = check_device(L, index);
    options.has_device = true;
    return;
  }
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
    } else if (key == "device") {
      options.device = check_device(L, lua_gettop(L));
      options.has_device = true;
    } else if (key == "requires_grad") {
      options.wants_gradient = lua_toboolean(L, -1);
    } else if (key == "seed" && random) {
      if (!lua_isinteger(L, -1)) raise(L, "the option `seed` is an integer");
      options.seed = static_cast<uint64_t>(lua_tointeger(L, -1));
      options.has_seed = true;
    } else {
      raise(L, fmt::format("flow.{} has no option `{}`: there are `dtype`, `device`{} and "
                           "`requires_grad`",
                           function, key, random ? ", `seed`" : ""));
    }
    lua_pop(L, 1);
  }
}

int push_made(lua_State* L, tensors::Tensor made, const CreationOptions& options) {
  if (options.wants_gradient) made.want_gradient(true);
  push_object(L, std::move(made));
  return 1;
}

int make_filled(lua_State* L, const char* function, int64_t value) {
  CreationOptions options = read_shape(L, function);
  read_rest(L, function, options, false);
  return push_made(L,
                   tensors::Tensor::full(options.dtype, options.shape, kernels::Number::of(value),
                                         options.device),
                   options);
}

int make_zeros(lua_State* L) { return make_filled(L, "zeros", 0); }
int make_ones(lua_State* L) { return make_filled(L, "ones", 1); }

// flow.full({2, 3}, 0.5)
int make_full(lua_State* L) {
  if (lua_type(L, 1) != LUA_TTABLE)
    raise(L, fmt::format("flow.full takes a shape and a value: flow.full({{2, 3}}, 0.5), not {}",
                         describe(L, 1)));
  CreationOptions options = read_shape(L, "full");
  options.next = 3;
  read_rest(L, "full", options, false);
  kernels::Number value = check_number(L, 2, "the value of flow.full");
  if (lua_isboolean(L, 2) && !options.has_dtype) options.dtype = DType::boolean;
  if (lua_isinteger(L, 2) && !options.has_dtype && !is_exact<float>(lua_tointeger(L, 2)))
    raise(L,
          fmt::format("flow.full: the default type f32 cannot hold the integer {} exactly: name a "
                      "type, flow.full(shape, {}, \"i64\"), or \"f32\" to round it",
                      lua_tointeger(L, 2), lua_tointeger(L, 2)));
  return push_made(L, tensors::Tensor::full(options.dtype, options.shape, value, options.device),
                   options);
}

int make_random(lua_State* L, const char* function, bool normal) {
  CreationOptions options = read_shape(L, function);
  read_rest(L, function, options, true);
  if (!kernels::is_float(options.dtype))
    raise(L, fmt::format("flow.{} makes floats, not {}", function, dtype_name(options.dtype)));
  kernels::Seed seed = options.has_seed ? options.seed : next_seed(L);
  auto maker = normal ? tensors::normal : tensors::uniform;
  return push_made(L, maker(options.dtype, options.shape, seed, 0, 1, options.device), options);
}

int make_rand(lua_State* L) { return make_random(L, "rand", false); }
int make_randn(lua_State* L) { return make_random(L, "randn", true); }

// flow.randint(low, high, shape [, type | options]): low..high, both ends included
int make_randint(lua_State* L) {
  if (!lua_isinteger(L, 1) || !lua_isinteger(L, 2) || lua_type(L, 3) != LUA_TTABLE)
    raise(L,
          "flow.randint takes the least and the largest integer and a shape: "
          "flow.randint(1, 6, {10})");
  CreationOptions options;
  options.dtype = DType::i64;
  options.shape = check_shape(L, 3, "flow.randint");
  options.next = 4;
  read_rest(L, "randint", options, true);
  kernels::Seed seed = options.has_seed ? options.seed : next_seed(L);
  return push_made(L,
                   tensors::integers(options.dtype, options.shape, seed, lua_tointeger(L, 1),
                                     lua_tointeger(L, 2), options.device),
                   options);
}

// flow.eye(n)
int make_eye(lua_State* L) {
  CreationOptions options = read_shape(L, "eye");
  read_rest(L, "eye", options, false);
  if (options.shape.rank != 1) raise(L, "flow.eye takes the number of rows and columns");
  int64_t size = options.shape[0];
  tensors::Tensor made =
      tensors::Tensor::zeros(options.dtype, kernels::Shape{size, size}, options.device);
  kernels::View diagonal = made.view();
  diagonal.shape = kernels::Shape{size};
  diagonal.strides[0] = size + 1;
  tensors::fill_in_place(tensors::Tensor(diagonal, made.storage()),
                         kernels::Number::of(int64_t{1}));
  return push_made(L, made, options);
}

// The sequence is monotonic: if its ends fit in the type, all elements do.
void check_ends(const kernels::View& numbers, DType dtype) {
  if (numbers.shape[0] == 0 || !kernels::is_integer(dtype)) return;
  for (int64_t at : {int64_t{0}, numbers.shape[0] - 1})
    tensors::checked(numbers.dtype == DType::i64 ? kernels::Number::of(numbers.at<int64_t>()[at])
                                                 : kernels::Number::of(numbers.at<double>()[at]),
                     dtype);
}

// flow.linspace(a, b, n): n numbers, both ends included
int make_linspace(lua_State* L) {
  double first = luaL_checknumber(L, 1), last = luaL_checknumber(L, 2);
  lua_Integer count = luaL_checkinteger(L, 3);
  if (count < 0) raise(L, "flow.linspace takes two ends and a number of 0 or more");
  CreationOptions options;
  options.next = 4;
  read_rest(L, "linspace", options, false);
  tensors::Tensor made = tensors::Tensor::empty(DType::f64, kernels::Shape{count});
  for (int64_t i = 0; i < count; i++) {  // from both ends, so that they are exact
    double step = count > 1 ? (last - first) / static_cast<double>(count - 1) : 0;
    made.view().at<double>()[i] = i < count / 2 ? first + step * static_cast<double>(i)
                                  : count == 1  ? first
                                                : last - step * static_cast<double>(count - 1 - i);
  }
  check_ends(made.view(), options.dtype);
  tensors::ConstantCopies constants;
  made = tensors::move(tensors::cast(made, options.dtype), options.device);
  return push_made(L, made, options);
}

template <int value>
int make_like(lua_State* L) {
  const tensors::Tensor& x = check_object(L, 1, "the argument");
  push_object(L, tensors::Tensor::full(x.dtype(), x.shape(), kernels::Number::of(int64_t{value}),
                                       x.device()));
  return 1;
}

// How many integers flow.arange returns, computed exactly, where doubles would round.
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

// flow.arange(n) is 1..n; flow.arange(a, b[, step]) counts like `for i = a, b, step`.
int make_arange(lua_State* L) {
  int numbers = 0;
  bool integers = true;
  while (numbers < 3 && lua_type(L, numbers + 1) == LUA_TNUMBER) {
    numbers++;
    integers = integers && lua_isinteger(L, numbers);
  }
  if (numbers == 0) raise(L, "flow.arange takes numbers: flow.arange(n), flow.arange(a, b, step)");
  CreationOptions options;
  options.dtype = integers ? DType::i64 : DType::f32;
  options.next = numbers + 1;
  read_rest(L, "arange", options, false);
  double first = numbers > 1 ? lua_tonumber(L, 1) : 1;
  double last = lua_tonumber(L, numbers > 1 ? 2 : 1);
  double step = numbers > 2 ? lua_tonumber(L, 3) : 1;
  if (step == 0 || !std::isfinite(first) || !std::isfinite(last) || !std::isfinite(step))
    raise(L, "flow.arange takes finite numbers and a step that is not 0");
  double count = std::floor((last - first) / step + 1e-9) + 1;
  if (count > 0x1p40) raise(L, "flow.arange: the result is too long");
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
  check_ends(out, options.dtype);
  tensors::Tensor made = check_object(L, -1, "what is made");
  tensors::ConstantCopies constants;
  return push_made(L, tensors::move(tensors::cast(made, options.dtype), options.device), options);
}

// flow.tensor(lists or tensor [, type | options])
int make_tensor(lua_State* L) {
  CreationOptions options;
  options.next = 2;
  read_rest(L, "tensor", options, false);
  if (const tensors::Tensor* given = test_object(L, 1)) {
    tensors::Tensor x = given->detached();
    DType dtype = options.has_dtype ? options.dtype : x.dtype();
    tensors::Device device = options.has_device ? options.device : x.device();
    tensors::Tensor made = tensors::move(tensors::cast(x, dtype), device);
    if (made.storage() == x.storage()) made = tensors::copy_of(made);
    return push_made(L, made, options);
  }
  reject_handle(L, 1, "flow.tensor");
  push_tensor_of_table(L, 1, options.has_dtype ? &options.dtype : nullptr);
  tensors::Tensor made = check_object(L, -1, "what is made");
  return push_made(L, tensors::move(made, options.device), options);
}

// ---- joining

// The tensors of the list at 1.
std::vector<tensors::Tensor> read_tensors(lua_State* L, const char* function) {
  if (lua_type(L, 1) != LUA_TTABLE || lua_rawlen(L, 1) == 0)
    raise(L, fmt::format("flow.{} takes a list of tensors, not {}", function,
                         lua_istable(L, 1) ? "an empty one" : describe(L, 1)));
  std::vector<tensors::Tensor> parts;
  for (lua_Integer i = 1; i <= static_cast<lua_Integer>(lua_rawlen(L, 1)); i++) {
    lua_rawgeti(L, 1, i);
    parts.push_back(check_object(L, -1, fmt::format("item {} of flow.{}", i, function).c_str()));
    lua_pop(L, 1);
  }
  return parts;
}

int dimension_at(lua_State* L, const char* function, int most) {
  int exact = 1;
  lua_Integer dim = lua_isnoneornil(L, 2) ? 1 : lua_tointegerx(L, 2, &exact);
  if (dim < 0) dim += most + 1;
  if (!exact || dim < 1 || dim > most)
    raise(L,
          fmt::format("flow.{} takes a list of tensors and a dimension of 1..{}", function, most));
  return static_cast<int>(dim) - 1;
}

int join_existing(lua_State* L) {
  std::vector<tensors::Tensor> parts = read_tensors(L, "cat");
  push_object(L, tensors::cat(parts, dimension_at(L, "cat", std::max(parts[0].rank(), 1))));
  return 1;
}

int join_new(lua_State* L) {
  std::vector<tensors::Tensor> parts = read_tensors(L, "stack");
  push_object(L, tensors::stack(parts, dimension_at(L, "stack", parts[0].rank() + 1)));
  return 1;
}

// flow.where(condition, a, b)
int choose(lua_State* L) {
  tensors::Tensor condition = check_object(L, 1, "the condition of flow.where");
  auto side = [&](int index) {
    if (const tensors::Tensor* x = test_object(L, index)) return *x;
    kernels::Number number = check_number(L, index, "what flow.where chooses");
    const tensors::Tensor* other = test_object(L, 5 - index);
    DType dtype = other != nullptr ? tensors::type_with(other->dtype(), number)
                                   : tensors::type_with(DType::i64, number);
    return tensors::Tensor::full(dtype, {}, number, condition.device());
  };
  push_object(L, tensors::where(condition, side(2), side(3)));
  return 1;
}

double gbm_number(lua_State* L, const char* name, double otherwise) {
  lua_getfield(L, 1, name);
  if (!lua_isnil(L, -1) && lua_type(L, -1) != LUA_TNUMBER)
    raise(L, fmt::format("the option `{}` of flow.gbm is a number, not {}", name, describe(L, -1)));
  double value = luaL_optnumber(L, -1, otherwise);
  lua_pop(L, 1);
  return value;
}

int64_t gbm_integer(lua_State* L, const char* name, int64_t otherwise) {
  lua_getfield(L, 1, name);
  int exact = 1;
  int64_t value = lua_isnil(L, -1) ? otherwise : lua_tointegerx(L, -1, &exact);
  if (!exact)
    raise(L,
          fmt::format("the option `{}` of flow.gbm is an integer, not {}", name, describe(L, -1)));
  lua_pop(L, 1);
  return value;
}

// flow.gbm { paths =, steps =, start =, rate =, volatility =, years =, seed =, first =, ends = }
int make_gbm(lua_State* L) {
  if (!lua_istable(L, 1))
    raise(L, fmt::format("flow.gbm takes a table: flow.gbm {{ paths = 1000, steps = 12 }}, not {}",
                         describe(L, 1)));
  static const std::vector<std::string> names = {"paths",      "steps", "start", "rate",
                                                 "volatility", "years", "seed",  "first",
                                                 "ends",       "dtype", "device"};
  lua_pushnil(L);
  while (lua_next(L, 1)) {
    std::string key = lua_type(L, -2) == LUA_TSTRING ? lua_tostring(L, -2) : describe(L, -2);
    if (std::find(names.begin(), names.end(), key) == names.end())
      raise(L, fmt::format("flow.gbm has no option `{}`: there are paths, steps, start, rate, "
                           "volatility, years, seed, first, ends, dtype and device",
                           key));
    lua_pop(L, 1);
  }
  kernels::Gbm options;
  options.start = gbm_number(L, "start", options.start);
  options.rate = gbm_number(L, "rate", options.rate);
  options.volatility = gbm_number(L, "volatility", options.volatility);
  options.years = gbm_number(L, "years", options.years);
  options.steps = gbm_integer(L, "steps", 1);
  options.first_path = gbm_integer(L, "first", 1) - 1;
  if (options.first_path < 0) raise(L, "the option `first` of flow.gbm counts paths from 1");
  lua_getfield(L, 1, "seed");
  bool seeded = !lua_isnil(L, -1);
  lua_pop(L, 1);
  if (!seeded) tensors::check_not_captured("flow.gbm without a seed");
  options.seed = seeded ? static_cast<uint64_t>(gbm_integer(L, "seed", 0)) : next_seed(L).value;
  lua_getfield(L, 1, "ends");
  bool ends = lua_toboolean(L, -1);
  lua_getfield(L, 1, "dtype");
  DType dtype = lua_isnil(L, -1) ? DType::f32 : check_dtype(L, lua_gettop(L));
  lua_getfield(L, 1, "device");
  tensors::Device device = lua_isnil(L, -1) ? tensors::Device() : check_device(L, lua_gettop(L));
  push_object(L, tensors::gbm(options, gbm_integer(L, "paths", 1), ends, dtype, device));
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
  ElementKinds found;
  lua_pushvalue(L, index);
  reader.walk(0, [&] { reader.notice(found); });
  lua_pop(L, 1);
  if (found.boolean && (found.integer || found.number) && dtype == nullptr)
    raise(L,
          "flow.tensor takes numbers or booleans, not both: give a type, flow.tensor(t, \"f32\")");
  DType type = found.boolean                    ? DType::boolean
               : found.integer && !found.number ? DType::i64
                                                : DType::f32;
  if (dtype == nullptr && type == DType::f32 && found.beyond_f32)
    raise(L, fmt::format(
                 "flow.tensor: the list has fractions, so the tensor is f32, which cannot hold the "
                 "integer {} exactly: name a type, flow.tensor(t, \"f64\"), or \"f32\" to round it",
                 *found.beyond_f32));
  kernels::View out = new_tensor(L, dtype ? *dtype : type, shape);
  int64_t at = 0;
  lua_pushvalue(L, index);
  reader.walk(0, [&] { reader.store(out, at++); });
  lua_pop(L, 1);
}

void open_tensor_makers(lua_State* L, int flow_table) {
  luaL_Reg functions[] = {{"tensor", protected_call<make_tensor>},
                          {"zeros", protected_call<make_zeros>},
                          {"ones", protected_call<make_ones>},
                          {"full", protected_call<make_full>},
                          {"zeros_like", protected_call<make_like<0>>},
                          {"ones_like", protected_call<make_like<1>>},
                          {"rand", protected_call<make_rand>},
                          {"randn", protected_call<make_randn>},
                          {"randint", protected_call<make_randint>},
                          {"arange", protected_call<make_arange>},
                          {"linspace", protected_call<make_linspace>},
                          {"eye", protected_call<make_eye>},
                          {"cat", protected_call<join_existing>},
                          {"stack", protected_call<join_new>},
                          {"where", protected_call<choose>},
                          {"gbm", protected_call<make_gbm>},
                          {"is_tensor", is_tensor_function},
                          {nullptr, nullptr}};
  lua_pushvalue(L, flow_table);
  luaL_setfuncs(L, functions, 0);
  lua_pop(L, 1);
}

}  // namespace flow::lua
