// The environment of a script: strict globals, libraries that it may extend while it loads but not
// change, and nothing that differs from run to run.
#include "lua/sandbox/sandbox.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace flow::lua {

const char kGlobalsKey = 0, kScriptKey = 0, kProxyKey = 0, kProxiedKey = 0, kLibraryKey = 0,
           kExtensionsKey = 0;

namespace {

// Names that common libraries test to find out the Lua version.
constexpr const char* kProbes[] = {"unpack", "loadstring", "setfenv", "getfenv",
                                   "jit",    "bit",        "bit32",   "module"};

bool is_probe(std::string_view name) {
  return std::find(std::begin(kProbes), std::end(kProbes), name) != std::end(kProbes);
}

std::string_view text_at(lua_State* L, int index) {
  size_t size;
  const char* text = lua_tolstring(L, index, &size);
  return {text, size};
}

std::vector<std::string> keys_of(lua_State* L, int table) {
  std::vector<std::string> names;
  table = lua_absindex(L, table);
  lua_pushnil(L);
  while (lua_next(L, table)) {
    lua_pop(L, 1);
    if (lua_type(L, -1) == LUA_TSTRING) names.emplace_back(text_at(L, -1));
  }
  return names;
}

void push_globals(lua_State* L) { lua_rawgetp(L, LUA_REGISTRYINDEX, &kGlobalsKey); }

std::string advice_for(lua_State* L, std::string_view name) {
  if (name == "flow") return "; write `local flow = require \"flow\"` at the top of the file";
  if (std::string hint = foreign_global_hint(name); !hint.empty()) return hint;
  push_globals(L);
  std::vector<std::string> names = keys_of(L, -1);
  lua_pop(L, 1);
  return did_you_mean(name, names);
}

// ---- globals

// __index of the globals: the name does not exist.
int undefined_global(lua_State* L) {
  if (lua_type(L, 2) != LUA_TSTRING) return 0;
  std::string name(text_at(L, 2));
  if (is_probe(name) || sandbox(L).declared.count(name) > 0) return 0;
  std::string advice = advice_for(L, name);
  if (advice.empty()) advice = "; a variable of a file begins with `local`";
  raise(L, fmt::format("undefined global `{}`{}", name, advice));
}

// Handles a write to a global, or raises. `defines`: the write came through _G.
void set_global(lua_State* L, bool defines) {  // (proxy, name, value)
  Sandbox& box = sandbox(L);
  ScriptPhase phase = context(L).phase;
  if (lua_type(L, 2) != LUA_TSTRING)
    raise(L, fmt::format("a global has a name, not {}", kind_text(L, 2)));
  push_globals(L);
  int globals = lua_gettop(L);
  lua_pushvalue(L, 2);
  bool is_there = lua_rawget(L, globals) != LUA_TNIL;
  std::string name(text_at(L, 2));
  if (is_there && lua_rawequal(L, -1, 3)) return;
  if (box.library_globals.count(name) > 0)
    raise(L, fmt::format("`{}` belongs to the library and can't be replaced: every file of this "
                         "script sees it; use a local of another name",
                         name));
  bool known = is_there || box.declared.count(name) > 0;
  if (!defines && !known)
    raise(L, fmt::format("setting the undefined global `{}`{}; write `local {}`, or "
                         "`_G.{} = …` while the script loads to define a global on purpose",
                         name, did_you_mean(name, {box.declared.begin(), box.declared.end()}), name,
                         name));
  if (phase == ScriptPhase::building)
    raise(L, fmt::format("the pipeline's body sets the global `{}`: no task "
                         "sees that change; pass it to the task as an argument",
                         name));
  if (phase == ScriptPhase::task || box.frozen)
    raise(L, fmt::format("the global `{}` can't be set in a task: globals are read-only once the "
                         "script has loaded; use a local, and return values that other tasks need",
                         name));
  lua_pushvalue(L, 2);
  lua_pushvalue(L, 3);
  lua_rawset(L, globals);
  box.declared.insert(name);
}

int assign_global(lua_State* L) {
  set_global(L, false);
  return 0;
}

int define_global(lua_State* L) {
  set_global(L, true);
  return 0;
}

int read_global(lua_State* L) {
  push_globals(L);
  lua_pushvalue(L, 2);
  lua_rawget(L, -2);
  return 1;
}

// ---- libraries

// From now on the field is part of every task's key, and is restored before every attempt.
void add_library_extension(lua_State* L, const std::string& library, const std::string& field) {
  sandbox(L).library_extensions.emplace(library, field);
  if (lua_rawgetp(L, LUA_REGISTRYINDEX, &kExtensionsKey) == LUA_TNIL) {
    lua_newtable(L);
    lua_pushvalue(L, -1);
    lua_rawsetp(L, LUA_REGISTRYINDEX, &kExtensionsKey);
    lua_replace(L, -2);
  }
  lua_pushvalue(L, lua_upvalueindex(1));
  lua_setfield(L, -2, library.c_str());
  lua_pop(L, 1);
}

// __newindex of a library's proxy. Upvalues: the table behind it, its name.
int write_library(lua_State* L) {
  int proxied = lua_upvalueindex(1);
  lua_pushvalue(L, 2);
  bool is_there = lua_rawget(L, proxied) != LUA_TNIL;
  if (is_there && lua_rawequal(L, -1, 3)) return 0;
  Sandbox& box = sandbox(L);
  std::string_view library = text_at(L, lua_upvalueindex(2));
  if (lua_type(L, 2) != LUA_TSTRING)
    raise(L, fmt::format("a new field of `{}` has a name, not {}", library, kind_text(L, 2)));
  std::string field(text_at(L, 2));
  bool is_metatable = library == "the strings' metatable";
  std::string what = is_metatable ? fmt::format("`{}` of {}", field, library)
                                  : fmt::format("`{}.{}`", library, field);
  if (context(L).phase != ScriptPhase::loading || box.frozen)
    raise(L, fmt::format("{} can't be set: libraries are read-only once the script has loaded; "
                         "use a local",
                         what));
  lua_pushvalue(L, lua_upvalueindex(1));
  lua_pushvalue(L, 2);
  lua_rawget(L, -2);
  bool is_library = false;
  if (is_there && !is_metatable) {
    lua_pushfstring(L, "%s.%s", lua_tostring(L, lua_upvalueindex(2)), field.c_str());
    is_library = box.library_globals.count(lua_tostring(L, -1)) > 0;
  }
  if (is_library)
    raise(L, fmt::format("{} belongs to the library and can't be replaced: every file of this "
                         "script sees it; use a function of your own under another name",
                         what));
  lua_settop(L, 3);
  lua_rawset(L, proxied);
  add_library_extension(L, std::string(library), field);
  return 0;
}

// __index of the table behind `flow` and its parts. Upvalue 1: its name.
int missing_field(lua_State* L) {
  std::string_view library = text_at(L, lua_upvalueindex(1));
  if (lua_type(L, 2) != LUA_TSTRING) return 0;
  std::string_view field = text_at(L, 2);
  if (library == "flow" && push_stdlib_field(L, field)) return 1;
  std::vector<std::string> names = keys_of(L, 1);
  if (library == "flow")
    for (const Module& module : stdlib_modules())
      if (module.name.starts_with("flow.")) names.emplace_back(module.name.substr(5));
  raise(L,
        fmt::format("{} has no `{}`{}", library, field, missing_name_hint(library, field, names)));
}

void guard_fields(lua_State* L, const std::string& name) {  // of the table at the top
  if (lua_getmetatable(L, -1)) {
    lua_pop(L, 1);
    return;
  }
  lua_createtable(L, 0, 1);
  lua_pushlstring(L, name.data(), name.size());
  lua_pushcclosure(L, missing_field, 1);
  lua_setfield(L, -2, "__index");
  lua_setmetatable(L, -2);
}

// __index of the table behind a library that is written in Lua. Upvalue 1: the library's name.
int missing_member(lua_State* L) {
  if (lua_type(L, 2) != LUA_TSTRING) return 0;
  std::string_view library = text_at(L, lua_upvalueindex(1)), field = text_at(L, 2);
  if (field.starts_with("__")) return 0;
  raise(L, fmt::format("{} has no `{}`{}", library, field,
                       missing_name_hint(library, field, keys_of(L, 1))));
}

// Replaces every table among the fields of the table at the top by a proxy.
void proxy_fields(lua_State* L, const std::string& name, bool guarded) {
  int table = lua_gettop(L);
  for (const std::string& field : keys_of(L, table)) {
    lua_getfield(L, table, field.c_str());
    if (lua_type(L, -1) == LUA_TTABLE && !push_proxied_table(L, -1)) {
      std::string full = name + "." + field;
      proxy_fields(L, full, guarded);
      if (guarded) guard_fields(L, full);
      push_read_only_proxy(L, full);
      lua_setfield(L, table, field.c_str());
    }
    lua_settop(L, table);
  }
}

// ---- debug: functions that libraries use in messages

int debug_getinfo(lua_State* L) {  // upvalue 1: Lua's own
  int option = lua_type(L, 1) == LUA_TTHREAD ? 3 : 2;
  if (lua_isnoneornil(L, option)) {
    lua_settop(L, option - 1);
    lua_pushliteral(L, "nSltu");
  } else {
    std::string wanted = luaL_checkstring(L, option), allowed;
    for (char c : wanted)
      if (std::string_view("nSltu").find(c) != std::string_view::npos) allowed += c;
    lua_pushlstring(L, allowed.data(), allowed.size());
    lua_replace(L, option);
  }
  // Lua counts levels from the caller; this function is one more level.
  return lua_tocfunction(L, lua_upvalueindex(1))(L);
}

void open_debug(lua_State* L, int globals) {
  lua_getfield(L, globals, "debug");
  lua_newtable(L);
  lua_getfield(L, -2, "traceback");
  lua_setfield(L, -2, "traceback");
  lua_getfield(L, -2, "getinfo");
  lua_pushcclosure(L, debug_getinfo, 1);
  lua_setfield(L, -2, "getinfo");
  lua_setfield(L, globals, "debug");
  lua_settop(L, globals);
}

// error(message [, level]), as in Lua. An error that the stdlib raises is located at its caller,
// regardless of its depth in the stdlib and of tail calls.
int raise_error(lua_State* L) {
  lua_Integer level = luaL_optinteger(L, 2, 1);
  lua_settop(L, 1);
  if (lua_type(L, 1) != LUA_TSTRING || level <= 0) return lua_error(L);
  lua_Debug frame;
  bool by_stdlib =
      level > 1 && lua_getstack(L, 1, &frame) && lua_getinfo(L, "S", &frame) && is_stdlib(frame);
  if (by_stdlib) raise(L, lua_tostring(L, 1));
  luaL_where(L, static_cast<int>(level));
  lua_insert(L, 1);
  lua_concat(L, 2);
  return lua_error(L);
}

// ---- putting it together

void open_standard(lua_State* L, int globals) {
  constexpr luaL_Reg kLibraries[] = {{"_G", luaopen_base},     {"coroutine", luaopen_coroutine},
                                     {"table", luaopen_table}, {"string", luaopen_string},
                                     {"math", luaopen_math},   {"utf8", luaopen_utf8},
                                     {"io", luaopen_io},       {"os", luaopen_os},
                                     {"debug", luaopen_debug}};
  for (const luaL_Reg& library : kLibraries) {
    lua_pushcfunction(L, library.func);
    lua_pushstring(L, library.name);
    lua_call(L, 1, 1);
    lua_setfield(L, globals, library.name);
  }
  // Lua searches function names for messages here.
  lua_newtable(L);
  for (const luaL_Reg& library : kLibraries) {
    lua_getfield(L, globals, library.name);
    lua_setfield(L, -2, library.name);
  }
  lua_setfield(L, LUA_REGISTRYINDEX, LUA_LOADED_TABLE);
  // luaopen_base filled the first globals table.
  lua_rawgeti(L, LUA_REGISTRYINDEX, LUA_RIDX_GLOBALS);
  lua_pushnil(L);
  while (lua_next(L, -2)) {
    lua_pushvalue(L, -2);
    lua_insert(L, -2);
    lua_rawset(L, globals);
  }
  lua_pushcfunction(L, raise_error);
  lua_setfield(L, globals, "error");
  lua_settop(L, globals);
}

// A proxy of the globals that reads with `index` and writes with `write`, stored under `key`.
void open_globals_proxy(lua_State* L, int globals, const void* key, lua_CFunction index,
                        lua_CFunction write) {
  lua_newtable(L);
  lua_newtable(L);
  if (index == nullptr) {
    lua_pushvalue(L, globals);
  } else {
    lua_pushcfunction(L, index);
  }
  lua_setfield(L, -2, "__index");
  lua_pushcfunction(L, write);
  lua_setfield(L, -2, "__newindex");
  lua_pushboolean(L, 0);
  lua_setfield(L, -2, "__metatable");
  lua_pushvalue(L, globals);
  lua_rawsetp(L, -2, &kProxiedKey);
  lua_setmetatable(L, -2);
  lua_rawsetp(L, LUA_REGISTRYINDEX, key);
}

void open_string_metatable(lua_State* L, int globals) {
  lua_pushliteral(L, "");
  lua_getmetatable(L, -1);
  lua_getfield(L, globals, "string");
  lua_setfield(L, -2, "__index");
  lua_settop(L, globals);
}

}  // namespace

