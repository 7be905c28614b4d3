// Functions that catch errors or load code: pcall and coroutines that let the end of an attempt
// through, and text chunks only.
#include "lua/sandbox/sandbox.hpp"

namespace flow::lua {

const char kUnwindKey = 0;

void resume_unwinding(lua_State* L) {
  if (sandbox(L).unwind == Sandbox::Unwind::none) return;
  lua_pushlightuserdata(L, const_cast<char*>(&kUnwindKey));
  lua_error(L);
}

namespace {

// ---- pcall and xpcall

// `extra` values are below the results.
int finish_call(lua_State* L, int status, lua_KContext extra) {
  if (status != LUA_OK && status != LUA_YIELD) {
    resume_unwinding(L);
    lua_pushboolean(L, 0);
    lua_pushvalue(L, -2);
    return 2;
  }
  resume_unwinding(L);
  return lua_gettop(L) - static_cast<int>(extra);
}

int flow_pcall(lua_State* L) {
  luaL_checkany(L, 1);
  lua_pushboolean(L, 1);
  lua_insert(L, 1);
  int status = lua_pcallk(L, lua_gettop(L) - 2, LUA_MULTRET, 0, 0, finish_call);
  return finish_call(L, status, 0);
}

int flow_xpcall(lua_State* L) {
  int count = lua_gettop(L);
  luaL_checktype(L, 2, LUA_TFUNCTION);
  lua_pushboolean(L, 1);
  lua_pushvalue(L, 1);
  lua_rotate(L, 3, 2);
  int status = lua_pcallk(L, count - 2, LUA_MULTRET, 2, 2, finish_call);
  return finish_call(L, status, 2);
}

// ---- coroutines

lua_State* check_coroutine(lua_State* L) {
  lua_State* co = lua_tothread(L, 1);
  luaL_argexpected(L, co, 1, "coroutine");
  return co;
}

// Resumes `co` with `count` arguments from the top; moves the results or the error to L. -1: error.
int resume(lua_State* L, lua_State* co, int count) {
  if (!lua_checkstack(co, count)) {
    lua_pushliteral(L, "too many arguments to resume");
    return -1;
  }
  lua_xmove(L, co, count);
  int results = 0;
  int status = lua_resume(co, L, count, &results);
  resume_unwinding(L);
  if (status != LUA_OK && status != LUA_YIELD) {
    lua_xmove(co, L, 1);
    return -1;
  }
  if (!lua_checkstack(L, results + 1)) {
    lua_pop(co, results);
    lua_pushliteral(L, "too many results to resume");
    return -1;
  }
  lua_xmove(co, L, results);
  return results;
}

int flow_resume(lua_State* L) {
  lua_State* co = check_coroutine(L);
  int results = resume(L, co, lua_gettop(L) - 1);
  if (results < 0) {
    lua_pushboolean(L, 0);
    lua_insert(L, -2);
    return 2;
  }
  lua_pushboolean(L, 1);
  lua_insert(L, -(results + 1));
  return results + 1;
}

int wrapped(lua_State* L) {
  lua_State* co = lua_tothread(L, lua_upvalueindex(1));
  int results = resume(L, co, lua_gettop(L));
  if (results >= 0) return results;
  int status = lua_status(co);
  if (status != LUA_OK && status != LUA_YIELD) {
    lua_resetthread(co);
    lua_settop(co, 0);
    resume_unwinding(L);
  }
  if (status != LUA_ERRMEM && lua_type(L, -1) == LUA_TSTRING) {
    luaL_where(L, 1);
    lua_insert(L, -2);
    lua_concat(L, 2);
  }
  return lua_error(L);
}

int flow_wrap(lua_State* L) {
  luaL_checktype(L, 1, LUA_TFUNCTION);
  lua_State* co = lua_newthread(L);
  lua_pushvalue(L, 1);
  lua_xmove(L, co, 1);
  lua_pushcclosure(L, wrapped, 1);
  return 1;
}

// Lua's own message has a location only for Lua functions.
int flow_yield(lua_State* L) {
  if (lua_isyieldable(L)) return lua_yield(L, lua_gettop(L));
  bool is_main = lua_pushthread(L) == 1;
  raise(L, is_main ? "attempt to yield from outside a coroutine: only a function that "
                     "coroutine.wrap or coroutine.create was given can yield"
                   : "attempt to yield across a C-call boundary: a function that the library calls "
                     "back can't yield");
}

int flow_close(lua_State* L) {  // upvalue 1: Lua's own
  int results = lua_tocfunction(L, lua_upvalueindex(1))(L);
  resume_unwinding(L);
  return results;
}

// ---- code as text

bool replace_environment(lua_State* L, int index) {
  lua_rawgetp(L, LUA_REGISTRYINDEX, &kProxyKey);
  bool same = lua_rawequal(L, index, -1);
  lua_pop(L, 1);
  if (!same) return false;
  lua_rawgetp(L, LUA_REGISTRYINDEX, &kScriptKey);
  lua_replace(L, index);
  return true;
}

int flow_load(lua_State* L) {  // upvalue 1: Lua's own
  int top = lua_gettop(L);
  if (top < 3) lua_settop(L, 3);
  lua_pushliteral(L, "t");
  lua_replace(L, 3);
  if (top >= 4) replace_environment(L, 4);
  return lua_tocfunction(L, lua_upvalueindex(1))(L);
}

void reject_file(lua_State* L, const char* name) {
  if (context(L).phase == ScriptPhase::task) return;
  raise(L, std::string(name) +
               " reads a file, and while the script loads and its graph is built only require "
               "does: put the code in a module next to the script and require it");
}

int flow_loadfile(lua_State* L) {
  reject_file(L, "loadfile");
  const char* path = luaL_checkstring(L, 1);
  bool environment = lua_gettop(L) >= 3;
  if (luaL_loadfilex(L, path, "t") != LUA_OK) {
    lua_pushnil(L);
    lua_insert(L, -2);
    return 2;
  }
  if (environment) {
    replace_environment(L, 3);
    lua_pushvalue(L, 3);
    if (lua_setupvalue(L, -2, 1) == nullptr) lua_pop(L, 1);
  }
  return 1;
}

int flow_dofile(lua_State* L) {
  reject_file(L, "dofile");
  const char* path = luaL_checkstring(L, 1);
  lua_settop(L, 1);
  if (luaL_loadfilex(L, path, "t") != LUA_OK) return lua_error(L);
  lua_call(L, 0, LUA_MULTRET);
  return lua_gettop(L) - 1;
}

}  // namespace

void open_protected_calls(lua_State* L, int globals) {
  lua_getfield(L, globals, "load");
  lua_pushcclosure(L, flow_load, 1);
  lua_setfield(L, globals, "load");
  luaL_Reg functions[] = {{"pcall", flow_pcall},
                          {"xpcall", flow_xpcall},
                          {"loadfile", flow_loadfile},
                          {"dofile", flow_dofile},
                          {nullptr, nullptr}};
  lua_pushvalue(L, globals);
  luaL_setfuncs(L, functions, 0);
  lua_pop(L, 1);
}

void open_coroutines(lua_State* L, int coroutine) {
  coroutine = lua_absindex(L, coroutine);
  luaL_Reg functions[] = {
      {"resume", flow_resume}, {"wrap", flow_wrap}, {"yield", flow_yield}, {nullptr, nullptr}};
  lua_pushvalue(L, coroutine);
  luaL_setfuncs(L, functions, 0);
  lua_pop(L, 1);
  lua_getfield(L, coroutine, "close");
  lua_pushcclosure(L, flow_close, 1);
  lua_setfield(L, coroutine, "close");
}

}  // namespace flow::lua
