// rawget, rawset, rawlen, getmetatable and setmetatable, which access the table behind a library's
// proxy.
#include "lua/sandbox/sandbox.hpp"

namespace flow::lua {

namespace {

int flow_rawget(lua_State* L) {
  luaL_checktype(L, 1, LUA_TTABLE);
  luaL_checkany(L, 2);
  lua_settop(L, 2);
  if (push_proxied_table(L, 1)) lua_replace(L, 1);
  lua_rawget(L, 1);
  return 1;
}

int flow_rawset(lua_State* L) {
  luaL_checktype(L, 1, LUA_TTABLE);
  luaL_checkany(L, 2);
  luaL_checkany(L, 3);
  lua_settop(L, 3);
  if (push_proxied_table(L, 1)) {
    lua_pop(L, 1);
    lua_settable(L, 1);  // the proxy checks it
  } else {
    lua_rawset(L, 1);
  }
  lua_settop(L, 1);
  return 1;
}

int flow_rawlen(lua_State* L) {
  int type = lua_type(L, 1);
  luaL_argexpected(L, type == LUA_TTABLE || type == LUA_TSTRING, 1, "table or string");
  lua_pushinteger(L, static_cast<lua_Integer>(lua_rawlen(L, 1)));
  return 1;
}

int flow_getmetatable(lua_State* L) {
  luaL_checkany(L, 1);
  if (lua_type(L, 1) == LUA_TSTRING) {
    lua_pushvalue(L, lua_upvalueindex(1));  // a proxy, which is read-only after the load
    return 1;
  }
  if (push_proxied_table(L, 1) || !lua_getmetatable(L, 1)) {
    lua_pushnil(L);
    return 1;
  }
  if (luaL_getmetafield(L, 1, "__metatable") != LUA_TNIL) return 1;
  // A class of the stdlib is shared by every attempt, so it is not returned.
  if (!sandbox(L).library_names.contains(lua_topointer(L, -1))) return 1;
  lua_pushboolean(L, 0);
  return 1;
}

int flow_setmetatable(lua_State* L) {
  int type = lua_type(L, 2);
  luaL_checktype(L, 1, LUA_TTABLE);
  luaL_argexpected(L, type == LUA_TNIL || type == LUA_TTABLE, 2, "nil or table");
  lua_settop(L, 2);
  if (lua_getmetatable(L, 1)) {
    lua_pop(L, 1);
    if (push_proxied_table(L, 1))
      raise(L,
            "setmetatable of a library or of the globals: they are shared by the whole script and "
            "keep theirs; globals are strict already");
    if (luaL_getmetafield(L, 1, "__metatable") != LUA_TNIL)
      raise(L, "cannot change a protected metatable");
  }
  // Finalizers run when the collector decides, and attempts must not depend on that: none runs.
  bool finalizer = false;
  if (type == LUA_TTABLE) {
    lua_pushliteral(L, "__gc");
    finalizer = lua_rawget(L, 2) != LUA_TNIL;
    if (finalizer) {
      lua_pushliteral(L, "__gc");
      lua_pushnil(L);
      lua_rawset(L, 2);
    }
  }
  lua_pushvalue(L, 2);
  lua_setmetatable(L, 1);
  if (finalizer) {
    lua_pushliteral(L, "__gc");
    lua_pushvalue(L, 3);
    lua_rawset(L, 2);
  }
  lua_settop(L, 1);
  return 1;
}

}  // namespace

void open_raw(lua_State* L, int globals) {
  luaL_Reg functions[] = {{"rawget", flow_rawget},
                          {"rawset", flow_rawset},
                          {"rawlen", flow_rawlen},
                          {"setmetatable", flow_setmetatable},
                          {nullptr, nullptr}};
  lua_pushvalue(L, globals);
  luaL_setfuncs(L, functions, 0);
  lua_pop(L, 1);
  // The strings' metatable has a proxy of its own, writable while the script loads.
  lua_pushliteral(L, "");
  lua_getmetatable(L, -1);
  lua_remove(L, -2);
  push_read_only_proxy(L, "the strings' metatable");
  lua_pushcclosure(L, flow_getmetatable, 1);
  lua_setfield(L, globals, "getmetatable");
}

}  // namespace flow::lua
