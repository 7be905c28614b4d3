// flow.data.idx, npy and write_npy: arrays of files as tensors.
#include <fmt/format.h>

#include <cstdio>

#include "lua/lib.hpp"
#include "lua/lib_arrays.hpp"
#include "lua/tensor.hpp"

namespace flow::lua {
namespace {

int read_array(lua_State* L, const char* function, Result<Array> (*parse)(std::string_view)) {
  std::string path = check_path(L, 1, function);
  require_task(L, function);
  auto text = read_input(path);
  if (!text.ok()) raise(L, fmt::format("{}: {}", function, text.error().message));
  auto array = parse(*text);
  if (!array.ok()) raise(L, fmt::format("{}: {}: {}", function, path, array.error().message));
  Tensor tensor;
  tensor.dtype = array->dtype;
  tensor.shape = array->shape;
  tensor.data = std::make_shared<const std::string>(std::move(array->bytes));
  push_tensor(L, tensor);
  return 1;
}

int read_idx(lua_State* L) { return read_array(L, "flow.data.idx", parse_idx); }
int read_npy(lua_State* L) { return read_array(L, "flow.data.npy", parse_npy); }

// flow.data.write_npy(path, x)
int write_npy(lua_State* L) {
  std::string path = check_path(L, 1, "flow.data.write_npy");
  require_task(L, "flow.data.write_npy");
  if (check_tensor(L, 2, "the second argument of flow.data.write_npy").dtype == DType::bf16)
    raise(L, "flow.data.write_npy: NumPy has no bf16: write x:to(\"f32\")");
  Tensor tensor = read_tensor(L, 2);
  write_output(L, path, "flow.data.write_npy", "wb",
               npy_header(tensor.dtype, tensor.shape) + *tensor.data);
  return 0;
}

}  // namespace

const luaL_Reg kArrayFunctions[] = {
    {"idx", read_idx}, {"npy", read_npy}, {"write_npy", write_npy}, {nullptr, nullptr}};

}  // namespace flow::lua
