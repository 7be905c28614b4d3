// ctx: the functions and fields that a task's function may use while it runs.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "engine/base/size_units.hpp"
#include "engine/blobs/folder.hpp"
#include "lua/sandbox/sandbox.hpp"

namespace flow::lua {

namespace {

const char kContextKey = 0;

enum ContextField : uint8_t {
  kRun,
  kTask,
  kAttempt,
  kRank,
  kRanks,
  kComm,
  kDevice,
  kDir,
  kSeed,
  kStopping
};
constexpr std::pair<const char*, ContextField> kFields[] = {
    {"run", kRun},     {"task", kTask},        {"attempt", kAttempt}, {"rank", kRank},
    {"ranks", kRanks}, {"comm", kComm},        {"device", kDevice},   {"dir", kDir},
    {"seed", kSeed},   {"stopping", kStopping}};

VmContext& attempt_context(lua_State* L, const char* method) {
  if (lua_touserdata(L, 1) == nullptr || test_object(L, 1, &kContextKey) == nullptr)
    raise(L, fmt::format("`ctx.{}` is a method: write `ctx:{}(…)`", method, method));
  VmContext& ctx = context(L);
  if (ctx.request == nullptr || ctx.host == nullptr)
    raise(L, "ctx belongs to an attempt that has ended");
  return ctx;
}

// The step whose function runs; names of steps within it have this one's as a prefix.
class StepScope {
 public:
  StepScope(Sandbox& box, const std::string& step)
      : box_(box), outer_(std::exchange(box.step_path, step + "/")) {}
  ~StepScope() { box_.step_path = std::move(outer_); }
  StepScope(const StepScope&) = delete;
  StepScope& operator=(const StepScope&) = delete;

