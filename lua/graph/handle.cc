// Handles: a future result, or a part of it. A use that needs the value of the result raises an
// error with the reason and the alternative.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "lua/state/graph_builder.hpp"

namespace flow::lua {

const char kHandleKey = 0, kMethodKey = 0;

namespace {

constexpr size_t kHandleShown = 120;  // bytes of a handle's text in a message

const Handle* handle_at(lua_State* L, int index) {
  return static_cast<const Handle*>(test_object(L, index, &kHandleKey));
}

// The text of the handle among the operands at 1 and 2.
std::string operand_text(lua_State* L) {
  const GraphBuilder* graph = context(L).graph;
  for (int index : {1, 2}) {
    const Handle* handle = handle_at(L, index);
    if (handle != nullptr && handle->graph == graph && graph != nullptr)
      return handle_text(*graph, *handle);
  }
  return "?";
}

[[noreturn]] void misuse(lua_State* L, const char* what, const char* instead) {
  raise(L, fmt::format("{} `{}`, which is a handle to a result that does not exist yet: {}", what,
                       operand_text(L), instead));
}

int on_arithmetic(lua_State* L) {
  misuse(L, "arithmetic on", "compute in a task that takes the handle as an argument");
}
int on_concat(lua_State* L) {
  misuse(L, "`..` of",
         "build the string in a task that takes the handle as an argument (a shell task's command "
         "names it as `{argument}`)");
}
int on_length(lua_State* L) {
  misuse(L, "`#` of", "use flow.map to process its items, or use `#` in a task");
}
int on_compare(lua_State* L) {
  misuse(L, "comparison of",
         "compare in a task, and branch on that task's result with flow.when(handle, f, g)");
}
int on_assign(lua_State* L) {
  misuse(L, "assignment to a field of",
         "a result never changes: make a new table, in a task where it needs the value");
}
int on_pairs(lua_State* L) {
  reject_handle(L, 1, "pairs");
  return 0;
}

// Called by luaL_tolstring: only print may see a handle as text.
int on_tostring(lua_State* L) {
  lua_Debug caller;
  if (lua_getstack(L, 1, &caller) && lua_getinfo(L, "fn", &caller)) {
    lua_rawgeti(L, LUA_REGISTRYINDEX, LUA_RIDX_GLOBALS);
    lua_pushliteral(L, "print");
    lua_rawget(L, -2);
    bool is_print = lua_rawequal(L, -1, -3);
    lua_settop(L, 1);
    if (is_print) {
      std::string text = describe_handle(L, 1);
      lua_pushlstring(L, text.data(), text.size());
      return 1;
    }
    if (caller.name != nullptr && std::string_view(caller.name) == "format")
      reject_handle(L, 1, "%s");
  }
  reject_handle(L, 1, "tostring");
  return 0;
}

// ---- parts

bool is_pattern(const std::string& text) { return text.find_first_of("*?[") != std::string::npos; }

// A shell task's outputs are known while building: a wrong name is reported at once.
std::string wrong_output(const TaskDef& def, const std::vector<PathStep>& path) {
  size_t first = 0;
  const PathStep& step = path[first];
  std::vector<std::string> names{"stdout"};
  const std::string* pattern = nullptr;
  bool is_name = step.key.kind() == Value::Kind::string;
  bool found = is_name && step.key.as_string() == "stdout";
  for (const auto& [name, value] : def.shell.outputs) {
    names.push_back(name);
    if (!is_name || step.key.as_string() != name) continue;
    found = true;
    pattern = &value;
  }
  if (!found) {
    std::string word = is_name ? step.key.as_string() : to_json(step.key);
    return fmt::format("the shell task `{}` has no output `{}`{}; it has: {}", def.name, word,
                       did_you_mean(word, names), join(names));
  }
  if (path.size() == 1) return "";
  bool item_of_glob = pattern != nullptr && is_pattern(*pattern) && path.size() == 2 &&
                      !path[1].each && path[1].key.kind() == Value::Kind::integer;
  if (item_of_glob) return "";
  return fmt::format("the output `{}` of the shell task `{}` is {}, which has no part {}",
                     step.key.as_string(), def.name,
                     pattern == nullptr     ? "a string"
                     : is_pattern(*pattern) ? "a list of files"
                                            : "a file",
                     to_json(path[1].key));
}

// map:results { missing = "null" } is a part of its own, before all others.
bool is_places_part(const GraphBuilder& graph, uint32_t part) {
  return graph.parts[part].second.key.kind() == Value::Kind::missing;
}

std::vector<PathStep> path_of(const GraphBuilder& graph, uint32_t part) {
  std::vector<PathStep> path;
  for (; part != kWholeResult; part = graph.parts[part].first)
    if (!is_places_part(graph, part)) path.push_back(graph.parts[part].second);
  return {path.rbegin(), path.rend()};
}

bool keeps_places(const GraphBuilder& graph, uint32_t part) {
  for (; part != kWholeResult; part = graph.parts[part].first)
    if (is_places_part(graph, part)) return true;
  return false;
}

void check_part(lua_State* L, const GraphBuilder& graph, const Handle& handle,
                const PathStep& step) {
  const TaskObject* task = graph.node_tasks[handle.node];
  if (task == nullptr) return;
  if (task->def.kind == TaskKind::service)
    raise(L, fmt::format("the service `{}` has no part `{}`: its handle may be used with `:after` "
                         "or be returned",
                         task->def.name,
                         step.key.kind() == Value::Kind::string ? step.key.as_string()
                                                                : to_json(step.key)));
  if (task->def.kind != TaskKind::shell) return;
  std::string problem;
  {
    std::vector<PathStep> path = path_of(graph, handle.part);
    path.push_back(step);
    // The files of a folder (flow.list) are known when the task has run.
    bool is_listed = std::ranges::any_of(path, [](const PathStep& each) {
      return !each.each && each.key.kind() == Value::Kind::null;
    });
    if (is_listed) return;
    if (graph.plan.nodes[handle.node].kind == NodeKind::map) {
      bool of_all = path[0].each;
      bool of_one = !path[0].each && path[0].key.kind() == Value::Kind::integer;
      if (!of_all && !of_one) {
        problem = fmt::format(
            "`{}` is a map, whose result is a list: take an item, `[1].{}`, or `:each(\"{}\")`",
            graph.plan.nodes[handle.node].name,
            path[0].key.kind() == Value::Kind::string ? path[0].key.as_string() : "x",
            path[0].key.kind() == Value::Kind::string ? path[0].key.as_string() : "x");
      } else if (of_one) {
        path.erase(path.begin());
      }
    }
    if (problem.empty() && !path.empty()) problem = wrong_output(task->def, path);
  }
  if (!problem.empty()) raise(L, problem);
}

Value read_part_key(lua_State* L, int index, const char* where) {
  switch (lua_type(L, index)) {
    case LUA_TSTRING: {
      size_t size;
      const char* text = lua_tolstring(L, index, &size);
      return Value(std::string_view(text, size));
    }
    case LUA_TBOOLEAN:
      return Value(lua_toboolean(L, index) != 0);
    case LUA_TNUMBER: {
      int is_integer;
      lua_Integer number = lua_tointegerx(L, index, &is_integer);
      if (is_integer) return Value(static_cast<int64_t>(number));
      break;
    }
    default:
      break;
  }
  raise(L, fmt::format("{} takes the name or the number of a part, not {}", where,
                       kind_text(L, index)));
}

void push_part(lua_State* L, const Handle handle, PathStep step) {
  GraphBuilder& graph = *context(L).graph;
  check_part(L, graph, handle, step);
  graph.parts.emplace_back(handle.part, std::move(step));
  push_handle(L, graph, handle.node, static_cast<uint32_t>(graph.parts.size()) - 1);
}

const char* method_name(const GraphBuilder& graph, const Handle& handle, std::string_view key) {
  if (key == "after") return "after";
  if (key == "each") return "each";
  if (key == "part") return "part";
  bool is_map = handle.part == kWholeResult && graph.plan.nodes[handle.node].kind == NodeKind::map;
  bool is_task =
      handle.part == kWholeResult && graph.plan.nodes[handle.node].kind != NodeKind::when;
  if (is_task && key == "tag") return "tag";
  if (is_map && key == "limit") return "limit";
  return is_map && key == "results" ? "results" : nullptr;
}

int on_index(lua_State* L) {
  const Handle* handle = test_handle(L, 1);
  if (handle == nullptr) raise(L, "a handle's part is taken as `h.name` or `h[1]`");
  if (lua_type(L, 2) == LUA_TSTRING) {
    const char* method = method_name(*context(L).graph, *handle, lua_tostring(L, 2));
    if (method != nullptr) {
      auto* object = static_cast<Method*>(lua_newuserdatauv(L, sizeof(Method), 1));
      object->name = method;
      lua_pushvalue(L, 1);
      lua_setiuservalue(L, -2, 1);
      set_metatable(L, &kMethodKey);
      return 1;
    }
  } else if (lua_type(L, 2) == LUA_TNUMBER) {
    // ipairs, table.unpack and similar functions index from C and would never end.
    lua_Debug caller;
    if (lua_getstack(L, 1, &caller) && lua_getinfo(L, "S", &caller) && *caller.what == 'C')
      reject_handle(L, 1, "ipairs");
  }
  push_part(L, *handle, {false, read_part_key(L, 2, "`[…]` of a handle")});
  return 1;
}

// h.aftr(x) calls this, because `h.aftr` is a part.
int on_call(lua_State* L) {
  const Handle* handle = test_handle(L, 1);
  if (handle == nullptr) raise(L, "a handle is not called: call the task");
  const GraphBuilder& graph = *context(L).graph;
  std::string text = handle_text(graph, *handle), hint;
  if (handle->part != kWholeResult) {
    const PathStep& step = graph.parts[handle->part].second;
    if (!step.each && step.key.kind() == Value::Kind::string) {
      const std::string& name = step.key.as_string();
      if (name == "limit" || name == "results") {
        hint = fmt::format("; `:{}(…)` belongs to what flow.map returns", name);
      } else {
        std::string near = nearest_name(name, {"after", "each", "part", "tag", "limit", "results"});
        if (!near.empty()) hint = fmt::format(" (did you mean `:{}(…)`?)", near);
      }
    }
  }
  raise(L,
        fmt::format("`{}` is called, but it is a handle to a result that does not exist yet, not a "
                    "function: call a task, and pass it the handle{}",
                    text, hint));
}

// ---- methods

int call_after(lua_State* L, const Handle& self) {
  GraphBuilder& graph = *context(L).graph;
  int top = lua_gettop(L);
  if (top < 3) raise(L, "`:after` takes the handles to come after: h:after(a, b)");
  uint32_t line = current_line(L);
  for (int index = 3; index <= top; index++) {
    const Handle* before = test_handle(L, index);
    if (before == nullptr) {
      std::string misused = method_misuse(L, index);
      if (!misused.empty()) raise(L, misused);
      raise(L, fmt::format("`:after` takes handles, and argument {} is {}{}", index - 2,
                           kind_text(L, index),
                           lua_type(L, index) == LUA_TTABLE
                               ? ": write h:after(table.unpack(list))"
                               : ": a handle is what a call of a task returns"));
    }
    if (before->node == self.node)
      raise(L, fmt::format("`{}` would wait for itself: it can't come `:after` itself",
                           graph.plan.nodes[self.node].name));
    std::vector<uint32_t>& after = graph.plan.nodes[self.node].edit_detail().after;
    bool known = false;
    constexpr size_t kCompared = 64;  // beyond this, a duplicate is harmless
    for (size_t i = 0; i < after.size() && i < kCompared; i++)
      known = known || after[i] == before->node;
    if (known) continue;
    after.push_back(before->node);
    // Only an edge to a later node can close a cycle.
    if (before->node > self.node) graph.after_lines[{self.node, before->node}] = line;
  }
  lua_pushvalue(L, 2);
  return 1;
}

int call_limit(lua_State* L, const Handle& self) {
  int is_integer;
  lua_Integer count = lua_tointegerx(L, 3, &is_integer);
  if (!is_integer || lua_type(L, 3) != LUA_TNUMBER || count < 1 || count > UINT32_MAX)
    raise(L, "`:limit` takes how many instances may run at once: a whole number from 1");
  context(L).graph->plan.nodes[self.node].edit_detail().limit = static_cast<uint32_t>(count);
  lua_pushvalue(L, 2);
  return 1;
}

// map:results { missing = "null" }: the list with flow.null in the place of a missing item.
int call_results(lua_State* L, const Handle& self) {
  constexpr const char* kForm =
      "`:results` takes one table: map:results { missing = \"null\" } keeps the places of items "
      "that are missing, map:results { missing = \"omit\" } leaves them out as the map itself does";
  if (lua_gettop(L) != 3 || lua_type(L, 3) != LUA_TTABLE) raise(L, kForm);
  lua_pushnil(L);
  while (lua_next(L, 3)) {
    bool is_known = lua_type(L, -2) == LUA_TSTRING && !strcmp(lua_tostring(L, -2), "missing");
    if (!is_known) {
      std::string key = lua_type(L, -2) == LUA_TSTRING ? fmt::format("`{}`", lua_tostring(L, -2))
                                                       : kind_text(L, lua_gettop(L) - 1);
      raise(L, fmt::format("`:results` has the unknown option {}; it has: missing", key));
    }
    lua_pop(L, 1);
  }
  lua_getfield(L, 3, "missing");
  std::string_view form = lua_type(L, -1) == LUA_TSTRING ? lua_tostring(L, -1) : "";
  if (form != "null" && form != "omit") raise(L, kForm);
  GraphBuilder& graph = *context(L).graph;
  if (form == "omit") {
    lua_pushvalue(L, 2);
    return 1;
  }
  graph.parts.emplace_back(kWholeResult, PathStep{false, Value::missing()});
  push_handle(L, graph, self.node, static_cast<uint32_t>(graph.parts.size()) - 1);
  return 1;
}

// 1 is the method, 2 its handle, the rest are the arguments.
int on_method_call(lua_State* L) {
  const auto* method = static_cast<const Method*>(test_object(L, 1, &kMethodKey));
  if (method == nullptr) raise(L, "a handle's method is called as h:after(x)");
  lua_getiuservalue(L, 1, 1);
  bool own = lua_rawequal(L, -1, 2);
  lua_pop(L, 1);
  const Handle* self = test_handle(L, 2);
  std::string_view name = method->name;
  if (!own || self == nullptr)
    raise(L, fmt::format("`{0}` is called with a dot: write h:{0}(…), with a colon", name));
  Handle handle = *self;
  if (name == "after") return call_after(L, handle);
  if (name == "limit") return call_limit(L, handle);
  if (name == "tag") return call_tag(L, handle);
  if (name == "results") return call_results(L, handle);
  bool each = name == "each";
  if (lua_gettop(L) != 3) raise(L, fmt::format("`:{}` takes one name: h:{}(\"bam\")", name, name));
  push_part(L, handle, {each, read_part_key(L, 3, each ? "`:each`" : "`:part`")});
  return 1;
}

int on_method_misuse(lua_State* L) {
  std::string text = method_misuse(L, 1);
  if (text.empty()) text = method_misuse(L, 2);
  raise(L, text);
}

void add_methods(lua_State* L, lua_CFunction function, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    lua_pushcfunction(L, function);
    lua_setfield(L, -2, name);
  }
}

constexpr std::initializer_list<const char*> kArithmetic = {
    "__add",  "__sub",  "__mul", "__div",  "__mod", "__pow", "__unm",
    "__idiv", "__band", "__bor", "__bxor", "__shl", "__shr", "__bnot"};

}  // namespace

