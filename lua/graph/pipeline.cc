// flow.pipeline: its definition, the execution of its body, and a pipeline called inside another's
// body.
#include <fmt/format.h>

#include <algorithm>

#include "lua/sandbox/sandbox.hpp"

namespace flow::lua {

const char kPipelineKey = 0;

namespace {

constexpr int kInlineDepthMax = 50;  // nesting of pipelines

struct PipelineHolder {
  PipelineObject* pipeline;
};

// ---- definition

std::vector<Parameter> read_schema(lua_State* L, int index, const std::string& pipeline) {
  std::vector<Parameter> schema;
  lua_pushnil(L);
  while (lua_next(L, index)) {
    if (lua_type(L, -2) != LUA_TSTRING)
      raise(L,
            fmt::format("the parameters of `{}` are a table of names, and it has the key that is "
                        "{}",
                        pipeline, kind_text(L, -2)));
    std::string name = lua_tostring(L, -2);
    const Parameter* parameter = test_param(L, -1);
    if (parameter == nullptr) {
      int type = lua_type(L, -1);
      const char* form = type == LUA_TNUMBER    ? (lua_isinteger(L, -1) ? "int" : "number")
                         : type == LUA_TBOOLEAN ? "boolean"
                                                : "string";
      std::string shown = "…";
      if (type == LUA_TNUMBER) {
        lua_pushvalue(L, -1);
        shown = lua_tostring(L, -1);
        lua_pop(L, 1);
      } else if (type == LUA_TBOOLEAN) {
        shown = lua_toboolean(L, -1) ? "true" : "false";
      }
      raise(L, fmt::format("the parameter `{0}` of `{1}` is {2}: write {0} = flow.param.{3} {{ "
                           "default = {4} }}",
                           name, pipeline, kind_text(L, -1), form, shown));
    }
    bool good = !name.empty() && name.find_first_of(" =,\t\n") == std::string::npos;
    if (!good)
      raise(
          L,
          fmt::format(
              "`{}` is not a valid name of a parameter: expected text without blanks, `=` and `,`",
              name));
    schema.push_back(*parameter);
    schema.back().spec.name = std::move(name);
    lua_pop(L, 1);
  }
  std::sort(schema.begin(), schema.end(),
            [](const Parameter& a, const Parameter& b) { return a.spec.name < b.spec.name; });
  return schema;
}

int define_pipeline(lua_State* L) {
  std::string name = check_text(L, 1, "the name of flow.pipeline");
  GraphBuilder& graph = loading_graph(L, "flow.pipeline", name);
  check_name(L, "flow.pipeline", name);
  int body = 2;
  auto pipeline = std::make_unique<PipelineObject>();
  pipeline->name = name;
  pipeline->where = text_of(current_location(L));
  if (lua_type(L, 2) == LUA_TTABLE || (lua_isnil(L, 2) && lua_gettop(L) > 2)) {
    if (lua_type(L, 2) == LUA_TTABLE) pipeline->params = read_schema(L, 2, name);
    body = 3;
  }
  if (lua_type(L, body) != LUA_TFUNCTION || lua_gettop(L) > body)
    raise(L,
          fmt::format("flow.pipeline of `{}`: {} is {}; write flow.pipeline(\"{}\", {{ parameters "
                      "}}, function(p) … end)",
                      name,
                      lua_gettop(L) > body ? fmt::format("argument {}", body + 1)
                                           : fmt::format("argument {}", body),
                      kind_text(L, lua_gettop(L) > body ? body + 1 : body), name));
  lua_pushvalue(L, body);
  pipeline->body_ref = luaL_ref(L, LUA_REGISTRYINDEX);
  auto* holder = static_cast<PipelineHolder*>(lua_newuserdatauv(L, sizeof(PipelineHolder), 0));
  holder->pipeline = pipeline.get();
  set_metatable(L, &kPipelineKey);
  graph.pipelines.push_back(std::move(pipeline));
  return 1;
}

// ---- a pipeline within a body

struct InlineScope {
  InlineScope(GraphBuilder& builder, std::string prefix)
      : graph(builder), outer(std::move(builder.prefix)) {
    graph.prefix = std::move(prefix);
  }
  ~InlineScope() { graph.prefix = std::move(outer); }
  GraphBuilder& graph;
  std::string outer;
};

Value bind_inline(lua_State* L, const PipelineObject& pipeline) {
  std::vector<std::string> names;
  for (const Parameter& parameter : pipeline.params) names.push_back(parameter.spec.name);
  Value given = Value::map({});
  if (lua_gettop(L) > 2 || (lua_gettop(L) == 2 && lua_type(L, 2) != LUA_TTABLE))
    raise(L,
          fmt::format("the pipeline `{}` is called with one table of parameters: {} {{ {} = … }}",
                      pipeline.name, pipeline.name, names.empty() ? "name" : names[0]));
  if (lua_gettop(L) == 2) {
    auto read = read_graph_value(L, 2, "parameters", 0, Refs::results);
    if (!read.ok())
      raise(L, fmt::format("the pipeline `{}` {}", pipeline.name, read.error().message));
    given = std::move(*read);
  }
  auto wrong = [&](const std::string& text) {
    raise(L, fmt::format("the pipeline `{}`: {}", pipeline.name, text));
  };
  if (!given.as_table().list.empty()) wrong("its parameters are named: { name = value }");
  for (const auto& [key, value] : given.as_table().fields) {
    std::string name = key.kind() == Value::Kind::string ? key.as_string() : to_json(key);
    if (std::find(names.begin(), names.end(), name) == names.end())
      wrong(fmt::format("unknown parameter `{}`{}; {}", name, did_you_mean(name, names),
                        names.empty() ? "it has none" : "its parameters are: " + join(names)));
  }
  std::vector<std::pair<Value, Value>> bound;
  for (const auto& [spec, where] : pipeline.params) {
    const Value* value = given.find(spec.name);
    if (value == nullptr && !spec.has_default)
      wrong(fmt::format("the parameter `{}` is required", spec.name));
    std::string problem;
    Value settled = coerce_param(spec, value == nullptr ? spec.default_value : *value,
                                 context(L).root, context(L).list_inputs, problem);
    if (!problem.empty()) wrong(fmt::format("the parameter `{}` {}", spec.name, problem));
    bound.emplace_back(Value(spec.name), std::move(settled));
  }
  return Value::map(std::move(bound));
}

int call_pipeline(lua_State* L) {
  const PipelineObject& pipeline = *static_cast<PipelineHolder*>(lua_touserdata(L, 1))->pipeline;
  GraphBuilder& graph = building_graph(L, "the pipeline `" + pipeline.name + "`");
  if (context(L).phase == ScriptPhase::task)
    raise(L,
          fmt::format("the pipeline `{}` is called inside a dynamic task, which calls tasks only",
                      pipeline.name));
  if (std::count(graph.prefix.begin(), graph.prefix.end(), '/') >= kInlineDepthMax)
    raise(L, fmt::format("the pipeline `{}` is inlined within itself: pipelines nest to {} at most",
                         pipeline.name, kInlineDepthMax));
  int top = lua_gettop(L);
  {
    Value params = bind_inline(L, pipeline);
    lua_rawgeti(L, LUA_REGISTRYINDEX, pipeline.body_ref);
    push_params(L, params);
  }
  InlineScope scope(graph, next_name(graph, pipeline.name) + "/");
  lua_call(L, 1, LUA_MULTRET);
  return lua_gettop(L) - top;
}

int pipeline_index(lua_State* L) {
  const PipelineObject* pipeline = test_pipeline(L, 1);
  raise(L,
        fmt::format("`{}` is a pipeline and has no parts: call it in another pipeline's body, and "
                    "use the parts of its result",
                    pipeline == nullptr ? "?" : pipeline->name));
}

int pipeline_text(lua_State* L) {
  const PipelineObject* pipeline = test_pipeline(L, 1);
  std::string text = "pipeline " + (pipeline == nullptr ? "" : pipeline->name);
  lua_pushlstring(L, text.data(), text.size());
  return 1;
}

// ---- the body

struct BodyRun {
  GraphBuilder& graph;
  const PipelineObject& pipeline;
  const Value& params;
};

std::string body_location(lua_State* L, int index) {
  lua_Debug about;
  lua_pushvalue(L, index);
  lua_getinfo(L, ">S", &about);
  return fmt::format("{}:{}: ", about.source[0] == '@' ? about.source + 1 : about.short_src,
                     about.linedefined);
}

int run_protected(lua_State* L) {
  BodyRun& run = *static_cast<BodyRun*>(lua_touserdata(L, 1));
  lua_settop(L, 0);
  lua_rawgeti(L, LUA_REGISTRYINDEX, run.pipeline.body_ref);
  std::string subject = body_location(L, 1) + "the body of pipeline `" + run.pipeline.name + "` ";
  BodyChangeDetector watch(L, 1);
  lua_pushvalue(L, 1);
  push_params(L, run.params);
  lua_call(L, 1, LUA_MULTRET);
  while (lua_gettop(L) > 2 && lua_isnil(L, -1)) lua_pop(L, 1);
  if (lua_gettop(L) > 2)
    raise(L,
          subject + fmt::format("returned {} values, the second {} at result 2: return one table",
                                lua_gettop(L) - 1, kind_text(L, 3)));
  lua_settop(L, 2);
  auto result = read_graph_value(L, 2, "result", 0, Refs::everything);
  if (!result.ok()) raise(L, subject + result.error().message);
  run.graph.plan.result = std::move(*result);
  std::string change = watch.first_change();
  if (!change.empty())
    raise(L, subject + change +
                 ": no task would see it, because each starts from the state that the load "
                 "left; pass it as an argument");
  std::string cycle = find_cycle(run.graph);
  if (!cycle.empty()) raise(L, cycle);
  return 0;
}

// A dynamic task may call any task by its ordinal.
void number_by_ordinal(GraphBuilder& graph) {
  bool dynamic = std::any_of(graph.plan.defs.begin(), graph.plan.defs.end(),
                             [](const TaskDef& def) { return def.kind == TaskKind::dynamic; });
  if (!dynamic) return;
  // A cached list of calls uses ordinals too: it is valid only while the order of tasks is the
  // same.
  std::vector<Value> names;
  for (const auto& task : graph.tasks) names.emplace_back(task->def.file + ":" + task->def.name);
  for (const auto& variant : graph.variants)
    names.emplace_back("variant of " + std::to_string(variant->def.ordinal));
  CodeComponent order{"the script's tasks, in order",
                      sha256(encode_value(Value::list(std::move(names)))), ""};
  graph.plan.defs.clear();
  graph.def_of.clear();
  for (const auto& task : graph.tasks) {
    graph.def_of[task.get()] = task->def.ordinal;
    TaskDef& def = graph.plan.defs.emplace_back(task->def);
    if (def.kind != TaskKind::dynamic) continue;
    def.code = sha256(std::string(def.code.view()) + std::string(order.digest.view()));
    def.code_components.push_back(order);
  }
  for (const auto& variant : graph.variants) {
    graph.def_of[variant.get()] = static_cast<uint32_t>(graph.plan.defs.size());
    TaskDef& def = graph.plan.defs.emplace_back(variant->def);
    def.code = graph.plan.defs[def.ordinal].code;
    def.code_components = graph.plan.defs[def.ordinal].code_components;
  }
  for (size_t i = 0; i < graph.plan.nodes.size(); i++)
    if (graph.node_tasks[i] != nullptr)
      graph.plan.nodes[i].def = graph.def_of.at(graph.node_tasks[i]);
}

struct PhaseScope {
  PhaseScope(VmContext& context, GraphBuilder& graph)
      : ctx(context), phase(context.phase), outer(context.graph) {
    ctx.phase = ScriptPhase::building;
    ctx.graph = &graph;
  }
  ~PhaseScope() {
    ctx.phase = phase;
    ctx.graph = outer;
  }
  VmContext& ctx;
  ScriptPhase phase;
  GraphBuilder* outer;
};

}  // namespace

const PipelineObject* test_pipeline(lua_State* L, int index) {
  auto* holder = static_cast<PipelineHolder*>(test_object(L, index, &kPipelineKey));
  return holder == nullptr ? nullptr : holder->pipeline;
}

void open_pipelines(lua_State* L, int flow) {
  if (new_metatable(L, &kPipelineKey, "pipeline")) {
    lua_pushcfunction(L, call_pipeline);
    lua_setfield(L, -2, "__call");
    lua_pushcfunction(L, pipeline_index);
    lua_setfield(L, -2, "__index");
    lua_pushcfunction(L, pipeline_text);
    lua_setfield(L, -2, "__tostring");
  }
  lua_pop(L, 1);
  lua_pushcfunction(L, define_pipeline);
  lua_setfield(L, flow, "pipeline");
}

void describe_pipeline(const PipelineObject& pipeline, Plan& plan) {
  plan.pipeline = pipeline.name;
  for (const Parameter& parameter : pipeline.params) plan.params_schema.push_back(parameter.spec);
}

Status run_body(lua_State* L, GraphBuilder& graph, const PipelineObject& pipeline,
                const Value& params) {
  int top = lua_gettop(L);
  PhaseScope scope(context(L), graph);
  describe_pipeline(pipeline, graph.plan);
  graph.plan.params = params;
  constexpr size_t kNodesAhead = 1 << 14;  // if the pages are not used, this costs no memory
  graph.plan.nodes.reserve(kNodesAhead);
  BodyRun run{graph, pipeline, params};
  luaL_checkstack(L, 8, "running a pipeline's body");
  lua_pushcfunction(L, [](lua_State* state) -> int {
    if (lua_type(state, 1) != LUA_TSTRING) push_error_text(state, 1);
    return 1;
  });
  lua_pushcfunction(L, run_protected);
  lua_pushlightuserdata(L, &run);
  int status = lua_pcall(L, 1, 0, top + 1);
  if (status != LUA_OK) {
    const char* text = lua_tostring(L, -1);
    Status failed = user_error(text == nullptr ? "the pipeline's body raised an error" : text);
    lua_settop(L, top);
    return failed;
  }
  lua_settop(L, top);
  number_by_ordinal(graph);
  return {};
}

// ---- cycles

namespace {

// A `when` is two vertices: it selects a branch (vertex i), and later joins the branch's result (n
// + i).
struct CycleFinder {
  const GraphBuilder& graph;
  size_t count = graph.plan.nodes.size();

