// Collects a script's definitions and calls into a plan: names, numbers, tasks and nodes.
#include <fmt/format.h>

#include <cstdlib>

#include "engine/value/utf8.hpp"
#include "lua/state/graph_builder.hpp"

namespace flow::lua {

namespace {

constexpr size_t kNameMax = 100;
constexpr std::string_view kNameLetters =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-";

/// The whole character that begins there.
std::string character_at(const std::string& text, size_t begin) {
  size_t end = begin + 1;
  while (end < text.size() && character_begin(text, end) == begin) end++;
  return to_utf8(text.substr(begin, end - begin));
}

// The nearest Lua function below the running C function that is not part of stdlib/, so that errors
// name the line of the script. Sets `frame`.
bool nearest_lua_frame(lua_State* L, lua_Debug& frame) {
  constexpr int kLevelsMax = 50;
  for (int level = 0; level < kLevelsMax && lua_getstack(L, level, &frame); level++) {
    if (!lua_getinfo(L, "l", &frame)) return false;
    if (frame.currentline <= 0) continue;
    lua_getinfo(L, "S", &frame);
    if (!is_stdlib(frame)) return true;
  }
  return false;
}

std::string source_name(const lua_Debug& frame) {
  return frame.source[0] == '@' ? frame.source + 1 : frame.short_src;
}

}  // namespace

// ---- userdata

bool new_metatable(lua_State* L, const void* key, const char* name) {
  if (lua_rawgetp(L, LUA_REGISTRYINDEX, key) == LUA_TTABLE) return false;
  lua_pop(L, 1);
  lua_createtable(L, 0, 24);
  lua_pushstring(L, name);
  lua_setfield(L, -2, "__name");
  lua_pushstring(L, name);
  lua_setfield(L, -2, "__metatable");
  lua_pushvalue(L, -1);
  lua_rawsetp(L, LUA_REGISTRYINDEX, key);
  return true;
}

void set_metatable(lua_State* L, const void* key) {
  lua_rawgetp(L, LUA_REGISTRYINDEX, key);
  lua_setmetatable(L, -2);
}

void* test_object(lua_State* L, int index, const void* key) {
  if (lua_type(L, index) != LUA_TUSERDATA || !lua_getmetatable(L, index)) return nullptr;
  lua_rawgetp(L, LUA_REGISTRYINDEX, key);
  bool same = lua_rawequal(L, -1, -2);
  lua_pop(L, 2);
  return same ? lua_touserdata(L, index) : nullptr;
}

// ---- places and words

bool is_stdlib(const lua_Debug& frame) {
  return std::string_view(frame.source).starts_with("@stdlib/flow.");
}

ScriptLocation current_location(lua_State* L) {
  lua_Debug frame;
  if (!nearest_lua_frame(L, frame)) return {};
  return {source_name(frame), static_cast<uint32_t>(frame.currentline)};
}

uint32_t current_line(lua_State* L) {
  lua_Debug frame;
  return nearest_lua_frame(L, frame) ? static_cast<uint32_t>(frame.currentline) : 0;
}

std::string text_of(const ScriptLocation& place) {
  return place.line == 0 ? "" : fmt::format("{}:{}: ", place.file, place.line);
}

void raise(lua_State* L, const std::string& message) {
  {
    std::string text = text_of(current_location(L)) + message;
    lua_pushlstring(L, text.data(), text.size());
  }
  lua_error(L);
  std::abort();
}

std::string kind_text(lua_State* L, int index) {
  switch (lua_type(L, index)) {
    case LUA_TNIL:
    case LUA_TNONE:
      return "nil";
    case LUA_TBOOLEAN:
      return "a boolean";
    case LUA_TNUMBER:
      return lua_isinteger(L, index) ? "an integer" : "a number";
    case LUA_TSTRING:
      return "a string";
    case LUA_TTABLE:
      return "a table";
    case LUA_TFUNCTION:
      return "a function";
    case LUA_TTHREAD:
      return "a coroutine";
    case LUA_TLIGHTUSERDATA:
      if (lua_touserdata(L, index) == &kMissingKey) return "flow.missing";
      return lua_touserdata(L, index) == &kNullKey ? "flow.null" : "a light userdata";
    default:
      break;
  }
  if (is_handle(L, index)) return "a handle";
  if (test_file(L, index) != nullptr) return "a file";
  if (is_tensor(L, index)) return "a tensor";
  if (const TaskObject* task = test_task(L, index)) {
    const char* kind = task->def.kind == TaskKind::service ? "service" : "task";
    return fmt::format("the {} `{}`", kind, task->def.name);
  }
  if (const PipelineObject* pipeline = test_pipeline(L, index))
    return "the pipeline `" + pipeline->name + "`";
  if (test_param(L, index) != nullptr) return "a parameter's description";
  if (test_object(L, index, &kEnvKey) != nullptr) return "a flow.env";
  if (luaL_getmetafield(L, index, "__name") == LUA_TSTRING) {
    std::string name = lua_tostring(L, -1);
    lua_pop(L, 1);
    return "a " + name;
  }
  return "a userdata";
}

std::string did_you_mean(std::string_view word, const std::vector<std::string>& names) {
  std::string near = nearest_name(word, names);
  return near.empty() ? "" : fmt::format(" (did you mean `{}`?)", near);
}

std::string join(const std::vector<std::string>& words, const char* between) {
  return fmt::format("{}", fmt::join(words, between));
}

std::string check_text(lua_State* L, int index, const std::string& what) {
  if (lua_type(L, index) != LUA_TSTRING)
    raise(L, fmt::format("{} is a string, not {}", what, kind_text(L, index)));
  size_t size;
  const char* text = lua_tolstring(L, index, &size);
  return {text, size};
}

// ---- where a script is

std::string loading_file(lua_State* L) {
  lua_Debug frame;
  for (int level = 0; lua_getstack(L, level, &frame); level++) {
    if (!lua_getinfo(L, "S", &frame)) break;
    if (std::string_view(frame.what) == "main") return source_name(frame);
  }
  return context(L).main;
}

GraphBuilder& loading_graph(lua_State* L, const char* function, const std::string& name) {
  VmContext& ctx = context(L);
  if (ctx.phase == ScriptPhase::loading && ctx.graph != nullptr) return *ctx.graph;
  const char* where = ctx.phase == ScriptPhase::task ? "a task" : "a pipeline's body";
  raise(L, fmt::format("{} defines `{}` inside {}: a task is defined while its file loads; move "
                       "the definition to the top of the file, and call the task here",
                       function, name, where));
}

GraphBuilder& building_graph(lua_State* L, const std::string& what) {
  VmContext& ctx = context(L);
  if (ctx.phase == ScriptPhase::loading)
    raise(L, fmt::format("{} is called while the script loads: call it inside the function of "
                         "flow.pipeline, where a call becomes a node of the graph",
                         what));
  if (ctx.graph == nullptr)
    raise(L, fmt::format("{} is called inside a task: call the tasks from the pipeline's "
                         "body, or make this task a flow.dynamic, whose function may call tasks",
                         what));
  return *ctx.graph;
}

void check_name(lua_State* L, const char* function, const std::string& name) {
  if (name.empty() || name.size() > kNameMax)
    raise(L, fmt::format("{}: the name `{}` has {} characters; a name has 1 to {}", function,
                         to_utf8(name.substr(0, character_begin(name, kNameMax))), name.size(),
                         kNameMax));
  size_t bad = name.find_first_not_of(kNameLetters);
  if (bad != std::string::npos)
    raise(L, fmt::format("{}: the name `{}` has the character `{}`; a name is made of letters, "
                         "digits, `_`, `.` and `-`",
                         function, to_utf8(name), character_at(name, bad)));
  // In a path, such as that of a service, these mean a folder.
  if (name == "." || name == "..")
    raise(L, fmt::format("{}: the name `{}` is that of a folder in a path; take another one",
                         function, name));
}

// ---- nodes

std::string next_name(GraphBuilder& graph, const std::string& name) {
  std::string full = graph.prefix + name;
  uint32_t count = ++graph.calls[full];
  if (count > 1) full += '#' + std::to_string(count);
  return full;
}

uint32_t def_index(lua_State* L, GraphBuilder& graph, const TaskObject& task) {
  if (context(L).phase == ScriptPhase::task) {
    if (task.base == nullptr) return task.def.ordinal;
    return static_cast<uint32_t>(task.owner->tasks.size()) + task.variant;
  }
  auto [found, is_new] = graph.def_of.emplace(&task, static_cast<uint32_t>(graph.plan.defs.size()));
  uint32_t index = found->second;
  if (!is_new) return index;
  graph.plan.defs.push_back(task.def);
  if (task.gate != nullptr) def_index(L, graph, *task.gate);
  return index;
}

void add_node(lua_State* L, GraphBuilder& graph, TaskNode&& node, const TaskObject* task) {
  if (graph.plan.nodes.size() >= kNodesMax)
    raise(L, fmt::format("the graph has more than {} nodes: use flow.map over a list that a task "
                         "returns, or split the pipeline",
                         kNodesMax));
  graph.plan.nodes.push_back(std::move(node));
  graph.node_tasks.push_back(task);
  push_handle(L, graph, static_cast<uint32_t>(graph.plan.nodes.size()) - 1);
}

Value read_arguments(lua_State* L, int first, const std::string& task) {
  auto args = read_graph_arguments(L, first);
  if (!args.ok()) raise(L, fmt::format("`{}` {}", task, args.error().message));
  while (!args->empty() && args->back().is_nil()) args->pop_back();
  return Value(Value::Table{std::move(*args), {}});
}

// ---- the surface

namespace {

int null_text(lua_State* L) {
  const void* value = lua_touserdata(L, 1);
  lua_pushstring(L, value == &kNullKey      ? "flow.null"
                    : value == &kMissingKey ? "flow.missing"
                                            : "light userdata");
  return 1;
}

// All light userdata of a lua_State share one metatable.
void push_null(lua_State* L) {
  lua_pushlightuserdata(L, const_cast<char*>(&kNullKey));
  if (lua_getmetatable(L, -1)) {
    lua_pop(L, 1);
    return;
  }
  lua_createtable(L, 0, 2);
  lua_pushcfunction(L, null_text);
  lua_setfield(L, -2, "__tostring");
  lua_pushliteral(L, "flow.null");
  lua_setfield(L, -2, "__name");
  lua_setmetatable(L, -2);
}

}  // namespace

void open_graph(lua_State* L, int flow_table) {
  int flow = lua_absindex(L, flow_table);
  open_handles(L);
  open_tasks(L, flow);
  open_input_files(L, flow);
  open_flow_control(L, flow);
  open_params(L, flow);
  open_pipelines(L, flow);
  push_null(L);
  lua_setfield(L, flow, "null");
  lua_pushlightuserdata(L, const_cast<char*>(&kMissingKey));
  lua_setfield(L, flow, "missing");
}

}  // namespace flow::lua