void open_handles(lua_State* L) {
  if (new_metatable(L, &kHandleKey, "handle")) {
    add_methods(L, on_arithmetic, kArithmetic);
    add_methods(L, on_concat, {"__concat"});
    add_methods(L, on_length, {"__len"});
    add_methods(L, on_compare, {"__eq", "__lt", "__le"});
    add_methods(L, on_assign, {"__newindex"});
    add_methods(L, on_pairs, {"__pairs"});
    add_methods(L, on_tostring, {"__tostring"});
    add_methods(L, on_index, {"__index"});
    add_methods(L, on_call, {"__call"});
  }
  lua_pop(L, 1);
  if (new_metatable(L, &kMethodKey, "method of a handle")) {
    add_methods(L, on_method_misuse, kArithmetic);
    add_methods(L, on_method_misuse,
                {"__concat", "__len", "__eq", "__lt", "__le", "__newindex", "__index", "__pairs",
                 "__tostring"});
    add_methods(L, on_method_call, {"__call"});
  }
  lua_pop(L, 1);
}

void push_handle(lua_State* L, const GraphBuilder& graph, uint32_t node, uint32_t part) {
  auto* handle = static_cast<Handle*>(lua_newuserdatauv(L, sizeof(Handle), 0));
  *handle = {&graph, node, part};
  set_metatable(L, &kHandleKey);
}

