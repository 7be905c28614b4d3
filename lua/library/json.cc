// flow.json, and files with one JSON value per line.
#include <fmt/format.h>

#include "engine/value/json.hpp"
#include "lua/state/arguments.hpp"
#include "lua/tensor/tensor.hpp"

namespace flow::lua {
namespace {

constexpr int kIndentMax = 16;

// flow.json.encode(value[, indent])
int encode(lua_State* L) {
  lua_Integer indent = luaL_optinteger(L, 2, -1);
  if (indent < -1 || indent > kIndentMax)
    raise(L,
          fmt::format("flow.json.encode indents by 0..{} spaces, not by {}", kIndentMax, indent));
  auto value = read_value(L, 1, "value", false);
  if (!value.ok()) raise(L, "flow.json.encode: " + value.error().message);
  push_text_value(L, to_plain_json(*value, static_cast<int>(indent)));
  return 1;
}

int decode(lua_State* L) {
  auto value = from_json(check_text_argument(L, 1, "flow.json.decode"));
  if (!value.ok()) raise(L, "flow.json.decode: " + value.error().message);
  push_value(L, *value);
  return 1;
}

bool is_blank(std::string_view line) {
  return line.find_first_not_of(" \t\r") == std::string_view::npos;
}

}  // namespace

// flow.data.jsonl(path): the list of a file's values. Also gzip.
int read_json_lines(lua_State* L) {
  std::string path = check_path(L, 1, "flow.data.jsonl");
  require_task(L, "flow.data.jsonl");
  auto text = read_input(path);
  if (!text.ok()) raise(L, "flow.data.jsonl: " + text.error().message);
  lua_newtable(L);
  std::string_view rest = *text;
  lua_Integer count = 0;
  for (uint64_t number = 1; !rest.empty(); number++) {
    size_t end = rest.find('\n');
    std::string_view line = rest.substr(0, end);
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
    if (is_blank(line)) continue;
    auto value = from_json(line);
    if (!value.ok())
      raise(L, fmt::format("flow.data.jsonl: {}:{}: {}", path, number, value.error().message));
    push_value(L, *value);
    lua_rawseti(L, -2, ++count);
  }
  return 1;
}

// flow.data.write_jsonl(path, list): gzip if the path ends in .gz
int write_json_lines(lua_State* L) {
  std::string path = check_path(L, 1, "flow.data.write_jsonl");
  require_task(L, "flow.data.write_jsonl");
  check_list(L, 2, "flow.data.write_jsonl");
  std::string text;
  for (lua_Integer i = 1; i <= static_cast<lua_Integer>(lua_rawlen(L, 2)); i++) {
    lua_rawgeti(L, 2, i);
    auto value = read_value(L, -1, fmt::format("item {}", i), false);
    if (!value.ok()) raise(L, "flow.data.write_jsonl: " + value.error().message);
    text += to_plain_json(*value) + "\n";
    lua_pop(L, 1);
  }
  write_output(L, path, "flow.data.write_jsonl", "wb", path.ends_with(".gz") ? gzip(text) : text);
  return 0;
}

const luaL_Reg kJsonFunctions[] = {{"encode", encode}, {"decode", decode}, {nullptr, nullptr}};

}  // namespace flow::lua
