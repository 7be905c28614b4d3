// The Lua interface of tensors: the userdata, and its conversion to and from values.
#include "lua/tensor/tensor.hpp"

#include <fmt/format.h>

#include <cstring>

#include "kernels/shared/types.hpp"
#include "kernels/tensor/autograd.hpp"
#include "kernels/tensor/capture.hpp"
#include "lua/sandbox/sandbox.hpp"
#include "lua/tensor/memory_budget.hpp"
#include "lua/tensor/tensor_bytes.hpp"

namespace flow::lua {
namespace {

using tensors::Device;

const char kTensorKey = 0;

int drop_tensor(lua_State* L) {
  static_cast<tensors::Tensor*>(lua_touserdata(L, 1))->~Tensor();
  new (lua_touserdata(L, 1)) tensors::Tensor;  // a finalizer may still access it
  return 0;
}

int tensor_length(lua_State* L) {
  const tensors::Tensor& x = check_object(L, 1, "the operand of #");
  if (x.rank() == 0) raise(L, "a tensor without dimensions has no length: use x:item()");
  lua_pushinteger(L, x.size(0));
  return 1;
}

// Whether type, shape and elements are equal. NaN differs from everything.
int tensor_equals(lua_State* L) {
  const tensors::Tensor *a = test_object(L, 1), *b = test_object(L, 2);
  bool same = a != nullptr && b != nullptr && a->dtype() == b->dtype() && a->shape() == b->shape();
  if (same && a->count() > 0) {
    tensors::Tensor equal = tensors::compare(tensors::Compare::eq, *a, *b);
    same = tensors::integer_of(
               tensors::reduce(tensors::Reduce::all, equal, tensors::all_dims(equal))) != 0;
  }
  lua_pushboolean(L, same);
  return 1;
}

int reject_order(lua_State* L) {
  raise(L,
        "Lua's <, <=, > and >= give one boolean, so they do not compare tensors: write x:lt(y), "
        "x:le(y), x:gt(y) or x:ge(y) for one boolean per element");
}

int reject_concat(lua_State* L) {
  raise(L,
        "a tensor cannot be joined with `..`: write tostring(x), or flow.cat { x, y } to join "
        "tensors");
}

void push_metatable(lua_State* L) {
  if (lua_rawgetp(L, LUA_REGISTRYINDEX, &kTensorKey) == LUA_TTABLE) return;
  lua_pop(L, 1);
  lua_createtable(L, 0, 24);
  luaL_setfuncs(L, kTensorOperators, 0);
  luaL_Reg own[] = {{"__gc", drop_tensor},
                    {"__len", tensor_length},
                    {"__eq", protected_call<tensor_equals>},
                    {"__lt", reject_order},
                    {"__le", reject_order},
                    {"__concat", reject_concat},
                    {"__newindex", protected_call<tensor_new_index>},
                    {"__tostring", protected_call<tensor_text>},
                    {"__pairs", tensor_pairs},
                    {nullptr, nullptr}};
  luaL_setfuncs(L, own, 0);
  lua_createtable(L, 0, 160);
  for (const luaL_Reg* methods :
       {kTensorMath, kTensorReductions, kTensorShapes, kTensorNetworks, kTensorGradients})
    luaL_setfuncs(L, methods, 0);
  lua_pushcclosure(L, protected_call<tensor_index>, 1);
  lua_setfield(L, -2, "__index");
  lua_pushliteral(L, "tensor");
  lua_setfield(L, -2, "__name");
  lua_pushboolean(L, false);
  lua_setfield(L, -2, "__metatable");
  lua_pushvalue(L, -1);
  lua_rawsetp(L, LUA_REGISTRYINDEX, &kTensorKey);
}

// A header of type, shape and requires_grad, so that tensors of the same bytes and different shapes
// have different keys.
std::string header_of(const tensors::Tensor& x) {
  std::string header = std::string(dtype_name(x.dtype())) + kernels::text_of(x.shape());
  if (x.wants_gradient()) header += " gradient";
  return header + '\0';
}

// The result of f; a missing memory becomes a Lua error.
template <typename F>
auto with_room(lua_State* L, F f) {
  TensorBudget::running(L);
  std::string problem;
  try {
    return f();
  } catch (const tensors::TensorError& failure) {
    problem = failure.what();
  }
  raise(L, problem);
}

std::string dense_bytes(const tensors::Tensor& x) {
  tensors::NoRecord off;
  std::string bytes(x.view().bytes(), '\0');
  tensors::Tensor dense = tensors::contiguous(x.detached());
  tensors::move_bytes(x.device(), dense.view().data, {}, bytes.data(), bytes.size());
  return bytes;
}

// "`item`: ", the name by which the running function was called.
std::string running_name(lua_State* L) {
  lua_Debug call{};
  bool is_named = lua_getstack(L, 0, &call) && lua_getinfo(L, "n", &call) && call.name != nullptr;
  return is_named ? fmt::format("`{}`: ", call.name) : "";
}

}  // namespace

int call_protected(lua_State* L, Function function) {
  TensorBudget::running(L);
  std::string problem;
  try {
    return function(L);
  } catch (const tensors::CaptureError& failure) {
    problem = running_name(L) + failure.what();
  } catch (const tensors::TensorError& failure) {
    problem = failure.what();
  }
  raise(L, problem);
}

const tensors::Tensor* test_object(lua_State* L, int index) {
  if (lua_type(L, index) != LUA_TUSERDATA || !lua_getmetatable(L, index)) return nullptr;
  lua_rawgetp(L, LUA_REGISTRYINDEX, &kTensorKey);
  bool same = lua_rawequal(L, -1, -2);
  lua_pop(L, 2);
  if (!same) return nullptr;
  auto* tensor = static_cast<const tensors::Tensor*>(lua_touserdata(L, index));
  return *tensor ? tensor : nullptr;
}

const tensors::Tensor& check_object(lua_State* L, int index, const char* what) {
  const tensors::Tensor* tensor = test_object(L, index);
  if (tensor == nullptr) raise(L, fmt::format("{} is a tensor, not {}", what, describe(L, index)));
  return *tensor;
}

void push_object(lua_State* L, tensors::Tensor tensor) {
  luaL_checkstack(L, 6, "too many tensors at once");
  void* memory = lua_newuserdatauv(L, sizeof(tensors::Tensor), 0);
  new (memory) tensors::Tensor(std::move(tensor));
  push_metatable(L);
  lua_setmetatable(L, -2);
  TensorBudget::collect_if_due(L);
}

void push_item(lua_State* L, const tensors::Tensor& tensor) {
  if (tensor.dtype() == DType::boolean) {
    lua_pushboolean(L, tensors::integer_of(tensor) != 0);
  } else if (kernels::is_float(tensor.dtype())) {
    lua_pushnumber(L, tensors::item_of(tensor));
  } else {
    lua_pushinteger(L, tensors::integer_of(tensor));
  }
}

void push_result(lua_State* L, const tensors::Tensor& tensor) {
  if (tensor.rank() == 0 && !tensor.is_tracked()) return push_item(L, tensor);
  push_object(L, tensor);
}

const kernels::View* test_tensor(lua_State* L, int index) {
  const tensors::Tensor* tensor = test_object(L, index);
  if (tensor == nullptr) return nullptr;
  if (tensor->device().kind != Device::cpu)
    raise(L, fmt::format("{} is read by the CPU here: move it with x:to(\"cpu\")",
                         tensors::text_of(*tensor)));
  return &tensor->view();
}

const kernels::View& check_tensor(lua_State* L, int index, const char* what) {
  check_object(L, index, what);
  return *test_tensor(L, index);
}

kernels::View new_tensor(lua_State* L, DType dtype, const kernels::Shape& shape) {
  TensorBudget::running(L);
  std::string problem;
  try {
    tensors::Tensor made = tensors::Tensor::empty(dtype, shape);
    kernels::View view = made.view();
    push_object(L, std::move(made));
    return view;
  } catch (const tensors::TensorError& failure) {
    problem = failure.what();
  }
  raise(L, problem);
}

void push_view(lua_State* L, const kernels::View& view, int owner) {
  push_object(L, tensors::Tensor(view, test_object(L, owner)->storage()));
}

kernels::View as_dense(lua_State* L, const kernels::View& view, DType dtype) {
  if (view.dtype == dtype && kernels::is_dense(view)) {
    lua_pushnil(L);
    return view;
  }
  kernels::View out = new_tensor(L, dtype, view.shape);
  copy_view(view, out);
  return out;
}

void copy_view(const kernels::View& from, const kernels::View& to) {
  tensors::call({}, &kernels::Kernels::copy, "copy", from, to);
}

std::string describe(const kernels::View& view) {
  return fmt::format("tensor {} {}", dtype_name(view.dtype), kernels::text_of(view.shape));
}

std::string describe(lua_State* L, int index) {
  if (const tensors::Tensor* tensor = test_object(L, index)) return tensors::text_of(*tensor);
  if (is_handle(L, index)) return describe_handle(L, index) + " (its result is not there yet)";
  if (lua_isnoneornil(L, index)) return "nil";
  return std::string("a ") + luaL_typename(L, index);
}

DType check_dtype(lua_State* L, int index) {
  static const std::vector<std::string> names = {"f32", "f16", "bf16", "f64",
                                                 "i64", "i32", "u8",   "bool"};
  if (lua_type(L, index) != LUA_TSTRING)
    raise(L,
          fmt::format("a tensor's type is a string such as \"f32\", not {}", describe(L, index)));
  std::string name = lua_tostring(L, index);
  DType dtype;
  if (parse_dtype(name, dtype)) return dtype;
  std::string near = nearest_name(name, names);
  raise(L,
        fmt::format(
            "`{}` is not a type of tensors{}: expected f32, f16, bf16, f64, i64, i32, u8 or bool",
            name, near.empty() ? "" : " (did you mean `" + near + "`?)"));
}

bool is_device_name(lua_State* L, int index) {
  if (lua_type(L, index) != LUA_TSTRING) return false;
  std::string_view name = lua_tostring(L, index);
  return name == "cpu" || name.starts_with("cuda");
}

tensors::Device check_device(lua_State* L, int index) {
  std::string name = lua_type(L, index) == LUA_TSTRING ? lua_tostring(L, index) : "";
  if (name == "cpu") return {};
  Device device{Device::cuda, 0};
  if (name == "cuda") return device;
  if (name.starts_with("cuda:") && name.size() > 5 && name.size() < 9 &&
      name.find_first_not_of("0123456789", 5) == std::string::npos) {
    device.index = std::stoi(name.substr(5));
    return device;
  }
  raise(L, fmt::format("a device is \"cpu\", \"cuda\" or \"cuda:N\" with N from 0, not {}",
                       name.empty() ? describe(L, index) : "\"" + name + "\""));
}

int check_dim(lua_State* L, int index, const kernels::View& view, const char* function) {
  int exact = 0;
  lua_Integer given = lua_tointegerx(L, index, &exact);
  lua_Integer dim = given < 0 ? given + view.rank() + 1 : given;
  if (!exact || dim < 1 || dim > view.rank())
    raise(L, fmt::format("x:{} takes a dimension of 1..{} of {}, not {}", function, view.rank(),
                         describe(view), exact ? std::to_string(given) : describe(L, index)));
  return static_cast<int>(dim) - 1;
}

tensors::Dims check_dims(lua_State* L, int index, const kernels::View& view, const char* function) {
  tensors::Dims dims;
  if (lua_isnoneornil(L, index)) {
    for (int dim = 0; dim < view.rank(); dim++) dims.push_back(dim);
    return dims;
  }
  if (!lua_istable(L, index)) return {check_dim(L, index, view, function)};
  for (lua_Integer i = 1; i <= static_cast<lua_Integer>(lua_rawlen(L, index)); i++) {
    lua_rawgeti(L, index, i);
    dims.push_back(check_dim(L, lua_gettop(L), view, function));
    lua_pop(L, 1);
  }
  return dims;
}

kernels::Number check_number(lua_State* L, int index, const char* what) {
  if (lua_isboolean(L, index)) return kernels::Number::of(int64_t{lua_toboolean(L, index)});
  if (lua_type(L, index) != LUA_TNUMBER)
    raise(L, fmt::format("{} is a number, not {}", what, describe(L, index)));
  if (lua_isinteger(L, index)) return kernels::Number::of(int64_t{lua_tointeger(L, index)});
  return kernels::Number::of(double{lua_tonumber(L, index)});
}

void push_first(lua_State* L, const kernels::View& view) {
  kernels::visit(view.dtype, [&](auto type) {
    using T = decltype(type);
    T value = *view.at<T>();
    if constexpr (std::is_same_v<T, kernels::Bool>) {
      lua_pushboolean(L, value.bits != 0);
    } else if constexpr (std::is_integral_v<T>) {
      lua_pushinteger(L, kernels::convert<int64_t>(value));
    } else {
      lua_pushnumber(L, kernels::convert<double>(value));
    }
  });
}

kernels::Shape check_shape(lua_State* L, int index, const char* function, bool open) {
  bool in_table = lua_type(L, index) == LUA_TTABLE;
  auto given = in_table ? static_cast<int>(lua_rawlen(L, index)) : lua_gettop(L) - index + 1;
  if (given > kernels::kRankMax)
    raise(L, fmt::format("a tensor has at most {} dimensions", kernels::kRankMax));
  kernels::Shape shape;
  for (int i = 0; i < given; i++) {
    if (in_table) {
      lua_rawgeti(L, index, i + 1);
    } else {
      lua_pushvalue(L, index + i);
    }
    int exact = 0;
    lua_Integer size = lua_tointegerx(L, -1, &exact);
    if (!exact || lua_type(L, -1) != LUA_TNUMBER || size < (open ? -1 : 0))
      raise(L, fmt::format("{} takes sizes{}, not {}", function,
                           open ? ", one of which may be -1" : ", integers of 0 or more",
                           exact ? std::to_string(size) : describe(L, -1)));
    lua_pop(L, 1);
    shape.push(size);
  }
  return shape;
}

uint64_t draw_seed(lua_State* L) {
  if (lua_rawgetp(L, LUA_REGISTRYINDEX, &kGlobalsKey) != LUA_TTABLE) {
    lua_pop(L, 1);
    lua_pushglobaltable(L);  // a state without a sandbox
  }
  lua_getfield(L, -1, "math");
  lua_getfield(L, -1, "random");
  lua_pushinteger(L, 0);  // all 64 bits
  lua_call(L, 1, 1);
  auto seed = static_cast<uint64_t>(lua_tointeger(L, -1));
  lua_pop(L, 3);
  return seed;
}

kernels::Seed next_seed(lua_State* L) {
  return tensors::runtime().capture == nullptr ? draw_seed(L) : recorded_seed(L);
}

bool is_tensor(lua_State* L, int index) { return test_object(L, index) != nullptr; }

void open_tensor(lua_State* L, int flow_table) {
  flow_table = lua_absindex(L, flow_table);
  open_tensor_makers(L, flow_table);
  open_tensor_gradients(L, flow_table);
  open_tensor_networks(L, flow_table);
  open_tensor_graphs(L, flow_table);
}

void push_tensor(lua_State* L, const Tensor& tensor) {
  if (tensor.shape.size() > kernels::kRankMax)
    raise(L, fmt::format("a tensor of {} dimensions can't be read: there are at most {}",
                         tensor.shape.size(), kernels::kRankMax));
  kernels::Shape shape;
  for (int64_t size : tensor.shape) {
    if (size < 0) raise(L, "a tensor of negative size can't be read");
    shape.push(size);
  }
  Bytes data = tensor.data;
  if (data == nullptr) {
    AttemptHost* host = context(L).host;
    if (host == nullptr) raise(L, "the content of a tensor can be read in tasks only");
    auto blob = host->blob(tensor.digest);
    if (!blob.ok()) raise(L, fmt::format("a tensor can't be read: {}", blob.error().message));
    data = std::move(*blob);
  }
  kernels::View view = kernels::dense(tensor.dtype, shape, nullptr);
  if (data->size() != view.bytes())
    raise(L, fmt::format("the content of {} has {} bytes, not {}", describe(view), data->size(),
                         view.bytes()));
  push_bytes(L, tensor.dtype, shape, data);
}

Tensor read_tensor(lua_State* L, int index, TensorRead how) {
  const tensors::Tensor& x = check_object(L, index, "what is read");
  Tensor tensor;
  tensor.dtype = x.dtype();
  for (int dim = 0; dim < x.rank(); dim++) tensor.shape.push_back(x.size(dim));
  tensor.data =
      with_room(L, [&] { return how == TensorRead::unnamed ? copied_bytes(x) : shared_bytes(x); });
  if (how == TensorRead::shared) tensor.digest = sha256(*tensor.data);
  return tensor;
}

std::string tensor_bytes(lua_State* L, int index) {
  const tensors::Tensor& x = check_object(L, index, "what is read");
  return header_of(x) + with_room(L, [&] { return dense_bytes(x); });
}

void forget_gradient(lua_State* L, int index) {
  tensors::Tensor x = check_object(L, index, "what is restored");
  x.set_gradient({});
}

void restore_tensor(lua_State* L, int index, const std::string& bytes) {
  tensors::Tensor x = check_object(L, index, "what is restored");
  size_t header = bytes.find('\0');
  FLOW_CHECK(header != std::string::npos && bytes.size() - header - 1 == x.view().bytes());
  tensors::NoRecord off;
  x.set_node({});
  x.want_gradient(bytes.substr(0, header).ends_with(" gradient"));
  std::string content = bytes.substr(header + 1);
  with_room(L, [&] {
    tensors::Tensor saved = tensors::Tensor::empty(x.dtype(), x.shape());
    if (!content.empty()) std::memcpy(saved.view().data, content.data(), content.size());
    tensors::copy_in_place(x, saved);
    return 0;
  });
}

}  // namespace flow::lua
