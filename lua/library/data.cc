// Opens the libraries under flow, and their shared code: arguments, options, phases.
#include <fmt/format.h>

#include <algorithm>

#include "lua/state/arguments.hpp"
#include "lua/tensor/tensor.hpp"

namespace flow::lua {
namespace {

// ---- flow.data.batches

// Upvalues: the permutation (a tensor), the batch size, the position.
int next_batch(lua_State* L) {
  kernels::View order = check_tensor(L, lua_upvalueindex(1), "the order of batches");
  int64_t size = lua_tointeger(L, lua_upvalueindex(2)), at = lua_tointeger(L, lua_upvalueindex(3));
  int64_t length = std::min(size, order.shape[0] - at);
  if (length <= 0) return 0;
  lua_pushvalue(L, lua_upvalueindex(1));
  push_view(L, kernels::narrow(order, 0, at, length), lua_gettop(L));
  lua_pushinteger(L, at + length);
  lua_replace(L, lua_upvalueindex(3));
  return 1;
}

// for rows in flow.data.batches(#x, 32, seed) do … x[rows] … end: every row once, shuffled.
int batches(lua_State* L) {
  lua_Integer count = luaL_checkinteger(L, 1), size = luaL_checkinteger(L, 2);
  if (count < 0 || size < 1)
    raise(L,
          fmt::format("flow.data.batches takes a number of rows and a batch size of 1 or more, not "
                      "{} and {}",
                      count, size));
  uint64_t seed =
      lua_isnoneornil(L, 3) ? next_seed(L).value : static_cast<uint64_t>(luaL_checkinteger(L, 3));
  kernels::View order = new_tensor(L, DType::i64, kernels::Shape{count});
  auto* rows = order.at<int64_t>();
  tensors::fill_permutation(rows, count, seed);
  for (int64_t i = 0; i < count; i++) rows[i]++;  // Lua counts from 1
  lua_pushinteger(L, size);
  lua_pushinteger(L, 0);
  lua_pushcclosure(L, next_batch, 3);
  return 1;
}

}  // namespace

std::string check_path(lua_State* L, int index, const char* function) {
  if (lua_type(L, index) == LUA_TSTRING) {
    std::string_view path = check_text_argument(L, index, function);
    if (path.find('\0') != std::string_view::npos || path.empty())
      raise(L, fmt::format("{}: the path is empty or has a zero byte in it", function));
    return std::string(path);
  }
  if (is_handle(L, index) || test_file(L, index) != nullptr)
    raise(L,
          fmt::format("{} takes a path, and {} has no path yet: pass it to a task as an argument; "
                      "there it is a path",
                      function,
                      is_handle(L, index) ? describe_handle(L, index) : std::string("this file")));
  raise(L, fmt::format("{} takes a path, not {}", function, describe(L, index)));
}

void require_task(lua_State* L, const char* function) {
  if (context(L).phase == ScriptPhase::task) return wait_durable(L);
  raise(L,
        fmt::format("{} uses the file system, which only tasks may do: while a script loads "
                    "and its graph is built, the graph must not depend on files. Call it in a task",
                    function));
}

void check_options(lua_State* L, int index, const char* function,
                   const std::vector<std::string>& known) {
  if (lua_isnoneornil(L, index)) return;
  if (lua_type(L, index) != LUA_TTABLE)
    raise(L, fmt::format("the options of {} are a table, not {}", function, describe(L, index)));
  lua_pushnil(L);
  while (lua_next(L, index)) {
    std::string key = lua_type(L, -2) == LUA_TSTRING ? lua_tostring(L, -2) : describe(L, -2);
    if (std::find(known.begin(), known.end(), key) == known.end()) {
      std::string near = nearest_name(key, known), all;
      for (const std::string& name : known) all += (all.empty() ? "`" : ", `") + name + "`";
      raise(L,
            fmt::format("{} has no option `{}`; {}", function, key,
                        near.empty() ? "its options are " + all : "did you mean `" + near + "`?"));
    }
    lua_pop(L, 1);
  }
}

std::string_view check_text_argument(lua_State* L, int index, const char* function) {
  if (lua_type(L, index) != LUA_TSTRING)
    raise(L, fmt::format("{} takes a string, not {}", function, describe(L, index)));
  size_t size;
  const char* text = lua_tolstring(L, index, &size);
  return {text, size};
}

void push_text_value(lua_State* L, std::string_view text) {
  lua_pushlstring(L, text.data(), text.size());
}

void check_list(lua_State* L, int index, const char* function) {
  reject_handle(L, index, function);
  if (lua_type(L, index) != LUA_TTABLE)
    raise(L, fmt::format("{} takes a table, not {}", function, describe(L, index)));
}

void open_library(lua_State* L, int flow_table, const char* name, const luaL_Reg* functions) {
  if (lua_getfield(L, flow_table, name) != LUA_TTABLE) {
    lua_pop(L, 1);
    lua_newtable(L);
    lua_pushvalue(L, -1);
    lua_setfield(L, flow_table, name);
  }
  luaL_setfuncs(L, functions, 0);
  lua_pop(L, 1);
}

void open_data(lua_State* L, int flow_table) {
  flow_table = lua_absindex(L, flow_table);
  luaL_Reg own[] = {{"batches", batches},
                    {"jsonl", read_json_lines},
                    {"write_jsonl", write_json_lines},
                    {nullptr, nullptr}};
  open_library(L, flow_table, "data", own);
  open_library(L, flow_table, "data", kRowsFunctions);
  open_library(L, flow_table, "data", kArrayFunctions);
  open_library(L, flow_table, "data", kLoaderFunctions);
  open_library(L, flow_table, "safetensors", kSafetensorsFunctions);
  open_library(L, flow_table, "text", kTextFunctions);
  open_library(L, flow_table, "table", kTableFunctions);
  open_library(L, flow_table, "json", kJsonFunctions);
  open_library(L, flow_table, "fs", kFsFunctions);
  open_library(L, flow_table, "image", kImageFunctions);
  open_operations(L, flow_table);
}

}  // namespace flow::lua