Sandbox& sandbox(lua_State* L) { return *context(L).sandbox; }

bool push_proxied_table(lua_State* L, int index) {
  if (lua_type(L, index) != LUA_TTABLE || !lua_getmetatable(L, index)) return false;
  if (lua_rawgetp(L, -1, &kProxiedKey) == LUA_TNIL) {
    lua_pop(L, 2);
    return false;
  }
  lua_remove(L, -2);
  return true;
}

void push_read_only_proxy(lua_State* L, const std::string& name) {
  int proxied = lua_gettop(L);
  lua_newtable(L);
  lua_createtable(L, 0, 6);
  lua_pushvalue(L, proxied);
  lua_setfield(L, -2, "__index");
  lua_pushvalue(L, proxied);
  lua_pushlstring(L, name.data(), name.size());
  lua_pushcclosure(L, write_library, 2);
  lua_setfield(L, -2, "__newindex");
  lua_pushboolean(L, 0);
  lua_setfield(L, -2, "__metatable");
  if (luaL_getmetafield(L, proxied, "__call") != LUA_TNIL) lua_setfield(L, -2, "__call");
  lua_pushvalue(L, proxied);
  lua_rawsetp(L, -2, &kProxiedKey);
  lua_pushlstring(L, name.data(), name.size());
  lua_rawsetp(L, -2, &kLibraryKey);
  lua_setmetatable(L, -2);
  lua_replace(L, proxied);
}

