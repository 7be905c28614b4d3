// flow.map and flow.when: nodes whose instances or branch are known only when the run executes.
#include <fmt/format.h>

#include "lua/state/graph_builder.hpp"

namespace flow::lua {

namespace {

// ---- map

const TaskObject& check_mapped_task(lua_State* L) {
  if (const TaskObject* task = test_task(L, 1)) {
    if (task->def.kind == TaskKind::service)
      raise(L, fmt::format("flow.map: `{}` is a service, which is called once", task->def.name));
    return *task;
  }
  const char* advice = "";
  if (lua_type(L, 1) == LUA_TFUNCTION)
    advice = ": make it a task with flow.task(\"name\", function(ctx, item) … end)";
  if (is_handle(L, 1)) advice = ": the task comes first, flow.map(task, list)";
  raise(L, fmt::format("flow.map takes a task first, and this is {}{}", kind_text(L, 1), advice));
}

// The length of the list 1..n at `index`. Raises for another table. `name`: of the task.
lua_Integer list_length(lua_State* L, int index, const std::string& name) {
  auto wrong = [&](const std::string& why) {
    raise(L, fmt::format("flow.map of `{}`: {}", name, why));
  };
  if (lua_getmetatable(L, index)) wrong("the list has a metatable; pass a plain list 1..n");
  lua_Integer count = 0, highest = 0;
  lua_pushnil(L);
  while (lua_next(L, index)) {
    if (!lua_isinteger(L, -2)) {
      std::string key = lua_type(L, -2) == LUA_TSTRING ? fmt::format("`{}`", lua_tostring(L, -2))
                                                       : kind_text(L, -2);
      wrong(
          fmt::format("the table has the key {}, so it is not a list; flow.map takes a list "
                      "1..n: make a list of its values, or wrap the one item, {{ item }}",
                      key));
    }
    lua_Integer key = lua_tointeger(L, -2);
    if (key < 1) wrong(fmt::format("the list has an item at {}; a list starts at 1", key));
    highest = std::max(highest, key);
    count++;
    lua_pop(L, 1);
  }
  if (count != highest) {
    lua_Integer hole = 1;
    for (; hole <= highest; hole++) {
      bool is_nil = lua_rawgeti(L, index, hole) == LUA_TNIL;
      lua_pop(L, 1);
      if (is_nil) break;
    }
    wrong(
        fmt::format("the list has nil at {} and an item at {}; put flow.null where an item is "
                    "missing, or leave it out",
                    hole, highest));
  }
  return count;
}

// The items of a Lua list, each with its handles.
Value read_items(lua_State* L, int index, const std::string& task) {
  lua_Integer count = list_length(L, index, task);
  std::vector<Value> items;
  items.reserve(static_cast<size_t>(count));
  std::string problem;
  for (lua_Integer i = 1; i <= count && problem.empty(); i++) {
    lua_rawgeti(L, index, i);
    auto item = read_graph_value(L, -1, "item", 0, Refs::results, 1);
    lua_pop(L, 1);
    if (item.ok()) {
      items.push_back(std::move(*item));
    } else {
      problem = item.error().message;
      size_t at = problem.find(" at item");
      if (at != std::string::npos) problem.insert(at + 8, fmt::format(" {}", i));
    }
  }
  if (!problem.empty()) raise(L, fmt::format("`{}` {}", task, problem));
  return Value(Value::Table{std::move(items), {}});
}

// Calls the pipeline at 1 for each item of the list at 2 and pushes the list of what it returned.
int map_pipeline(lua_State* L, const PipelineObject& pipeline) {
  if (lua_type(L, 2) != LUA_TTABLE)
    raise(L, fmt::format("flow.map of the pipeline `{}` takes a list of tables of parameters that "
                         "is known while the graph is built, and this is {}: for a list that a "
                         "task returns, map a task, or call tasks in a flow.dynamic",
                         pipeline.name, kind_text(L, 2)));
  if (lua_gettop(L) > 2)
    raise(L, fmt::format("flow.map of the pipeline `{}` takes no more arguments: put them into "
                         "each item's table of parameters",
                         pipeline.name));
  lua_Integer count = list_length(L, 2, pipeline.name);
  lua_createtable(L, static_cast<int>(count), 0);
  for (lua_Integer i = 1; i <= count; i++) {
    lua_pushvalue(L, 1);
    if (lua_rawgeti(L, 2, i) != LUA_TTABLE)
      raise(L, fmt::format("flow.map of the pipeline `{}`: item {} is {}, and a pipeline is called "
                           "with a table of parameters",
                           pipeline.name, i, kind_text(L, -1)));
    lua_call(L, 1, 1);
    if (lua_isnil(L, -1)) {  // keeps the place
      lua_pop(L, 1);
      lua_pushlightuserdata(L, const_cast<char*>(&kNullKey));
    }
    lua_rawseti(L, -2, i);
  }
  return 1;
}

int make_map(lua_State* L) {
  GraphBuilder& graph = building_graph(L, "flow.map");
  if (const PipelineObject* pipeline = test_pipeline(L, 1)) return map_pipeline(L, *pipeline);
  const TaskObject& task = check_mapped_task(L);
  TaskNode node;
  node.kind = NodeKind::map;
  node.line = current_line(L);
  node.guard = graph.guard;
  if (const Handle* handle = test_handle(L, 2)) {
    const TaskObject* maker = graph.node_tasks[handle->node];
    if (maker != nullptr && maker->def.kind == TaskKind::service)
      raise(L, fmt::format("flow.map of `{}`: the service `{}` has no result to map over",
                           task.def.name, maker->def.name));
    node.edit_detail().items = ref_of(graph, *handle);
  } else if (lua_type(L, 2) == LUA_TTABLE) {
    node.edit_detail().items = read_items(L, 2, task.def.name);
  } else {
    std::string misused = method_misuse(L, 2);
    if (!misused.empty()) raise(L, misused);
    raise(L, fmt::format("flow.map of `{}` takes a list 1..n or a handle to one, and this is "
                         "{}",
                         task.def.name, kind_text(L, 2)));
  }
  node.args = read_arguments(L, 3, task.def.name);
  if (task.def.kind == TaskKind::shell) check_shell_map(L, task, node);
  node.def = def_index(L, graph, task);
  node.name = next_name(graph, task.def.name);
  add_node(L, graph, std::move(node), &task);
  return 1;
}

// ---- when

struct GuardScope {
  GuardScope(GraphBuilder& builder, Guard guard) : graph(builder), outer(builder.guard) {
    graph.guard = guard;
  }
  ~GuardScope() { graph.guard = outer; }
  GraphBuilder& graph;
  Guard outer;
};

// Calls the function at `index` and leaves its one result at the top.
void call_branch(lua_State* L, int index, const char* branch) {
  int top = lua_gettop(L);
  lua_pushvalue(L, index);
  lua_call(L, 0, LUA_MULTRET);
  if (lua_gettop(L) > top + 1)
    raise(L, fmt::format("flow.when: the {} branch returns {} values; return one, a table if needed"
                         "be",
                         branch, lua_gettop(L) - top));
  lua_settop(L, top + 1);
}

Value build_branch(lua_State* L, GraphBuilder& graph, int index, Guard guard) {
  if (lua_isnoneornil(L, index)) return {};
  const char* branch = guard.then_branch ? "first" : "second";
  {
    GuardScope scope(graph, guard);
    call_branch(L, index, branch);
  }
  auto value = read_graph_value(L, -1, "result", 0, Refs::everything);
  lua_pop(L, 1);
  if (!value.ok())
    raise(L, fmt::format("flow.when: the {} branch {}", branch, value.error().message));
  return std::move(*value);
}

void check_branches(lua_State* L) {
  if (lua_type(L, 2) != LUA_TFUNCTION)
    raise(L, fmt::format("flow.when takes a handle and one or two functions, and argument 2 is {}: "
                         "write flow.when(handle, function() … end)",
                         kind_text(L, 2)));
  if (!lua_isnoneornil(L, 3) && lua_type(L, 3) != LUA_TFUNCTION)
    raise(L, fmt::format("flow.when: argument 3, the branch for a false condition, is {} and no "
                         "function",
                         kind_text(L, 3)));
  if (lua_gettop(L) > 3) raise(L, "flow.when takes a condition and two functions at most");
}

int when_plain(lua_State* L) {
  const void* light = lua_type(L, 1) == LUA_TLIGHTUSERDATA ? lua_touserdata(L, 1) : nullptr;
  bool is_null = light == &kNullKey || light == &kMissingKey;
  bool side = lua_toboolean(L, 1) && !is_null;
  int branch = side ? 2 : 3;
  if (lua_isnoneornil(L, branch)) {
    lua_pushnil(L);
  } else {
    call_branch(L, branch, side ? "first" : "second");
  }
  return 1;
}

int make_when(lua_State* L) {
  GraphBuilder& graph = building_graph(L, "flow.when");
  check_branches(L);
  lua_settop(L, 3);
  std::string misused = method_misuse(L, 1);
  if (!misused.empty()) raise(L, "flow.when: " + misused);
  const Handle* handle = test_handle(L, 1);
  if (handle == nullptr) return when_plain(L);
  const TaskObject* maker = graph.node_tasks[handle->node];
  if (maker != nullptr && maker->def.kind == TaskKind::service)
    raise(L,
          fmt::format("flow.when: the service `{}` has no result to decide on", maker->def.name));
  auto index = static_cast<uint32_t>(graph.plan.nodes.size());
  {
    TaskNode node;
    node.kind = NodeKind::when;
    node.line = current_line(L);
    node.guard = graph.guard;
    node.edit_detail().condition = ref_of(graph, *handle);
    node.name = next_name(graph, "when");
    add_node(L, graph, std::move(node), nullptr);
  }
  Value then_value = build_branch(L, graph, 2, {index, true});
  Value else_value = build_branch(L, graph, 3, {index, false});
  graph.plan.nodes[index].edit_detail().then_value = std::move(then_value);
  graph.plan.nodes[index].edit_detail().else_value = std::move(else_value);
  return 1;
}

}  // namespace

void open_flow_control(lua_State* L, int flow) {
  lua_pushcfunction(L, make_map);
  lua_setfield(L, flow, "map");
  lua_pushcfunction(L, make_when);
  lua_setfield(L, flow, "when");
}

}  // namespace flow::lua
