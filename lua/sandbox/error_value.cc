// The text of an error whose value is not a string: `error({ code = 3 })` shows {"code":3}.
#include "lua/sandbox/sandbox.hpp"

namespace flow::lua {

namespace {

constexpr int kDepthShown = 4;
constexpr size_t kEntriesShown = 8;   // of one table
constexpr size_t kStringShown = 100;  // bytes of one string
constexpr size_t kValueShown = 400;   // bytes in total

bool is_plain_table(lua_State* L, int index) {
  if (lua_type(L, index) != LUA_TTABLE) return false;
  if (luaL_getmetafield(L, index, "__tostring") == LUA_TNIL) return true;
  lua_pop(L, 1);
  return false;
}

std::string string_at(lua_State* L, int index) {
  size_t size = 0;
  const char* text = lua_tolstring(L, index, &size);
  bool is_cut = size > kStringShown;
  std::string json = to_json(Value(std::string(text, is_cut ? kStringShown : size)));
  return is_cut ? json + "…" : json;
}

void append_value(lua_State* L, int index, int depth, std::string& text);

void append_table(lua_State* L, int index, int depth, std::string& text) {
  size_t count = push_ordered_keys(L, index);
  int keys = lua_gettop(L);
  bool is_list = true;
  for (size_t i = 1; i <= count && is_list; i++) {
    lua_rawgeti(L, keys, static_cast<lua_Integer>(i));
    is_list = lua_isinteger(L, -1) && lua_tointeger(L, -1) == static_cast<lua_Integer>(i);
    lua_pop(L, 1);
  }
  text += is_list && count > 0 ? '[' : '{';
  for (size_t i = 1; i <= count; i++) {
    if (i > 1) text += ',';
    if (i > kEntriesShown || depth == 0 || text.size() > kValueShown) {
      text += "…";
      break;
    }
    lua_rawgeti(L, keys, static_cast<lua_Integer>(i));
    if (!is_list) {
      append_value(L, lua_gettop(L), 0, text);
      text += ':';
    }
    lua_rawget(L, index);
    append_value(L, lua_gettop(L), depth - 1, text);
    lua_settop(L, keys);
  }
  text += is_list && count > 0 ? ']' : '}';
  lua_settop(L, keys - 1);
}

void append_value(lua_State* L, int index, int depth, std::string& text) {
  if (lua_type(L, index) == LUA_TSTRING) {
    text += string_at(L, index);
  } else if (is_plain_table(L, index)) {
    append_table(L, index, depth, text);
  } else if (lua_isnil(L, index) || lua_isfunction(L, index)) {
    text += luaL_typename(L, index);
  } else {
    push_text(L, index);
    text += lua_tostring(L, -1);
    lua_pop(L, 1);
  }
}

}  // namespace

void push_error_text(lua_State* L, int index) {
  index = lua_absindex(L, index);
  if (is_plain_table(L, index)) {
    lua_pushliteral(L, "message");
    if (lua_rawget(L, index) == LUA_TSTRING) return;
    lua_pop(L, 1);
  } else if (luaL_getmetafield(L, index, "__tostring") != LUA_TNIL) {
    lua_pop(L, 1);
    return push_text(L, index);
  }
  luaL_checkstack(L, 8 * kDepthShown, "an error's value");
  std::string text = text_of(current_location(L));  // error adds it to strings only
  if (lua_isnil(L, index)) {
    text += "error without a message (nil)";
  } else {
    text += "error ";
    append_value(L, index, kDepthShown, text);
  }
  lua_pushlstring(L, text.data(), text.size());
}

}  // namespace flow::lua