void name_library(lua_State* L, int index, const std::string& name) {
  index = lua_absindex(L, index);
  int type = lua_type(L, index);
  bool named = type == LUA_TTABLE || type == LUA_TFUNCTION ||
               (type == LUA_TUSERDATA && test_task(L, index) == nullptr);
  if (!named) return;
  luaL_checkstack(L, 8, "library");
  Sandbox& box = sandbox(L);
  box.library_globals.insert(name);
  bool is_new = box.library_names.emplace(lua_topointer(L, index), name).second;
  if (!is_new) return;
  int top = lua_gettop(L);
  if (type == LUA_TFUNCTION && !lua_iscfunction(L, index)) {
    // Values that a module of the stdlib keeps local, such as its classes, belong to the library
    // too.
    for (int i = 1; const char* upvalue = lua_getupvalue(L, index, i); i++) {
      if (!is_globals(L, -1)) name_library(L, lua_gettop(L), name + "^" + upvalue);
      lua_settop(L, top);
    }
  }
  if (type != LUA_TTABLE) return;
  if (push_proxied_table(L, index)) {
    box.library_names.emplace(lua_topointer(L, -1), name);
  } else {
    lua_pushvalue(L, index);
  }
  int table = lua_gettop(L);
  std::vector<std::string> fields = keys_of(L, table);
  std::sort(fields.begin(), fields.end());
  for (const std::string& field : fields) {
    lua_pushlstring(L, field.data(), field.size());
    lua_rawget(L, table);
    std::string full = name.empty() ? field : name + "." + field;
    box.library_globals.insert(full);
    name_library(L, lua_gettop(L), full);
    lua_settop(L, table);
  }
  lua_settop(L, top);
}