  size_t joined(uint32_t node) const {
    return graph.plan.nodes[node].kind == NodeKind::when ? count + node : node;
  }

  void needs_of(size_t vertex, std::vector<size_t>& needs) const {
    const TaskNode& node = graph.plan.nodes[vertex % count];
    std::vector<uint32_t> nodes;
    if (vertex >= count) {
      needs.push_back(vertex - count);
      nodes = refs_of(node.detail().then_value);
      for (uint32_t other : refs_of(node.detail().else_value)) nodes.push_back(other);
    } else {
      if (node.guard.when != kNoNode) needs.push_back(node.guard.when);
      nodes = data_dependencies(node);
      nodes.insert(nodes.end(), node.detail().after.begin(), node.detail().after.end());
    }
    for (uint32_t other : nodes) needs.push_back(joined(other));
  }

  // The vertices of a cycle, or none.
  std::vector<size_t> find() const {
    enum VisitState : uint8_t { kNew, kOpen, kDone };
    struct SearchFrame {
      size_t vertex;
      std::vector<size_t> needs;
      size_t next = 0;
    };
    std::vector<uint8_t> marks(2 * count, kNew);
    for (const auto& [edge, line] : graph.after_lines) {
      size_t root = joined(edge.first);
      if (marks[root] != kNew) continue;
      std::vector<SearchFrame> path(1);
      path[0].vertex = root;
      needs_of(root, path[0].needs);
      marks[root] = kOpen;
      while (!path.empty()) {
        SearchFrame& step = path.back();
        if (step.next == step.needs.size()) {
          marks[step.vertex] = kDone;
          path.pop_back();
          continue;
        }
        size_t need = step.needs[step.next++];
        if (marks[need] == kDone) continue;
        if (marks[need] == kOpen) {
          std::vector<size_t> cycle;
          size_t first = path.size();
          while (path[--first].vertex != need) {
          }
          for (; first < path.size(); first++) cycle.push_back(path[first].vertex);
          return cycle;
        }
        marks[need] = kOpen;
        SearchFrame deeper;
        deeper.vertex = need;
        needs_of(need, deeper.needs);
        path.push_back(std::move(deeper));
      }
    }
    return {};
  }
};

}  // namespace

std::string find_cycle(const GraphBuilder& graph) {
  if (graph.after_lines.empty()) return "";
  CycleFinder finder{graph};
  std::vector<size_t> cycle = finder.find();
  if (cycle.empty()) return "";
  std::vector<uint32_t> nodes;
  for (size_t vertex : cycle) {
    auto node = static_cast<uint32_t>(vertex % finder.count);
    if (nodes.empty() || nodes.back() != node) nodes.push_back(node);
  }
  if (nodes.size() > 1 && nodes.front() == nodes.back()) nodes.pop_back();
  auto name = [&](size_t i) { return "`" + graph.plan.nodes[nodes[i % nodes.size()]].name + "`"; };
  std::string chain = name(0), edges;
  constexpr size_t kShown = 12;
  for (size_t i = 1; i <= nodes.size() && i <= kShown; i++) chain += " waits for " + name(i);
  if (nodes.size() > kShown) chain += " …";
  uint32_t line = 0;
  for (size_t i = 0; i < nodes.size(); i++) {
    auto found = graph.after_lines.find({nodes[i], nodes[(i + 1) % nodes.size()]});
    if (found == graph.after_lines.end()) continue;
    if (line == 0) line = found->second;
    edges += fmt::format("{}line {}", edges.empty() ? "" : ", ", found->second);
  }
  const TaskObject* task = graph.node_tasks[nodes[0]];
  std::string file = task == nullptr ? "the pipeline" : task->def.file;
  return fmt::format(
      "{}:{}: an `:after` closes a cycle, so none of its tasks could ever start: {}; remove "
      "the `:after` of {}",
      file, line, chain, edges);
}

}  // namespace flow::lua
