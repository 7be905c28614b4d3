// Tensors as Lua sees them: the userdata, and its way to and from values that cross an edge.
#include "lua/tensor.hpp"

#include <fmt/format.h>

#include <cstring>

#include "kernels/cpu/copy.hpp"
#include "kernels/cpu/walk.hpp"
#include "kernels/shared/types.hpp"
#include "lua/sandbox.hpp"

namespace flow::lua {
namespace {

const char kTensorKey = 0;

int tensor_length(lua_State* L) {
  const kernels::View& view = check_tensor(L, 1, "the operand of #");
  if (view.rank() == 0) raise(L, "a tensor without dimensions has no length: use x:item()");
  lua_pushinteger(L, view.shape[0]);
  return 1;
}

// Same type, shape and elements. A NaN differs from all.
int tensor_equals(lua_State* L) {
  const kernels::View *a = test_tensor(L, 1), *b = test_tensor(L, 2);
  bool same = a != nullptr && b != nullptr && a->dtype == b->dtype && a->shape == b->shape;
  if (same) {
    kernels::visit(a->dtype, [&](auto type) {
      using T = decltype(type);
      cpu::for_each_run<2>({*a, *b}, [&](auto at, auto stride, int64_t length) {
        for (int64_t i = 0; i < length && same; i++) {
          T left = reinterpret_cast<const T*>(at[0])[i * stride[0]];
          T right = reinterpret_cast<const T*>(at[1])[i * stride[1]];
          if constexpr (std::is_arithmetic_v<T>) {
            same = left == right;
          } else {
            same = kernels::convert<float>(left) == kernels::convert<float>(right);
          }
        }
      });
    });
  }
  lua_pushboolean(L, same);
  return 1;
}

int refuse_order(lua_State* L) {
  raise(L,
        "Lua's <, <=, > and >= give one boolean, so they do not compare tensors: write x:lt(y), "
        "x:le(y), x:gt(y) or x:ge(y) for one boolean an element");
}

int refuse_concat(lua_State* L) {
  raise(L, "a tensor is no string: write tostring(x), or flow.cat { x, y } to join tensors");
}

void push_metatable(lua_State* L) {
  if (lua_rawgetp(L, LUA_REGISTRYINDEX, &kTensorKey) == LUA_TTABLE) return;
  lua_pop(L, 1);
  lua_createtable(L, 0, 20);
  luaL_setfuncs(L, kTensorOperators, 0);
  luaL_Reg own[] = {
      {"__len", tensor_length},    {"__eq", tensor_equals},     {"__lt", refuse_order},
      {"__le", refuse_order},      {"__concat", refuse_concat}, {"__newindex", tensor_new_index},
      {"__tostring", tensor_text}, {"__pairs", tensor_pairs},   {nullptr, nullptr}};
  luaL_setfuncs(L, own, 0);
  lua_createtable(L, 0, 64);
  luaL_setfuncs(L, kTensorMath, 0);
  luaL_setfuncs(L, kTensorReductions, 0);
  luaL_setfuncs(L, kTensorShapes, 0);
  luaL_setfuncs(L, kTensorNetworks, 0);
  lua_pushcclosure(L, tensor_index, 1);
  lua_setfield(L, -2, "__index");
  lua_pushliteral(L, "tensor");
  lua_setfield(L, -2, "__name");
  lua_pushboolean(L, false);
  lua_setfield(L, -2, "__metatable");
  lua_pushvalue(L, -1);
  lua_rawsetp(L, LUA_REGISTRYINDEX, &kTensorKey);
}

// Pushes a tensor over the storage at the top, which it replaces.
void wrap_storage(lua_State* L, const kernels::View& view) {
  static_assert(std::is_trivially_destructible_v<kernels::View>);
  auto* object = static_cast<kernels::View*>(lua_newuserdatauv(L, sizeof(kernels::View), 1));
  new (object) kernels::View(view);
  lua_insert(L, -2);
  lua_setiuservalue(L, -2, 1);
  push_metatable(L);
  lua_setmetatable(L, -2);
}

std::string header_of(const kernels::View& view) {
  std::string header = std::string(dtype_name(view.dtype)) + kernels::text_of(view.shape);
  return header + '\0';
}

std::string dense_bytes(const kernels::View& view) {
  std::string bytes(view.bytes(), '\0');
  cpu::copy(view, kernels::dense(view.dtype, view.shape, bytes.data()));
  return bytes;
}

}  // namespace

const kernels::View* test_tensor(lua_State* L, int index) {
  if (lua_type(L, index) != LUA_TUSERDATA || !lua_getmetatable(L, index)) return nullptr;
  lua_rawgetp(L, LUA_REGISTRYINDEX, &kTensorKey);
  bool same = lua_rawequal(L, -1, -2);
  lua_pop(L, 2);
  return same ? static_cast<const kernels::View*>(lua_touserdata(L, index)) : nullptr;
}

const kernels::View& check_tensor(lua_State* L, int index, const char* what) {
  const kernels::View* view = test_tensor(L, index);
  if (view == nullptr) raise(L, fmt::format("{} is a tensor, not {}", what, describe(L, index)));
  return *view;
}

kernels::View new_tensor(lua_State* L, DType dtype, const kernels::Shape& shape) {
  auto room = kTensorBytesMax / static_cast<int64_t>(dtype_size(dtype));
  for (int dim = 0; dim < shape.rank; dim++) {
    if (shape[dim] == 0) continue;
    room /= shape[dim];
    if (room == 0)
      raise(L, fmt::format("a tensor {} {} is too large: a tensor has at most {} bytes",
                           dtype_name(dtype), kernels::text_of(shape), kTensorBytesMax));
  }
  luaL_checkstack(L, 6, "too many tensors at once");
  auto bytes = static_cast<size_t>(shape.count()) * dtype_size(dtype);
  kernels::View view =
      kernels::dense(dtype, shape, lua_newuserdatauv(L, std::max<size_t>(bytes, 1), 0));
  wrap_storage(L, view);
  return view;
}

void push_view(lua_State* L, const kernels::View& view, int owner) {
  luaL_checkstack(L, 6, "too many tensors at once");
  lua_getiuservalue(L, owner, 1);
  wrap_storage(L, view);
}

kernels::View as_dense(lua_State* L, const kernels::View& view, DType dtype) {
  if (view.dtype == dtype && kernels::is_dense(view)) {
    lua_pushnil(L);
    return view;
  }
  kernels::View out = new_tensor(L, dtype, view.shape);
  cpu::copy(view, out);
  return out;
}

std::string describe(const kernels::View& view) {
  return fmt::format("tensor {} {}", dtype_name(view.dtype), kernels::text_of(view.shape));
}

std::string describe(lua_State* L, int index) {
  if (const kernels::View* view = test_tensor(L, index)) return describe(*view);
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
  raise(L, fmt::format("`{}` is no type of a tensor{}: there are f32, f16, bf16, f64, i64, i32, u8 "
                       "and bool",
                       name, near.empty() ? "" : "; did you mean `" + near + "`?"));
}

int check_dim(lua_State* L, int index, const kernels::View& view, const char* function) {
  int exact = 0;
  lua_Integer dim = lua_tointegerx(L, index, &exact);
  if (!exact || dim < 1 || dim > view.rank())
    raise(L, fmt::format("x:{} takes a dimension of 1..{} of {}, not {}", function, view.rank(),
                         describe(view), exact ? std::to_string(dim) : describe(L, index)));
  return static_cast<int>(dim) - 1;
}

void push_first(lua_State* L, const kernels::View& view) {
  if (view.dtype == DType::boolean) return lua_pushboolean(L, cpu::first_as_integer(view) != 0);
  if (kernels::is_float(view.dtype)) return lua_pushnumber(L, cpu::first_as_double(view));
  lua_pushinteger(L, cpu::first_as_integer(view));
}

DType compute_type(DType dtype) {
  if (dtype == DType::f16 || dtype == DType::bf16) return DType::f32;
  return dtype == DType::boolean ? DType::u8 : dtype;
}

uint64_t next_seed(lua_State* L) {
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

bool is_tensor(lua_State* L, int index) { return test_tensor(L, index) != nullptr; }

void open_tensor(lua_State* L, int flow_table) {
  open_tensor_makers(L, lua_absindex(L, flow_table));
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
  std::shared_ptr<const std::string> data = tensor.data;
  if (data == nullptr) {
    AttemptHost* host = context(L).host;
    if (host == nullptr) raise(L, "the content of a tensor can be read in tasks only");
    auto blob = host->blob(tensor.digest);
    if (!blob.ok()) raise(L, fmt::format("a tensor can't be read: {}", blob.error().message));
    data = *blob;
  }
  kernels::View view = new_tensor(L, tensor.dtype, shape);
  if (data->size() != view.bytes())
    raise(L, fmt::format("the content of {} has {} bytes, not {}", describe(view), data->size(),
                         view.bytes()));
  if (!data->empty()) std::memcpy(view.data, data->data(), data->size());
}

Tensor read_tensor(lua_State* L, int index) {
  const kernels::View& view = check_tensor(L, index, "what is read");
  Tensor tensor;
  tensor.dtype = view.dtype;
  for (int dim = 0; dim < view.rank(); dim++) tensor.shape.push_back(view.shape[dim]);
  tensor.data = std::make_shared<const std::string>(dense_bytes(view));
  tensor.digest = sha256(*tensor.data);
  return tensor;
}

// Type and shape lead, so that tensors of the same bytes and another shape differ in a key.
std::string tensor_bytes(lua_State* L, int index) {
  const kernels::View& view = check_tensor(L, index, "what is read");
  return header_of(view) + dense_bytes(view);
}

void restore_tensor(lua_State* L, int index, const std::string& bytes) {
  const kernels::View& view = check_tensor(L, index, "what is restored");
  std::string header = header_of(view);
  FLOW_CHECK(bytes.starts_with(header) && bytes.size() == header.size() + view.bytes());
  std::string content = bytes.substr(header.size());
  cpu::copy(kernels::dense(view.dtype, view.shape, content.data()), view);
}

}  // namespace flow::lua
