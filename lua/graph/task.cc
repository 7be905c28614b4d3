// flow.task, shell, dynamic, service, native, env and file: definitions made while a file loads,
// and the nodes that calls of them add to the graph.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "engine/base/remote_url.hpp"
#include "engine/plan/remote_origin.hpp"
#include "lua/state/graph_builder.hpp"

namespace flow::lua {

const char kTaskKey = 0, kEnvKey = 0;

namespace {

struct TaskHolder {
  TaskObject* task;
};

const char* function_name(TaskKind kind) {
  switch (kind) {
    case TaskKind::lua:
      return "flow.task";
    case TaskKind::shell:
      return "flow.shell";
    case TaskKind::dynamic:
      return "flow.dynamic";
    case TaskKind::service:
      return "flow.service";
    case TaskKind::native:
      return "flow.native";
  }
  return "flow.task";
}

// ---- definitions

std::string form_of(TaskKind kind) {
  const char* function = function_name(kind);
  switch (kind) {
    case TaskKind::shell:
      return fmt::format("{}(\"name\", {{ command = [[…]], … }})", function);
    case TaskKind::native:
      return fmt::format("{}(\"name\", {{ options }})", function);
    case TaskKind::service:
      return fmt::format(
          "{0}(\"name\", {{ options }}, function(ctx, …) … end), or {0}(\"name\", {{ command = "
          "[[…]], ready = \"/health\" }}) for a server",
          function);
    default:
      return fmt::format("{}(\"name\", {{ options }}, function(ctx, …) … end)", function);
  }
}

// Stack positions of the options and of the function among the arguments; 0 if missing.
struct ArgumentPositions {
  int options = 0, function = 0;
};

bool has_command(lua_State* L, int options) {
  if (options == 0) return false;
  lua_pushstring(L, "command");
  bool has = lua_rawget(L, options) != LUA_TNIL;
  lua_pop(L, 1);
  return has;
}

ArgumentPositions read_form(lua_State* L, TaskKind kind, const std::string& name) {
  ArgumentPositions form;
  bool with_function = kind != TaskKind::shell && kind != TaskKind::native;
  for (int index = 2; index <= lua_gettop(L); index++) {
    int type = lua_type(L, index);
    if (type == LUA_TNIL && index == 2) continue;
    bool fits = type == LUA_TTABLE ? form.options == 0 && form.function == 0
                                   : type == LUA_TFUNCTION && with_function && form.function == 0;
    if (!fits)
      raise(L, fmt::format("{} of `{}`: argument {} is {}; write {}", function_name(kind), name,
                           index, kind_text(L, index), form_of(kind)));
    (type == LUA_TTABLE ? form.options : form.function) = index;
  }
  bool wraps = kind == TaskKind::service && has_command(L, form.options);
  if (wraps && form.function != 0)
    raise(L, fmt::format("flow.service of `{}` has a function and the option `command`: it is "
                         "served by one of them; remove the other",
                         name));
  if (with_function && form.function == 0 && !wraps)
    raise(L, fmt::format("{} of `{}` has no function: write {}", function_name(kind), name,
                         form_of(kind)));
  if (kind == TaskKind::shell && form.options == 0)
    raise(L, fmt::format("flow.shell of `{}` has no command: write {}", name, form_of(kind)));
  return form;
}

void check_unique(lua_State* L, GraphBuilder& graph, const TaskDef& def) {
  auto [other, is_new] = graph.ordinals.emplace(def.file + '\0' + def.name, graph.tasks.size());
  if (is_new) return;
  raise(L, fmt::format("two tasks of `{}` are named `{}`: the other is defined at line {}; give "
                       "one of them another name",
                       def.file, def.name, graph.tasks[other->second]->def.line));
}

// The names of positional arguments are part of a command's meaning.
void set_shell_code(TaskDef& def) {
  std::vector<Value> parts{Value(def.shell.command)};
  for (const std::string& arg : def.shell.args) parts.emplace_back(arg);
  def.code = sha256(encode_value(Value::list(std::move(parts))));
  constexpr size_t kShown = 200;
  def.code_components = {{"command", def.code, def.shell.command.substr(0, kShown)}};
}

void push_task(lua_State* L, TaskObject& task) {
  auto* holder = static_cast<TaskHolder*>(lua_newuserdatauv(L, sizeof(TaskHolder), 0));
  holder->task = &task;
  set_metatable(L, &kTaskKey);
}

int define(lua_State* L, TaskKind kind) {
  const char* function = function_name(kind);
  std::string name = check_text(L, 1, fmt::format("the name of {}", function));
  GraphBuilder& graph = loading_graph(L, function, name);
  check_name(L, function, name);
  ArgumentPositions form = read_form(L, kind, name);
  auto task = std::make_unique<TaskObject>();
  TaskDef& def = task->def;
  def.name = name;
  def.kind = kind;
  def.line = current_line(L);
  def.file = loading_file(L);
  if (form.options != 0) read_options(L, form.options, *task);
  check_unique(L, graph, def);
  if (!def.shell.command.empty()) {
    check_shell_definition(L, def);
    set_shell_code(def);
  }
  def.ordinal = static_cast<uint32_t>(graph.tasks.size());
  if (form.function != 0) {
    lua_pushvalue(L, form.function);
    for (int i = 1; const char* parameter = lua_getlocal(L, nullptr, i); i++)
      def.parameters.emplace_back(parameter);
    task->function_ref = luaL_ref(L, LUA_REGISTRYINDEX);
  }
  push_task(L, *task);
  graph.tasks.push_back(std::move(task));
  return 1;
}

int define_task(lua_State* L) { return define(L, TaskKind::lua); }
int define_shell(lua_State* L) { return define(L, TaskKind::shell); }
int define_dynamic(lua_State* L) { return define(L, TaskKind::dynamic); }
int define_service(lua_State* L) { return define(L, TaskKind::service); }
int define_native(lua_State* L) { return define(L, TaskKind::native); }

// ---- calls

/// As building_graph() raises it, with a hint: the task may be meant for an option.
[[noreturn]] void reject_call_at_load(lua_State* L, const std::string& name) {
  raise(L,
        fmt::format("the task `{}` is called while the script loads: call it inside the function "
                    "of flow.pipeline, where a call becomes a node of the graph. An option that "
                    "takes a task, such as the `gate` of a canary, takes it without a call",
                    name));
}

int call_task(lua_State* L) {
  const TaskObject& task = *static_cast<TaskHolder*>(lua_touserdata(L, 1))->task;
  const TaskDef& def = task.def;
  VmContext& ctx = context(L);
  if (ctx.phase == ScriptPhase::loading) reject_call_at_load(L, def.name);
  bool builds = ctx.graph != nullptr;
  GraphBuilder& graph = builds ? *ctx.graph : building_graph(L, "the task `" + def.name + "`");
  TaskNode node;
  node.line = current_line(L);
  node.guard = graph.guard;
  if (!def.shell.command.empty()) {
    read_shell_call(L, task, node);
  } else {
    node.args = read_arguments(L, 2, def.name);
  }
  node.def = def_index(L, graph, task);
  node.name = next_name(graph, def.name);
  add_node(L, graph, std::move(node), &task);
  return 1;
}

/// Equal for definitions of one task with equal options. The code is known only after the load.
std::string encode_options(const TaskDef& def) {
  Plan plan;
  plan.defs.push_back(def);
  plan.defs[0].code = {};
  plan.defs[0].code_components.clear();
  plan.defs[0].gpu_kernel.clear();
  return encode_plan(plan);
}

/// Equal for tasks with the same resource functions.
std::string functions_text(lua_State* L, const TaskObject& task) {
  std::string text;
  for (const auto& [option, reference] : task.resource_functions) {
    lua_rawgeti(L, LUA_REGISTRYINDEX, reference);
    text += fmt::format(":{}={}", option, lua_topointer(L, -1));
    lua_pop(L, 1);
  }
  return text;
}

// task:with { gpus = 2, … }: the same task with other options.
int call_with(lua_State* L) {
  const TaskObject* task = test_task(L, 1);
  if (task == nullptr) raise(L, "`with` is a method of a task: write train:with { gpus = 2 }");
  const std::string& name = task->def.name;
  if (lua_gettop(L) != 2 || lua_type(L, 2) != LUA_TTABLE)
    raise(L, fmt::format("`with` takes one table of options: write {}:with {{ gpus = 2 }}", name));
  VmContext& ctx = context(L);
  if (ctx.phase == ScriptPhase::task)
    raise(L, fmt::format("`{}:with` is called while the file loads or in the body of a pipeline: a "
                         "dynamic task can call its result",
                         name));
  GraphBuilder& graph = *ctx.graph;
  auto variant = std::make_unique<TaskObject>(*task);
  read_call_options(L, 2, *variant);
  const TaskObject* base = task->base == nullptr ? task : task->base;
  variant->base = base;
  variant->owner = &graph;
  variant->variant = static_cast<uint32_t>(graph.variants.size());
  // A loop that asks for the same options often makes one definition.
  std::string options = std::to_string(base->def.ordinal) + ":" + encode_options(variant->def) +
                        functions_text(L, *variant);
  auto [found, is_new] = graph.variant_of.emplace(options, variant->variant);
  if (is_new) graph.variants.push_back(std::move(variant));
  push_task(L, *graph.variants[found->second]);
  return 1;
}

int task_index(lua_State* L) {
  const TaskObject* task = test_task(L, 1);
  if (lua_type(L, 2) == LUA_TSTRING && std::string_view(lua_tostring(L, 2)) == "with") {
    lua_pushcfunction(L, call_with);
    return 1;
  }
  std::string key = lua_type(L, 2) == LUA_TSTRING ? lua_tostring(L, 2) : kind_text(L, 2);
  std::string name = task == nullptr ? "?" : task->def.name;
  raise(L, fmt::format("`{0}` is a task and has no part `{1}`: its result has parts; call it "
                       "first, `{0}(…).{1}`",
                       name, key));
}

int task_text(lua_State* L) {
  const TaskObject* task = test_task(L, 1);
  std::string text =
      task == nullptr
          ? "task"
          : (task->def.kind == TaskKind::service ? "service " : "task ") + task->def.name;
  lua_pushlstring(L, text.data(), text.size());
  return 1;
}

// ---- env and file

int make_env(lua_State* L) {
  std::string name = check_text(L, 1, "the variable's name in flow.env");
  bool good =
      !name.empty() && name.find('=') == std::string::npos && name.find('\0') == std::string::npos;
  if (!good)
    raise(L, fmt::format("flow.env: `{}` is not a valid name of an environment variable", name));
  char* memory = static_cast<char*>(lua_newuserdatauv(L, name.size() + 1, 0));
  std::copy_n(name.c_str(), name.size() + 1, memory);
  set_metatable(L, &kEnvKey);
  return 1;
}

int env_misuse(lua_State* L) {
  raise(L,
        "flow.env has no value while the script loads: it is read at each attempt, as an entry "
        "of a task's option `env`; the task reads it with os.getenv");
}

/// The options of flow.file, which only URLs have.
RemoteOrigin read_remote_options(lua_State* L, int index, const std::string& url) {
  RemoteOrigin origin;
  origin.url = url;
  if (lua_isnoneornil(L, index)) return origin;
  if (lua_type(L, index) != LUA_TTABLE)
    raise(L, fmt::format("the options of flow.file are a table, not {}", kind_text(L, index)));
  if (!is_remote_url(url))
    raise(L, "flow.file: only a URL has options: its sha256, and whether to be offline");
  lua_pushnil(L);
  while (lua_next(L, index) != 0) {
    std::string key = lua_type(L, -2) == LUA_TSTRING ? lua_tostring(L, -2) : kind_text(L, -2);
    if (key == "sha256") {
      Digest digest;
      std::string hex = check_text(L, -1, "`sha256` in flow.file");
      if (!Digest::parse_hex(hex, digest))
        raise(L, fmt::format("flow.file: `sha256` has 64 lower-case hexadecimal digits, not `{}`",
                             hex));
      origin.sha256 = digest;
    } else if (key == "offline") {
      if (lua_type(L, -1) != LUA_TBOOLEAN)
        raise(L, fmt::format("`offline` of flow.file is true or false, not {}", kind_text(L, -1)));
      origin.offline = lua_toboolean(L, -1) != 0;
    } else {
      raise(L, fmt::format("flow.file has no option `{}`{}; it has sha256 and offline", key,
                           did_you_mean(key, {"sha256", "offline"})));
    }
    lua_pop(L, 1);
  }
  return origin;
}

int make_remote_file(lua_State* L, const std::string& url) {
  RemoteOrigin origin = read_remote_options(L, 2, url);
  building_graph(L, "flow.file of a URL");
  // A task that captured it would have no content: only arguments are fetched.
  if (context(L).phase != ScriptPhase::building)
    raise(L,
          "flow.file of a URL is fetched before the run starts, so it is called in the body of a "
          "pipeline: pass its result to the task as an argument");
  auto file = remote_file(origin);
  if (!file.ok()) raise(L, "flow.file: " + file.error().message);
  push_file(L, *file);
  return 1;
}

// flow.file(path), or flow.file(url [, options]).
int make_file(lua_State* L) {
  std::string path = check_text(L, 1, "the path in flow.file");
  if (path.empty()) raise(L, "flow.file: the path is empty; name a file in the script's folder");
  if (is_remote_url(path)) return make_remote_file(L, path);
  read_remote_options(L, 2, path);
  std::filesystem::path full = std::filesystem::path(context(L).root) / path;
  File file;
  file.origin = full.lexically_normal().string();
  while (file.origin.size() > 1 && file.origin.back() == '/') file.origin.pop_back();
  file.name = std::filesystem::path(file.origin).filename().string();
  push_file(L, file);
  return 1;
}

// flow.native_operations(name): the shared library that the host program named, as a file.
int make_operations(lua_State* L) {
  std::string name = check_text(L, 1, "the name in flow.native_operations");
  building_graph(L, "flow.native_operations");
  if (context(L).phase == ScriptPhase::task)
    raise(L,
          "flow.native_operations is called in the body of a pipeline: give the dynamic task the "
          "library as an argument");
  File file;
  file.name = name;
  file.origin = std::string(kOperationsOrigin) + name;
  push_file(L, file);
  return 1;
}

void add_function(lua_State* L, int table, const char* name, lua_CFunction function) {
  lua_pushcfunction(L, function);
  lua_setfield(L, table, name);
}

}  // namespace

const TaskObject* test_task(lua_State* L, int index) {
  auto* holder = static_cast<TaskHolder*>(test_object(L, index, &kTaskKey));
  return holder == nullptr ? nullptr : holder->task;
}

void open_tasks(lua_State* L, int flow) {
  if (new_metatable(L, &kTaskKey, "task")) {
    add_function(L, lua_gettop(L), "__call", call_task);
    add_function(L, lua_gettop(L), "__index", task_index);
    add_function(L, lua_gettop(L), "__tostring", task_text);
  }
  lua_pop(L, 1);
  if (new_metatable(L, &kEnvKey, "flow.env")) {
    for (const char* use : {"__concat", "__len", "__index", "__call", "__lt", "__le"})
      add_function(L, lua_gettop(L), use, env_misuse);
  }
  lua_pop(L, 1);
  add_function(L, flow, "task", define_task);
  add_function(L, flow, "shell", define_shell);
  add_function(L, flow, "dynamic", define_dynamic);
  add_function(L, flow, "service", define_service);
  add_function(L, flow, "native", define_native);
  add_function(L, flow, "native_operations", make_operations);
  add_function(L, flow, "env", make_env);
  add_function(L, flow, "file", make_file);
}

}  // namespace flow::lua