 private:
  Sandbox& box_;
  std::string outer_;
};

// A name as the journal has it: "outer/load", and at its second use there "outer/load#2". A "/" in
// the script's name is written "\/", so that no name looks like a path.
std::string path_of(lua_State* L, std::unordered_map<std::string, uint32_t>& names,
                    const std::string& name) {
  constexpr size_t kPathMax = 4000;
  std::string path = sandbox(L).step_path;
  for (char c : name) {
    if (c == '/' || c == '\\') path += '\\';
    path += c;
  }
  if (path.size() > kPathMax)
    raise(L,
          fmt::format("`{}` is nested too deep in other steps: the names together have {} bytes, "
                      "and the limit is {}",
                      name, path.size(), kPathMax));
  std::string numbered = path;
  while (!names.try_emplace(numbered, 1).second)
    numbered = fmt::format("{}#{}", path, ++names[path]);
  return numbered;
}

// Names are stored and shown, so a secret in one is redacted before the name is used.
std::string name_argument(lua_State* L, const char* method) {
  constexpr size_t kNameMax = 200;
  if (lua_type(L, 2) != LUA_TSTRING)
    raise(L, fmt::format("ctx:{}: the first argument is a name, not {}", method, kind_text(L, 2)));
  size_t size;
  const char* text = lua_tolstring(L, 2, &size);
  if (size == 0 || size > kNameMax)
    raise(L, fmt::format("ctx:{}: a name has 1 to {} bytes, not {}", method, kNameMax, size));
  return context(L).host->hidden({text, size});
}

Value checked_value(lua_State* L, int index, const std::string& where) {
  auto value = read_value(L, index, where, false);
  if (!value.ok()) raise(L, value.error().message);
  return std::move(*value);
}

// ---- fields

int context_index(lua_State* L) {  // upvalue 1: names to methods and to numbers of fields
  lua_settop(L, 2);
  lua_pushvalue(L, 2);
  int type = lua_rawget(L, lua_upvalueindex(1));
  if (type == LUA_TFUNCTION) return 1;
  VmContext& ctx = context(L);
  if (type != LUA_TNUMBER) {
    std::vector<std::string> names;
    lua_pushnil(L);
    while (lua_next(L, lua_upvalueindex(1))) {
      lua_pop(L, 1);
      names.emplace_back(lua_tostring(L, -1));
    }
    std::sort(names.begin(), names.end());
    std::string field = lua_type(L, 2) == LUA_TSTRING ? lua_tostring(L, 2) : kind_text(L, 2);
    raise(L, fmt::format("ctx has no `{}`{}; it has {}", field, did_you_mean(field, names),
                         join(names)));
  }
  if (ctx.request == nullptr) raise(L, "ctx belongs to an attempt that has ended");
  const AttemptRequest& request = *ctx.request;
  switch (static_cast<ContextField>(lua_tointeger(L, -1))) {
    case kRun:
      lua_pushlstring(L, request.run.data(), request.run.size());
      break;
    case kTask:
      lua_pushlstring(L, request.task.data(), request.task.size());
      break;
    case kAttempt:
      lua_pushinteger(L, request.attempt);
      break;
    case kRank:
      lua_pushinteger(L, request.rank);
      break;
    case kRanks:
      lua_pushinteger(L, request.ranks);
      break;
    case kComm:
      push_comm(L);
      break;
    case kDevice:
      lua_pushstring(L, request.gpus > 0 ? "cuda:0" : "cpu");
      break;
    case kDir:
      if (Status made = ctx.host->make_scratch(); !made.ok()) raise(L, made.error().message);
      lua_pushlstring(L, request.dir.data(), request.dir.size());
      break;
    case kSeed:
      lua_pushinteger(L, static_cast<lua_Integer>(request.seed));
      break;
    case kStopping:
      lua_pushboolean(L, ctx.host->stopping());
      break;
  }
  return 1;
}

int context_newindex(lua_State* L) {
  raise(L, fmt::format("ctx can't be written to: use a local instead of ctx.{}",
                       lua_type(L, 2) == LUA_TSTRING ? lua_tostring(L, 2) : "[…]"));
}

int context_text(lua_State* L) {
  const AttemptRequest* request = context(L).request;
  lua_pushfstring(L, "ctx of %s", request == nullptr ? "an attempt" : request->task.c_str());
  return 1;
}

// ---- telling

int context_log(lua_State* L) {
  attempt_context(L, "log");
  if (lua_gettop(L) < 2) raise(L, "ctx:log: give it what to log");
  push_formatted(L, 2);
  size_t size;
  const char* text = lua_tolstring(L, -1, &size);
  write_line(L, {text, size});
  return 0;
}

int context_progress(lua_State* L) {
  VmContext& ctx = attempt_context(L, "progress");
  if (lua_type(L, 2) != LUA_TNUMBER)
    raise(L, fmt::format("ctx:progress: the first argument is a number from 0 to 1, not {}",
                         kind_text(L, 2)));
  lua_Number fraction = lua_tonumber(L, 2);
  fraction = fraction >= 0 ? std::min<lua_Number>(fraction, 1) : 0;  // also NaN
  Value metrics = checked_value(L, 3, "the metrics of ctx:progress");
  bool fits = metrics.is_nil() || metrics.kind() == Value::Kind::table;
  if (!fits)
    raise(L, fmt::format("ctx:progress: the second argument is a table of metrics, not {}",
                         kind_text(L, 3)));
  ctx.host->progress(fraction, metrics);
  return 0;
}

int context_metric(lua_State* L) {
  VmContext& ctx = attempt_context(L, "metric");
  std::string name = name_argument(L, "metric");
  if (lua_type(L, 3) != LUA_TNUMBER)
    raise(L,
          fmt::format("ctx:metric: the value of `{}` is a number, not {}", name, kind_text(L, 3)));
  std::optional<int64_t> step;
  if (!lua_isnoneornil(L, 4)) {
    bool is_number = lua_type(L, 4) == LUA_TNUMBER;
    int is_whole = 0;
    step = lua_tointegerx(L, 4, &is_whole);  // also of 2.0, as `i * 10 / 5` gives
    if (!is_number || is_whole == 0)
      raise(L, fmt::format("ctx:metric: the step of `{}` is an integer, not {}", name,
                           is_number ? luaL_tolstring(L, 4, nullptr) : kind_text(L, 4)));
  }
  ctx.host->metric(name, lua_tonumber(L, 3), step);
  return 0;
}

// ---- what is kept

// Ends a fenced attempt. Other errors are raised in the script.
void check_saved(lua_State* L, const Status& saved, const std::string& what) {
  if (saved.ok()) return;
  if (saved.error().kind != ErrorKind::environment)
    raise(L, fmt::format("{}: {}", what, saved.error().message));
  unwind(L, Sandbox::Unwind::stopped);
}

// Copies the tensors; the checkpoint is written while the attempt continues.
int context_checkpoint(lua_State* L) {
  VmContext& ctx = attempt_context(L, "checkpoint");
  if (lua_isnoneornil(L, 2)) raise(L, "ctx:checkpoint: give it the state to keep");
  auto value = read_snapshot(L, 2, "checkpoint");
  if (!value.ok()) {  // copies that wait to be written may use the memory
    check_saved(L, ctx.host->finish_checkpoints(), "ctx:checkpoint");
    value = read_snapshot(L, 2, "checkpoint");
  }
  if (!value.ok()) raise(L, value.error().message);
  check_saved(L, ctx.host->save_checkpoint(std::move(*value)), "ctx:checkpoint");
  if (!ctx.host->stopping()) return 0;
  check_saved(L, ctx.host->finish_checkpoints(), "ctx:checkpoint");
  unwind(L, Sandbox::Unwind::stopped);
}

int context_restore(lua_State* L) {
  VmContext& ctx = attempt_context(L, "restore");
  auto newest = ctx.host->newest_checkpoint();
  if (!newest.ok()) raise(L, "ctx:restore: " + newest.error().message);
  if (*newest) {
    push_value(L, **newest);
  } else {
    lua_pushnil(L);
  }
  return 1;
}

int context_step(lua_State* L) {
  VmContext& ctx = attempt_context(L, "step");
  std::string plain = name_argument(L, "step");
  if (lua_type(L, 3) != LUA_TFUNCTION)
    raise(L, fmt::format("ctx:step: the second argument of `{}` is a function, not {}; write "
                         "ctx:step(\"{}\", fn, …) and not fn()",
                         plain, kind_text(L, 3), plain));
  Sandbox& box = sandbox(L);
  std::string name = path_of(L, box.step_names, plain);
  auto finished = ctx.request->steps.find(name);
  if (finished != ctx.request->steps.end()) {
    push_value(L, finished->second);
    return 1;
  }
  int base = lua_gettop(L);
  int count = base - 3;
  lua_pushvalue(L, 3);
  for (int i = 0; i < count; i++) lua_pushvalue(L, 4 + i);
  {
    StepScope scope(box, name);
    lua_call(L, count, LUA_MULTRET);
  }
  int results = lua_gettop(L) - base;
  if (results > 1 && !lua_isnil(L, base + 2))
    raise(L,
          fmt::format("the step `{}` returned {} values; a step returns one: put them in a table",
                      name, results));
  if (results == 0) lua_pushnil(L);
  Value value = checked_value(L, base + 1, fmt::format("the result of step `{}`", name));
  check_saved(L, ctx.host->save_step(name, value), fmt::format("the step `{}`", name));
  if (ctx.host->stopping()) unwind(L, Sandbox::Unwind::stopped);
  // In the form that a later attempt will get.
  push_value(L, value);
  return 1;
}

// ---- wait

int64_t read_timeout(lua_State* L, const std::string& name) {
  if (lua_isnoneornil(L, 3)) return -1;
  if (lua_type(L, 3) != LUA_TTABLE)
    raise(L,
          fmt::format("ctx:wait: the options of `{}` are a table such as {{ timeout = \"2d\" }}, "
                      "not {}",
                      name, kind_text(L, 3)));
  int64_t timeout = -1;
  lua_pushnil(L);
  while (lua_next(L, 3)) {
    std::string option = lua_type(L, -2) == LUA_TSTRING ? lua_tostring(L, -2) : kind_text(L, -2);
    if (option != "timeout")
      raise(L, fmt::format("ctx:wait has no option `{}`{}; it has timeout", option,
                           did_you_mean(option, {"timeout"})));
    if (lua_type(L, -1) == LUA_TNUMBER) {
      lua_Number seconds = lua_tonumber(L, -1);
      constexpr lua_Number kSecondsMax = 1e12;
      if (!(seconds >= 0 && seconds <= kSecondsMax))
        raise(L,
              fmt::format("ctx:wait: the timeout of `{}` is {} s; it is 0 or more", name, seconds));
      timeout = static_cast<int64_t>(seconds * 1000);
    } else {
      std::string text = check_text(L, -1, "the timeout of ctx:wait");
      auto parsed = parse_duration_ms(text);
      if (!parsed.ok())
        raise(L, fmt::format("ctx:wait: the timeout of `{}`: {}", name, parsed.error().message));
      timeout = *parsed;
    }
    lua_pop(L, 1);
  }
  return timeout;
}

int context_wait(lua_State* L) {
  VmContext& ctx = attempt_context(L, "wait");
  std::string signal = name_argument(L, "wait");
  int64_t timeout = read_timeout(L, signal);
  Sandbox& box = sandbox(L);
  box.waited = true;
  std::string name = path_of(L, box.wait_names, signal);
  auto waited = ctx.request->waits.find(name);
  if (waited != ctx.request->waits.end() && waited->second.expired) {
    lua_pushnil(L);
    lua_pushliteral(L, "timeout");
    return 2;
  }
  auto arrived = ctx.request->signals.find(signal);
  if (arrived != ctx.request->signals.end()) {
    push_value(L, arrived->second);
    return 1;
  }
  box.signal = signal;
  box.wait_name = name;
  box.wait_timeout_ms = timeout;
  unwind(L, Sandbox::Unwind::waiting);
}

// ---- files

std::vector<std::string> names_in(const std::filesystem::path& folder) {
  constexpr size_t kNamesMax = 1000;
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator at(folder, error), end;
       !error && at != end && names.size() < kNamesMax; at.increment(error))
    names.push_back(at->path().filename().string());
  return names;
}

int context_file(lua_State* L) {
  VmContext& ctx = attempt_context(L, "file");
  std::string name = check_text(L, 2, "the name given to ctx:file");
  const std::string& folder = ctx.request->dir;
  if (name.starts_with(folder + "/")) name = name.substr(folder.size() + 1);
  std::string given = name;
  name = std::filesystem::path(name).lexically_normal().string();
  if (name.size() > 1 && name.ends_with('/')) name.pop_back();
  if (name != "." && !is_inner_path(name))
    raise(L, fmt::format("ctx:file(\"{}\"): the file is in ctx.dir; give its path relative to it",
                         given));
  // The task may not have read ctx.dir yet, and an earlier attempt may have left files there.
  if (Status made = ctx.host->make_scratch(); !made.ok()) raise(L, made.error().message);
  std::filesystem::path path = std::filesystem::path(folder) / name;
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    std::string broken = broken_link(path.string());
    if (!broken.empty()) raise(L, fmt::format("ctx:file(\"{}\"): it is {}", name, broken));
    std::string near = did_you_mean(path.filename().string(), names_in(path.parent_path()));
    raise(L, fmt::format("ctx:file(\"{}\"): ctx.dir ({}) has no such file{}; write it first, for "
                         "example with io.open(ctx.dir .. \"/{}\", \"w\")",
                         name, folder, near, name));
  }
  if (sandbox(L).opens_files) std::fflush(nullptr);  // writes out io's buffers
  auto file = ctx.host->store_file(name == "." ? folder : path.string());
  if (!file.ok()) raise(L, file.error().message);
  push_file(L, *file);
  return 1;
}

