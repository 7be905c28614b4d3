// flow.data.idx, npy, raw and their writers: arrays in files as tensors. A file whose layout equals
// a tensor's is mapped, and read on access.
#include <fmt/format.h>

#include <cstdio>

#include "engine/base/files.hpp"
#include "engine/blobs/mapped_file.hpp"
#include "lua/library/arrays.hpp"
#include "lua/state/arguments.hpp"
#include "lua/tensor/tensor_bytes.hpp"

namespace flow::lua {
namespace {

kernels::Shape shape_of(const std::vector<int64_t>& sizes) {
  kernels::Shape shape;
  for (int64_t size : sizes) shape.push(size);
  return shape;
}

int push_array(lua_State* L, Array array) {
  auto bytes = std::make_shared<const std::string>(std::move(array.bytes));
  push_bytes(L, array.dtype, shape_of(array.shape), bytes);
  return 1;
}

[[noreturn]] void fail(lua_State* L, const char* function, const std::string& path,
                       const Error& error) {
  raise(L, fmt::format("{}: {}: {}", function, path, error.message));
}

int read_idx(lua_State* L) {
  constexpr const char* kFunction = "flow.data.idx";
  std::string path = check_path(L, 1, kFunction);
  require_task(L, kFunction);
  auto text = read_input(path);
  if (!text.ok()) raise(L, fmt::format("{}: {}", kFunction, text.error().message));
  auto array = parse_idx(*text);
  if (!array.ok()) fail(L, kFunction, path, array.error());
  return push_array(L, std::move(*array));
}

int read_npy(lua_State* L) {
  constexpr const char* kFunction = "flow.data.npy";
  std::string path = check_path(L, 1, kFunction);
  require_task(L, kFunction);
  auto content = map_file(path);
  if (!content.ok()) raise(L, fmt::format("{}: {}", kFunction, content.error().message));
  if ((*content)->starts_with("\x1f\x8b")) {
    auto unpacked = read_input(path);
    if (!unpacked.ok()) raise(L, fmt::format("{}: {}", kFunction, unpacked.error().message));
    content = Bytes(std::make_shared<const std::string>(std::move(*unpacked)));
  }
  auto place = place_npy(**content);
  if (!place.ok()) fail(L, kFunction, path, place.error());
  if (*place) {
    push_bytes(L, (*place)->dtype, shape_of((*place)->shape),
               content->part((*place)->begin, (*place)->size));
    return 1;
  }
  auto array = parse_npy(**content);
  if (!array.ok()) fail(L, kFunction, path, array.error());
  return push_array(L, std::move(*array));
}

void write_tensor(lua_State* L, const char* function, const std::string& path,
                  const std::string& head) {
  Bytes bytes = shared_bytes(check_object(L, 2, function));
  Status written = replace_file(path, {head, *bytes}, false);
  if (!written.ok()) raise(L, fmt::format("{}: {}", function, written.error().message));
}

// flow.data.write_npy(path, x)
int write_npy(lua_State* L) {
  constexpr const char* kFunction = "flow.data.write_npy";
  std::string path = check_path(L, 1, kFunction);
  require_task(L, kFunction);
  const tensors::Tensor& x = check_object(L, 2, "the second argument of flow.data.write_npy");
  if (x.dtype() == DType::bf16)
    raise(L, "flow.data.write_npy: NumPy has no bf16: write x:to(\"f32\")");
  std::vector<int64_t> sizes;
  for (int dim = 0; dim < x.rank(); dim++) sizes.push_back(x.size(dim));
  write_tensor(L, kFunction, path, npy_header(x.dtype(), sizes));
  return 0;
}

// ---- raw: elements one after the other, little-endian, without a header

int read_raw(lua_State* L) {
  constexpr const char* kFunction = "flow.data.raw";
  std::string path = check_path(L, 1, kFunction);
  require_task(L, kFunction);
  DType dtype = check_dtype(L, 2);
  if (lua_type(L, 3) != LUA_TTABLE)
    raise(L,
          fmt::format("{} takes a shape such as {{ -1, 28 }}, not {}", kFunction, describe(L, 3)));
  kernels::Shape shape = check_shape(L, 3, kFunction, true);
  lua_Integer offset = luaL_optinteger(L, 4, 0);
  auto content = map_file(path);
  if (!content.ok()) raise(L, fmt::format("{}: {}", kFunction, content.error().message));
  if (offset < 0 || static_cast<size_t>(offset) > (*content)->size())
    raise(L, fmt::format("{}: {}: the offset {} is outside the file, which has {} bytes", kFunction,
                         path, offset, (*content)->size()));
  size_t room = ((*content)->size() - static_cast<size_t>(offset)) / dtype_size(dtype);
  int open = -1;
  uint64_t count = 1;  // without the open size; more than `room` if it is too large
  for (int dim = 0; dim < shape.rank; dim++) {
    if (shape[dim] < 0) {
      if (open >= 0) raise(L, fmt::format("{}: one size of a shape may be -1", kFunction));
      open = dim;
    } else if (shape[dim] > 0 && count > room / static_cast<uint64_t>(shape[dim])) {
      count = uint64_t{room} + 1;
    } else {
      count *= static_cast<uint64_t>(shape[dim]);
    }
  }
  if (open >= 0) shape[open] = count == 0 ? 0 : static_cast<int64_t>(room / count);
  uint64_t elements = open < 0 ? count : count * static_cast<uint64_t>(shape[open]);
  if (count > room)
    raise(L, fmt::format("{}: {}: {} elements of {} from byte {} on are requested, and the file "
                         "has {} bytes",
                         kFunction, path, kernels::text_of(shape), dtype_name(dtype), offset,
                         (*content)->size()));
  size_t rest = (*content)->size() - static_cast<size_t>(offset);
  if (open >= 0 && elements * dtype_size(dtype) != rest)
    raise(L,
          fmt::format(
              "{}: {}: the {} bytes from byte {} on are not a multiple of {} bytes: the size "
              "of {} times {}, the product of the shape's other sizes",
              kFunction, path, rest, offset, count * dtype_size(dtype), dtype_name(dtype), count));
  push_bytes(L, dtype, shape,
             content->part(static_cast<size_t>(offset),
                           static_cast<size_t>(elements) * dtype_size(dtype)));
  return 1;
}

// flow.data.write_raw(path, x)
int write_raw(lua_State* L) {
  constexpr const char* kFunction = "flow.data.write_raw";
  std::string path = check_path(L, 1, kFunction);
  require_task(L, kFunction);
  check_object(L, 2, "the second argument of flow.data.write_raw");
  write_tensor(L, kFunction, path, "");
  return 0;
}

}  // namespace

const luaL_Reg kArrayFunctions[] = {{"idx", read_idx},
                                    {"npy", protected_call<read_npy>},
                                    {"write_npy", protected_call<write_npy>},
                                    {"raw", protected_call<read_raw>},
                                    {"write_raw", protected_call<write_raw>},
                                    {nullptr, nullptr}};

}  // namespace flow::lua