bool is_alive(const VmContext& ctx, const Handle& handle) {
  return ctx.graph != nullptr && handle.graph == ctx.graph &&
         handle.node < ctx.graph->plan.nodes.size() && handle.part < ctx.graph->parts.size();
}

const Handle* test_handle(lua_State* L, int index) {
  const Handle* handle = handle_at(L, index);
  if (handle == nullptr) return nullptr;
  if (!is_alive(context(L), *handle))
    raise(L,
          "this handle belongs to another graph: a handle lives only while the body that made "
          "it runs");
  return handle;
}

bool is_handle(lua_State* L, int index) { return handle_at(L, index) != nullptr; }

void push_files_part(lua_State* L, const Handle& handle) {
  GraphBuilder& graph = *context(L).graph;
  graph.parts.emplace_back(handle.part, PathStep{false, Value::null()});
  push_handle(L, graph, handle.node, static_cast<uint32_t>(graph.parts.size()) - 1);
}

Value ref_of(const GraphBuilder& graph, const Handle& handle) {
  return Value(Ref{handle.node, path_of(graph, handle.part), keeps_places(graph, handle.part)});
}

std::string handle_text(const GraphBuilder& graph, const Handle& handle) {
  if (handle.graph != &graph || handle.node >= graph.plan.nodes.size()) return "?";
  std::string text = graph.plan.nodes[handle.node].name;
  if (keeps_places(graph, handle.part)) text += ":results(…)";
  for (const PathStep& step : path_of(graph, handle.part)) {
    if (step.each) {
      text += ":each(" + to_json(step.key) + ")";
    } else if (step.key.kind() == Value::Kind::null) {
      text = "flow.list(" + text + ")";
    } else if (step.key.kind() == Value::Kind::string) {
      text += "." + step.key.as_string();
    } else {
      text += "[" + to_json(step.key) + "]";
    }
  }
  if (text.size() > kHandleShown) text = text.substr(0, kHandleShown) + "…";
  return text;
}