std::string library_name(lua_State* L, int index) {
  const auto& names = sandbox(L).library_names;
  auto found = names.find(lua_topointer(L, index));
  return found == names.end() ? "" : found->second;
}

void open_sandbox(lua_State* L) {
  lua_newtable(L);
  int globals = lua_gettop(L);
  lua_pushvalue(L, globals);
  lua_rawsetp(L, LUA_REGISTRYINDEX, &kGlobalsKey);
  open_standard(L, globals);
  open_order(L, globals);
  open_text(L, globals);
  open_raw(L, globals);
  open_protected_calls(L, globals);
  open_io_os(L, globals);
  lua_getfield(L, globals, "table");
  open_sort(L, -1);
  lua_getfield(L, globals, "string");
  open_format(L, -1);
  lua_getfield(L, globals, "coroutine");
  open_coroutines(L, -1);
  lua_settop(L, globals);
  open_debug(L, globals);
  open_modules(L, globals);

  lua_newtable(L);
  open_graph(L, lua_gettop(L));
  open_tensor(L, lua_gettop(L));
  open_data(L, lua_gettop(L));
  open_kernels(L, lua_gettop(L));
  proxy_fields(L, "flow", true);
  guard_fields(L, "flow");
  push_read_only_proxy(L, "flow");
  int flow = lua_gettop(L);
  lua_rawgetp(L, LUA_REGISTRYINDEX, &kLoadedKey);
  lua_pushvalue(L, flow);
  lua_setfield(L, -2, "flow");
  lua_settop(L, flow);
  name_library(L, flow, "flow");
  lua_settop(L, globals);

  // `_G` in the globals is the proxy, so nothing else refers to them.
  lua_pushnil(L);
  lua_setfield(L, globals, "_G");
  for (const std::string& name : keys_of(L, globals)) {
    lua_getfield(L, globals, name.c_str());
    if (lua_type(L, -1) == LUA_TTABLE) {
      proxy_fields(L, name, false);
      push_read_only_proxy(L, name);
      lua_pushvalue(L, -1);
      lua_setfield(L, globals, name.c_str());
    }
    name_library(L, lua_gettop(L), name);
    lua_settop(L, globals);
    sandbox(L).library_globals.insert(name);
  }
  open_string_metatable(L, globals);
  open_globals_proxy(L, globals, &kScriptKey, nullptr, assign_global);
  open_globals_proxy(L, globals, &kProxyKey, read_global, define_global);
  lua_rawgetp(L, LUA_REGISTRYINDEX, &kProxyKey);
  lua_setfield(L, globals, "_G");
  sandbox(L).library_globals.insert("_G");
  lua_rawgetp(L, LUA_REGISTRYINDEX, &kLoadedKey);
  for (const char* name :
       {"_G", "coroutine", "debug", "io", "math", "os", "package", "string", "table", "utf8"}) {
    lua_getfield(L, globals, name);
    lua_setfield(L, -2, name);
  }
  lua_newtable(L);
  lua_pushcfunction(L, undefined_global);
  lua_setfield(L, -2, "__index");
  lua_setmetatable(L, globals);
  lua_rawgetp(L, LUA_REGISTRYINDEX, &kScriptKey);
  lua_rawseti(L, LUA_REGISTRYINDEX, LUA_RIDX_GLOBALS);
  lua_settop(L, globals - 1);
}

void reject_missing_names(lua_State* L, const std::string& library) {
  if (lua_getmetatable(L, -1) != 0) {
    lua_pop(L, 1);
    return;
  }
  lua_createtable(L, 0, 1);
  lua_pushlstring(L, library.data(), library.size());
  lua_pushcclosure(L, missing_member, 1);
  lua_setfield(L, -2, "__index");
  lua_setmetatable(L, -2);
}

void freeze_libraries(lua_State* L) { sandbox(L).frozen = true; }

}  // namespace flow::lua
