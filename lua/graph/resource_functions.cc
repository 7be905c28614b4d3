// Resource functions: memory = function(args, attempt) … end computes the option for one attempt.
// They run in a process that has built the graph again.
#include <fmt/format.h>

#include <algorithm>

#include "engine/value/outline.hpp"
#include "lua/sandbox/sandbox.hpp"
#include "lua/state/graph_builder.hpp"
#include "lua/state/time_limit.hpp"

namespace flow::lua {

namespace {

struct Evaluation {
  const TaskObject* task;
  uint8_t option;
  const Value* args;
  uint32_t attempt;
  TaskDef* def;  // gets the value
};

/// The positional arguments as a list; those with names also as fields.
Result<Value> function_arguments(const TaskDef& def, const ResourceCall& call) {
  Value::Table seen;
  if (!call.named_args) seen.list = call.args.as_table().list;
  if (def.kind == TaskKind::shell) {
    auto named = name_arguments(def.shell, def.name, call.args, call.named_args);
    FLOW_TRY(named);
    seen.fields = named->as_table().fields;
  }
  return outline_of(Value(std::move(seen)));
}

std::string defined_at(lua_State* L) {  // of the function at the top
  lua_Debug frame;
  lua_pushvalue(L, -1);
  lua_getinfo(L, ">S", &frame);
  return fmt::format("{}:{}: ", frame.source[0] == '@' ? frame.source + 1 : frame.short_src,
                     frame.linedefined);
}

int evaluate(lua_State* L) {
  auto& evaluation = *static_cast<Evaluation*>(lua_touserdata(L, 1));
  const GraphBuilder& graph = *context(L).graph;
  size_t nodes = graph.plan.nodes.size();
  lua_rawgeti(L, LUA_REGISTRYINDEX, evaluation.task->resource_functions.at(evaluation.option));
  push_value(L, *evaluation.args);
  lua_pushinteger(L, evaluation.attempt);
  lua_call(L, 2, 1);
  if (graph.plan.nodes.size() != nodes)
    raise(L, "a resource function calls a task: it only computes an option");
  read_resource_option(L, lua_gettop(L), *evaluation.def, evaluation.option);
  return 0;
}

/// "" or the error, with the place of the function if it has no other.
std::string call_function(lua_State* L, Evaluation& evaluation) {
  TimeLimit limit(L, "the function of a resource option took longer than 1 s");
  lua_pushcfunction(L, evaluate);
  lua_pushlightuserdata(L, &evaluation);
  sandbox(L).no_random =
      "a resource function has no random numbers, so that the same arguments always give the same "
      "value";
  int status = call_traced(L, 1, 0);
  sandbox(L).no_random = nullptr;
  if (status == LUA_OK) return "";
  std::string error = error_text(L, status);
  lua_settop(L, 0);
  lua_rawgeti(L, LUA_REGISTRYINDEX, evaluation.task->resource_functions.at(evaluation.option));
  std::string place = defined_at(L);
  lua_pop(L, 1);
  bool has_place = error.find(place.substr(0, place.find(':') + 1)) == 0;
  return has_place ? error : place + error;
}

const TaskObject* task_of(const GraphBuilder& graph, uint32_t def) {
  auto found = std::find_if(graph.def_of.begin(), graph.def_of.end(),
                            [&](const auto& each) { return each.second == def; });
  return found == graph.def_of.end() ? nullptr : found->first;
}

}  // namespace

CallResources resources_of_call(lua_State* L, const ResourceCall& call) {
  CallResources answer;
  const TaskObject* task = task_of(*context(L).graph, call.def);
  if (task == nullptr || task->resource_functions.empty()) {
    answer.error = "the script was built again, and the task has no function for its resources";
    return answer;
  }
  auto args = function_arguments(task->def, call);
  if (!args.ok()) {
    answer.error = args.error().message;
    return answer;
  }
  TaskDef def = task->def;
  for (const auto& [option, reference] : task->resource_functions) {
    if ((call.functions & option) == 0) continue;  // the configuration sets the option
    Evaluation evaluation{task, option, &*args, call.attempt, &def};
    answer.error = call_function(L, evaluation);
    if (!answer.error.empty()) return answer;
  }
  answer.resources = def.resources;
  answer.timeout_ms = def.timeout_ms;
  return answer;
}

}  // namespace flow::lua