std::string describe_handle(lua_State* L, int index) {
  const Handle* handle = handle_at(L, index);
  if (handle == nullptr) return "";
  const GraphBuilder* graph = context(L).graph;
  return graph == nullptr ? "handle" : "handle " + handle_text(*graph, *handle);
}

void reject_handle(lua_State* L, int index, const char* use) {
  const Handle* handle = handle_at(L, index);
  if (handle == nullptr) {
    std::string text = method_misuse(L, index);
    if (!text.empty()) raise(L, text);
    return;
  }
  const GraphBuilder* graph = context(L).graph;
  std::string name = graph == nullptr ? "?" : handle_text(*graph, *handle);
  std::string_view word = use;
  bool walks = word == "pairs" || word == "ipairs" || word == "next" || word.starts_with("table.");
  raise(L, fmt::format(
               "`{}` of `{}`, which is a handle to a result that does not exist yet: {}", use, name,
               walks ? "flow.map(task, handle) runs a task for each item; or iterate in "
                       "a task that takes the handle"
                     : "make the text in a task that takes the handle (print shows a handle "
                       "by its name)"));
}

std::string method_misuse(lua_State* L, int index) {
  const auto* method = static_cast<const Method*>(test_object(L, index, &kMethodKey));
  if (method == nullptr) return "";
  return fmt::format(
      "`h.{0}` is a method that was not called: write h:{0}(…); for a field of that name write "
      "h:part(\"{0}\")",
      method->name);
}

}  // namespace flow::lua
