// The text of printed objects: each has a number, the same in every run, where Lua shows an
// address.
#include <cstdio>
#include <cstring>

#include "lua/sandbox/sandbox.hpp"

namespace flow::lua {

const char kNumbersKey = 0;

namespace {

lua_Integer object_number(lua_State* L, int index) {
  index = lua_absindex(L, index);
  lua_rawgetp(L, LUA_REGISTRYINDEX, &kNumbersKey);
  lua_pushvalue(L, index);
  if (lua_rawget(L, -2) == LUA_TNUMBER) {
    lua_Integer number = lua_tointeger(L, -1);
    lua_pop(L, 2);
    return number;
  }
  lua_pop(L, 1);
  lua_Integer number = ++sandbox(L).printed;
  lua_pushvalue(L, index);
  lua_pushinteger(L, number);
  lua_rawset(L, -3);
  lua_pop(L, 1);
  return number;
}

void push_number_text(lua_State* L, lua_Integer number) {
  char text[32];
  snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(number));
  lua_pushstring(L, text);
}

bool is_object(lua_State* L, int index) {
  switch (lua_type(L, index)) {
    case LUA_TTABLE:
    case LUA_TFUNCTION:
    case LUA_TUSERDATA:
    case LUA_TTHREAD:
    case LUA_TLIGHTUSERDATA:
      return true;
    default:
      return false;
  }
}

int flow_tostring(lua_State* L) {
  luaL_checkany(L, 1);
  if (lua_type(L, 1) == LUA_TUSERDATA) reject_handle(L, 1, "tostring");
  push_text(L, 1);
  return 1;
}

int flow_print(lua_State* L) {
  int count = lua_gettop(L);
  std::string line;
  for (int i = 1; i <= count; i++) {
    if (i > 1) line += '\t';
    if (lua_type(L, i) == LUA_TUSERDATA && is_handle(L, i)) {
      line += describe_handle(L, i);
      continue;
    }
    push_text(L, i);
    size_t size;
    const char* text = lua_tolstring(L, -1, &size);
    line.append(text, size);
    lua_pop(L, 1);
  }
  line += '\n';
  write_text(L, line);
  return 0;
}

// ---- string.format: %s and %p of objects

bool next_directive(const char*& at, const char* end, const char*& start) {
  while (at < end) {
    if (*at++ != '%') continue;
    if (at < end && *at == '%') {
      at++;
      continue;
    }
    start = at - 1;
    while (at < end && std::strchr("-+ #0123456789.", *at) != nullptr && *at != '\0') at++;
    return at < end;
  }
  return false;
}

int flow_format(lua_State* L) {  // upvalue 1: Lua's own
  size_t size;
  const char* format = luaL_checklstring(L, 1, &size);
  int top = lua_gettop(L);
  std::string changed;
  const char *at = format, *end = format + size, *copied = format, *start = nullptr;
  for (int argument = 2; next_directive(at, end, start); argument++, at++) {
    if (argument > top) break;
    if (*at == 's' && is_object(L, argument)) {
      if (lua_type(L, argument) == LUA_TUSERDATA) reject_handle(L, argument, "%s");
      push_text(L, argument);
      lua_replace(L, argument);
    } else if (*at == 'p' && is_object(L, argument)) {
      push_number_text(L, object_number(L, argument));
      lua_replace(L, argument);
      changed.append(copied, static_cast<size_t>(at - copied)).append("s");
      copied = at + 1;
    } else if (*at == 'p' && lua_type(L, argument) == LUA_TSTRING) {
      raise(L, "string.format: %p of a string is its address, which differs in every run");
    }
  }
  if (copied != format) {
    changed.append(copied, static_cast<size_t>(end - copied));
    lua_pushlstring(L, changed.data(), changed.size());
    lua_replace(L, 1);
  }
  return lua_tocfunction(L, lua_upvalueindex(1))(L);
}

}  // namespace

void push_text(lua_State* L, int index) {
  index = lua_absindex(L, index);
  if (!is_object(L, index)) {
    luaL_tolstring(L, index, nullptr);
    return;
  }
  if (luaL_callmeta(L, index, "__tostring")) {
    if (!lua_isstring(L, -1)) luaL_error(L, "'__tostring' must return a string");
    return;
  }
  int index_of_text = lua_gettop(L) + 1;
  int type = luaL_getmetafield(L, index, "__name");
  const char* kind = type == LUA_TSTRING ? lua_tostring(L, -1) : luaL_typename(L, index);
  lua_Integer number = object_number(L, index);
  push_number_text(L, number);
  lua_pushfstring(L, "%s: %s", kind, lua_tostring(L, -1));
  lua_replace(L, index_of_text);
  lua_settop(L, index_of_text);
}

void push_formatted(lua_State* L, int first) {
  int count = lua_gettop(L) - first + 1;
  if (count == 1 && lua_type(L, first) != LUA_TSTRING) return push_text(L, first);
  lua_getfield(L, LUA_REGISTRYINDEX, "flow.format");
  lua_insert(L, first);
  lua_call(L, count, 1);
}

void forget_printed(lua_State* L) {
  Sandbox& box = sandbox(L);
  if (box.printed == box.printed_by_load) return;
  lua_rawgetp(L, LUA_REGISTRYINDEX, &kNumbersKey);
  lua_pushnil(L);
  while (lua_next(L, -2)) {
    bool is_new = lua_tointeger(L, -1) > box.printed_by_load;
    lua_pop(L, 1);
    if (!is_new) continue;
    lua_pushvalue(L, -1);
    lua_pushnil(L);
    lua_rawset(L, -4);
  }
  lua_pop(L, 1);
  box.printed = box.printed_by_load;
}

void open_text(lua_State* L, int globals) {
  push_weak_table(L);
  lua_rawsetp(L, LUA_REGISTRYINDEX, &kNumbersKey);
  lua_pushcfunction(L, flow_tostring);
  lua_setfield(L, globals, "tostring");
  lua_pushcfunction(L, flow_print);
  lua_setfield(L, globals, "print");
}

void open_format(lua_State* L, int string_library) {
  string_library = lua_absindex(L, string_library);
  lua_getfield(L, string_library, "format");
  lua_pushcclosure(L, flow_format, 1);
  lua_pushvalue(L, -1);
  lua_setfield(L, LUA_REGISTRYINDEX, "flow.format");
  lua_setfield(L, string_library, "format");
}

}  // namespace flow::lua
