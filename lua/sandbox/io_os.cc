// Functions with effects outside the script: io and os in tasks only, output to the attempt's log,
// random numbers from the seed.
#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <utility>

#include "lua/sandbox/sandbox.hpp"

namespace flow::lua {

namespace {

constexpr size_t kLineMax = 1 << 20;  // bytes without a newline before a line is cut

// ---- output

// io.stdout and io.stderr: tables with a file's methods whose text goes to the log.
int log_write(lua_State* L) {
  int count = lua_gettop(L);
  for (int i = 2; i <= count; i++) {
    size_t size;
    const char* text = luaL_checklstring(L, i, &size);
    write_text(L, {text, size});
  }
  lua_settop(L, 1);
  return 1;
}

int log_return(lua_State* L) {
  lua_settop(L, 1);
  return 1;
}

int log_close(lua_State* L) {
  lua_pushnil(L);
  lua_pushliteral(L, "the log can't be closed");
  return 2;
}

void push_log_file(lua_State* L, const char* name) {
  lua_newtable(L);
  luaL_Reg methods[] = {{"write", log_write}, {"flush", log_return}, {"setvbuf", log_return},
                        {"seek", log_close},  {"read", log_close},   {"lines", log_close},
                        {"close", log_close}, {nullptr, nullptr}};
  luaL_setfuncs(L, methods, 0);
  push_read_only_proxy(L, name);
}

// ---- io

const char kOutputKey = 0;  // the file that io.output selected, or nil: the log

bool reads_clock(std::string_view name) {
  return name == "os.time" || name == "os.clock" || name == "os.date";
}

void reject_outside_task(lua_State* L, const char* name) {
  if (context(L).phase == ScriptPhase::task) return;
  std::string_view what = name;
  std::string why, advice;
  if (reads_clock(what)) {
    why = "the clock cannot be read";
    advice = "call it inside a task, or pass the time as a parameter";
  } else if (what == "os.getenv") {
    why = "the environment cannot be read";
    advice = "call it inside a task, or use a parameter or env = { NAME = flow.env(\"NAME\") }";
  } else if (what == "os.execute" || what == "io.popen") {
    why = "no program can be started";
    advice = "use flow.shell, or call it inside a task";
  } else if (what == "os.setlocale") {
    why = "the locale stays as it is";
    advice = "leave the call out";
  } else {
    why = "files cannot be accessed";
    advice = "call it inside a task, and name the file by flow.param.path or flow.file";
  }
  raise(L, fmt::format("{}: {} while the script loads and its graph is built, so that the same "
                       "script always gives the same graph; {}",
                       name, why, advice));
}

// A library function that only tasks may call. Upvalues: Lua's own function, its name.
int in_task_only(lua_State* L) {
  const char* name = lua_tostring(L, lua_upvalueindex(2));
  reject_outside_task(L, name);
  bool is_io = name[0] == 'i';
  if (!reads_clock(name)) wait_durable(L);
  if (is_io) sandbox(L).opens_files = true;
  bool is_outside = is_io || std::string_view(name) == "os.execute";
  if (is_outside) reach_outside(L);
  return lua_tocfunction(L, lua_upvalueindex(1))(L);
}

void guard_function(lua_State* L, int library, const char* name, const char* full_name) {
  lua_getfield(L, library, name);
  lua_pushstring(L, full_name);
  lua_pushcclosure(L, in_task_only, 2);
  lua_setfield(L, library, name);
}

// Calls method `name` of the selected output file with the arguments from 1; false if the output is
// the log.
bool call_output(lua_State* L, const char* name) {
  if (lua_rawgetp(L, LUA_REGISTRYINDEX, &kOutputKey) == LUA_TNIL) {
    lua_pop(L, 1);
    return false;
  }
  lua_insert(L, 1);
  lua_getfield(L, 1, name);
  lua_insert(L, 1);
  lua_call(L, lua_gettop(L) - 1, LUA_MULTRET);
  return true;
}

int io_write(lua_State* L) {
  if (call_output(L, "write")) return lua_gettop(L);
  int count = lua_gettop(L);
  for (int i = 1; i <= count; i++) {
    size_t size;
    const char* text = luaL_checklstring(L, i, &size);
    write_text(L, {text, size});
  }
  lua_pushvalue(L, lua_upvalueindex(1));  // io.stdout
  return 1;
}

int io_output(lua_State* L) {  // upvalues: io.stdout, io.open
  reject_outside_task(L, "io.output");
  if (!lua_isnoneornil(L, 1)) {
    if (lua_type(L, 1) == LUA_TSTRING) {
      lua_pushvalue(L, lua_upvalueindex(2));
      lua_pushvalue(L, 1);
      lua_pushliteral(L, "w");
      lua_call(L, 2, 2);
      if (lua_isnil(L, -2)) return luaL_error(L, "%s", lua_tostring(L, -1));
      lua_pop(L, 1);
    } else {
      lua_pushvalue(L, 1);
    }
    if (lua_rawequal(L, -1, lua_upvalueindex(1))) {
      lua_pop(L, 1);
      lua_pushnil(L);
    }
    lua_rawsetp(L, LUA_REGISTRYINDEX, &kOutputKey);
  }
  if (lua_rawgetp(L, LUA_REGISTRYINDEX, &kOutputKey) == LUA_TNIL)
    lua_pushvalue(L, lua_upvalueindex(1));
  return 1;
}

int io_close(lua_State* L) {  // upvalue 1: Lua's own
  reject_outside_task(L, "io.close");
  if (lua_isnone(L, 1)) {
    if (lua_rawgetp(L, LUA_REGISTRYINDEX, &kOutputKey) == LUA_TNIL) return log_close(L);
    lua_pushnil(L);
    lua_rawsetp(L, LUA_REGISTRYINDEX, &kOutputKey);
  }
  luaL_checktype(L, 1, LUA_TUSERDATA);
  return lua_tocfunction(L, lua_upvalueindex(1))(L);
}

void open_io(lua_State* L, int io) {
  for (const char* name : {"open", "lines", "read", "input", "popen", "tmpfile"}) {
    std::string full = std::string("io.") + name;
    guard_function(L, io, name, full.c_str());
  }
  push_log_file(L, "io.stdout");
  lua_pushvalue(L, -1);
  lua_setfield(L, io, "stdout");
  push_log_file(L, "io.stderr");
  lua_setfield(L, io, "stderr");
  lua_pushvalue(L, -1);
  lua_pushcclosure(L, io_write, 1);
  lua_setfield(L, io, "write");
  lua_getfield(L, io, "open");
  lua_pushcclosure(L, io_output, 2);
  lua_setfield(L, io, "output");
  lua_getfield(L, io, "close");
  lua_pushcclosure(L, io_close, 1);
  lua_setfield(L, io, "close");
  lua_pushnil(L);
  lua_setfield(L, io, "stdin");
}

// ---- os

int os_exit(lua_State* L) {
  raise(L,
        "os.exit would end the process that runs this script's tasks: return from the task, or "
        "end it with error(\"why\")");
}

int os_getenv(lua_State* L) {
  const char* name = luaL_checkstring(L, 1);
  reject_outside_task(L, "os.getenv");
  bool found = false;
  std::string value;
  if (context(L).host != nullptr) value = context(L).host->env(name, found);
  if (!found) {
    lua_pushnil(L);
  } else {
    lua_pushlstring(L, value.data(), value.size());
  }
  return 1;
}

int os_setlocale(lua_State* L) {
  raise(L,
        "os.setlocale would change how every task of this process reads and writes numbers; "
        "leave the call out");
}

void open_os(lua_State* L, int os) {
  for (const char* name : {"time", "clock", "date", "remove", "rename", "tmpname", "execute"}) {
    std::string full = std::string("os.") + name;
    guard_function(L, os, name, full.c_str());
  }
  luaL_Reg functions[] = {
      {"exit", os_exit}, {"getenv", os_getenv}, {"setlocale", os_setlocale}, {nullptr, nullptr}};
  lua_pushvalue(L, os);
  luaL_setfuncs(L, functions, 0);
  lua_pop(L, 1);
}

// ---- math.random: xoshiro256**, as in Lua, reset for every attempt

uint64_t splitmix64(uint64_t& state) {  // splitmix64
  uint64_t z = state += 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

void seed_random(Sandbox& box, uint64_t seed) {
  for (uint64_t& word : box.random) word = splitmix64(seed);
  box.random_seeded = true;
}

uint64_t next_random(Sandbox& box) {
  if (!box.random_seeded) seed_random(box, box.seed);
  uint64_t* s = box.random;
  uint64_t result = std::rotl(s[1] * 5, 7) * 9;
  uint64_t t = s[1] << 17;
  s[2] ^= s[0];
  s[3] ^= s[1];
  s[1] ^= s[2];
  s[0] ^= s[3];
  s[2] ^= t;
  s[3] = std::rotl(s[3], 45);
  return result;
}

// A uniform number of 0..last.
uint64_t uniform_below(Sandbox& box, uint64_t last) {
  uint64_t mask = last == 0 ? 0 : ~uint64_t{0} >> std::countl_zero(last);
  for (;;) {
    uint64_t drawn = next_random(box) & mask;
    if (drawn <= last) return drawn;
  }
}

int math_random(lua_State* L) {
  Sandbox& box = sandbox(L);
  if (box.no_random != nullptr) raise(L, box.no_random);
  lua_Integer low = 1, high;
  switch (lua_gettop(L)) {
    case 0:
      lua_pushnumber(L, static_cast<lua_Number>(next_random(box) >> 11) * 0x1p-53);
      return 1;
    case 1:
      high = luaL_checkinteger(L, 1);
      if (high == 0) {
        lua_pushinteger(L, static_cast<lua_Integer>(next_random(box)));
        return 1;
      }
      break;
    case 2:
      low = luaL_checkinteger(L, 1);
      high = luaL_checkinteger(L, 2);
      break;
    default:
      return luaL_error(L, "wrong number of arguments");
  }
  luaL_argcheck(L, low <= high, lua_gettop(L), "interval is empty");
  uint64_t width = static_cast<uint64_t>(high) - static_cast<uint64_t>(low);
  lua_pushinteger(L,
                  static_cast<lua_Integer>(static_cast<uint64_t>(low) + uniform_below(box, width)));
  return 1;
}

// Without a number it restarts from the task's seed, never from the clock.
int math_randomseed(lua_State* L) {
  Sandbox& box = sandbox(L);
  if (lua_isnone(L, 1)) {
    seed_random(box, box.seed);
    return 0;
  }
  uint64_t seed = 0;
  if (lua_isinteger(L, 1)) {
    seed = static_cast<uint64_t>(lua_tointeger(L, 1));
  } else {
    seed = std::bit_cast<uint64_t>(luaL_checknumber(L, 1));
  }
  auto second = static_cast<uint64_t>(luaL_optinteger(L, 2, 0));
  seed_random(box, seed ^ std::rotl(second, 32));
  return 0;
}

// ---- the rest

int flow_collectgarbage(lua_State* L) {
  static const char* const kOptions[] = {"collect",  "count",      "step",        "stop",
                                         "restart",  "isrunning",  "incremental", "generational",
                                         "setpause", "setstepmul", nullptr};
  int option = luaL_checkoption(L, 1, "collect", kOptions);
  if (option == 0) {
    lua_gc(L, LUA_GCCOLLECT);
    lua_pushinteger(L, 0);
  } else if (option == 1) {
    // The memory in use differs from run to run; a graph must not depend on it.
    bool task = context(L).phase == ScriptPhase::task;
    lua_pushnumber(L, task ? lua_gc(L, LUA_GCCOUNT) + lua_gc(L, LUA_GCCOUNTB) / 1024.0 : 0.0);
  } else {
    raise(L, fmt::format("collectgarbage(\"{}\"): the collector serves every task of this "
                         "process and keeps its settings; use `collect` or `count`",
                         kOptions[option]));
  }
  return 1;
}

int flow_warn(lua_State* L) {
  std::string text = "warning: ";
  int count = lua_gettop(L);
  luaL_checkstring(L, 1);
  for (int i = 1; i <= count; i++) text += luaL_checkstring(L, i);
  if (count == 1 && lua_tostring(L, 1)[0] == '@') return 0;
  write_line(L, text);
  return 0;
}

}  // namespace

void wait_durable(lua_State* L) {
  if (context(L).host != nullptr) context(L).host->wait_durable();
}

void write_text(lua_State* L, std::string_view text) {
  std::string& line = sandbox(L).line;
  for (;;) {
    size_t end = text.find('\n');
    if (end == std::string_view::npos) break;
    line.append(text.substr(0, end));
    write_line(L, line);
    line.clear();
    text.remove_prefix(end + 1);
  }
  line.append(text);
  if (line.size() < kLineMax) return;
  VmContext& ctx = context(L);
  if (ctx.phase == ScriptPhase::task && ctx.host != nullptr) return ctx.host->log_chunk(line);
  write_line(L, line);
  line.clear();
}

void write_line(lua_State* L, std::string_view text) {
  VmContext& ctx = context(L);
  if (ctx.phase == ScriptPhase::task && ctx.host != nullptr) {
    while (text.find('\n') != std::string_view::npos) {
      ctx.host->log(text.substr(0, text.find('\n')));
      text.remove_prefix(text.find('\n') + 1);
    }
    ctx.host->log(text);
    return;
  }
  if (sandbox(L).silent) return;
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fputc('\n', stderr);
}

void close_files(lua_State* L) {
  Sandbox& box = sandbox(L);
  if (!box.opens_files) return;
  box.opens_files = false;
  std::fflush(nullptr);
  lua_gc(L, LUA_GCCOLLECT);
}

void flush_output(lua_State* L) {
  std::string& line = sandbox(L).line;
  if (line.empty()) return;
  write_line(L, line);
  line.clear();
}

void reset_output(lua_State* L) {
  sandbox(L).line.clear();
  if (lua_rawgetp(L, LUA_REGISTRYINDEX, &kOutputKey) != LUA_TNIL) {
    lua_pushnil(L);
    lua_rawsetp(L, LUA_REGISTRYINDEX, &kOutputKey);
  }
  lua_pop(L, 1);
  // io.input's file is in the registry under Lua's own name; its initial value is stored next to
  // it.
  lua_getfield(L, LUA_REGISTRYINDEX, "_IO_input");
  lua_getfield(L, LUA_REGISTRYINDEX, "flow.stdin");
  if (!lua_rawequal(L, -1, -2)) {
    lua_pushvalue(L, -1);
    lua_setfield(L, LUA_REGISTRYINDEX, "_IO_input");
  }
  lua_pop(L, 2);
}

void open_io_os(lua_State* L, int globals) {
  lua_getfield(L, LUA_REGISTRYINDEX, "_IO_input");
  lua_setfield(L, LUA_REGISTRYINDEX, "flow.stdin");
  lua_getfield(L, globals, "io");
  open_io(L, lua_gettop(L));
  lua_settop(L, globals);
  lua_getfield(L, globals, "os");
  open_os(L, lua_gettop(L));
  lua_settop(L, globals);
  lua_getfield(L, globals, "math");
  luaL_Reg random[] = {
      {"random", math_random}, {"randomseed", math_randomseed}, {nullptr, nullptr}};
  luaL_setfuncs(L, random, 0);
  lua_settop(L, globals);
  lua_pushcfunction(L, flow_collectgarbage);
  lua_setfield(L, globals, "collectgarbage");
  lua_pushcfunction(L, flow_warn);
  lua_setfield(L, globals, "warn");
}

void reach_outside(lua_State* L) {
  if (std::exchange(sandbox(L).reached_outside, true) || context(L).host == nullptr) return;
  context(L).host->reach_outside();
}

}  // namespace flow::lua