void push_context_metatable(lua_State* L) {
  if (!new_metatable(L, &kContextKey, "ctx")) return;
  luaL_Reg methods[] = {{"log", context_log},
                        {"progress", context_progress},
                        {"metric", context_metric},
                        {"checkpoint", context_checkpoint},
                        {"restore", context_restore},
                        {"step", context_step},
                        {"wait", context_wait},
                        {"file", context_file},
                        {nullptr, nullptr}};
  luaL_newlib(L, methods);
  for (const auto& [name, field] : kFields) {
    lua_pushinteger(L, field);
    lua_setfield(L, -2, name);
  }
  lua_pushcclosure(L, context_index, 1);
  lua_setfield(L, -2, "__index");
  lua_pushcfunction(L, context_newindex);
  lua_setfield(L, -2, "__newindex");
  lua_pushcfunction(L, context_text);
  lua_setfield(L, -2, "__tostring");
  lua_pop(L, 1);
}

}  // namespace

void unwind(lua_State* L, Sandbox::Unwind why) {
  sandbox(L).unwind = why;
  lua_pushlightuserdata(L, const_cast<char*>(&kUnwindKey));
  lua_error(L);
  std::abort();
}

void push_task_context(lua_State* L) {
  lua_newuserdatauv(L, 0, 0);
  if (lua_rawgetp(L, LUA_REGISTRYINDEX, &kContextKey) == LUA_TNIL) {
    push_context_metatable(L);
    lua_pop(L, 1);
    lua_rawgetp(L, LUA_REGISTRYINDEX, &kContextKey);
  }
  lua_setmetatable(L, -2);
}

}  // namespace flow::lua
