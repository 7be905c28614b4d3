// Tags: h:tag("s3") names a node, map:tag(function(item) … end) names each instance.
#include "engine/plan/tag.hpp"

#include <fmt/format.h>

#include "engine/value/outline.hpp"
#include "flow/tags.hpp"
#include "lua/state/graph_builder.hpp"
#include "lua/state/time_limit.hpp"

namespace flow::lua {

namespace {

void add_tag(lua_State* L, GraphBuilder& graph, const std::string& name, const std::string& tag) {
  auto [place, is_new] = graph.tagged.try_emplace(tagged_name(name, tag), name);
  if (is_new) return;
  raise(L, fmt::format("the tag `{}` of `{}` is already that of `{}`: tags are unique among all "
                       "calls of a task in a run",
                       tag, name, place->second));
}

std::string checked_tag(lua_State* L, int index, const std::string& of) {
  if (lua_type(L, index) != LUA_TSTRING) {
    raise(L, fmt::format("the tag of `{}` is a string such as \"s3\", not {}", of,
                         kind_text(L, index)));
  }
  size_t size;
  const char* text = lua_tolstring(L, index, &size);
  std::string tag(text, size), problem = tag_problem(tag);
  if (!problem.empty())
    raise(L, fmt::format("`{}` can't be the tag of `{}`: {}", tag.substr(0, kTagMax), of, problem));
  return tag;
}

void tag_items(lua_State* L, GraphBuilder& graph, uint32_t index) {
  const size_t count = graph.plan.nodes[index].detail().items.as_table().list.size();
  const std::string map = graph.plan.nodes[index].name;
  std::vector<std::string> tags;
  tags.reserve(count);
  for (size_t i = 0; i < count; i++) {
    Value item =
        graph.plan.nodes[index].detail().items.as_table().list[i];  // the function may add nodes
    push_value(L, item);
    tags.push_back(item_tag(L, 3, map, i + 1));
    add_tag(L, graph, fmt::format("{}[{}]", map, i + 1), tags.back());
  }
  graph.plan.nodes[index].edit_detail().item_tags = std::move(tags);
}

}  // namespace

std::string item_tag(lua_State* L, int index, const std::string& map, size_t item) {
  GraphBuilder* graph = context(L).graph;
  size_t nodes = graph == nullptr ? 0 : graph->plan.nodes.size();
  lua_pushvalue(L, index);
  lua_insert(L, -2);
  lua_call(L, 1, 1);
  if (graph != nullptr && graph->plan.nodes.size() != nodes)
    raise(L, fmt::format("the tag function of `{}` calls a task: it only names an item", map));
  std::string tag = checked_tag(L, -1, fmt::format("{}[{}]", map, item));
  lua_pop(L, 1);
  return tag;
}

Status tags_of_items(lua_State* L, const TagRequest& request, std::vector<std::string>& tags) {
  GraphBuilder& graph = *context(L).graph;
  auto function = graph.tag_functions.find(request.node);
  if (function == graph.tag_functions.end())
    return internal_error("the script was built again, and the map has no tag function");
  const std::string map = graph.plan.nodes[request.node].name;
  lua_rawgeti(L, LUA_REGISTRYINDEX, function->second);
  int index = lua_gettop(L);
  for (const Value& item : request.items) {
    push_value(L, outline_of(item));
    TimeLimit limit(L, "the tag function took longer than 1 s for one item");
    tags.push_back(item_tag(L, index, map, tags.size() + 1));
  }
  lua_settop(L, index - 1);
  return {};
}

int call_tag(lua_State* L, const Handle& self) {
  GraphBuilder& graph = *context(L).graph;
  const std::string name = graph.plan.nodes[self.node].name;
  bool is_map = graph.plan.nodes[self.node].kind == NodeKind::map;
  const TaskNode& before = graph.plan.nodes[self.node];
  if (!before.detail().tag.empty() || !before.detail().item_tags.empty() ||
      before.detail().tags_items)
    raise(L, fmt::format("`{}` has a tag already", name));
  if (lua_gettop(L) != 3) raise(L, "`:tag` takes one tag: h:tag(\"s3\")");
  if (!is_map) {
    std::string tag = checked_tag(L, 3, name);
    add_tag(L, graph, name, tag);
    graph.plan.nodes[self.node].edit_detail().tag = std::move(tag);
  } else if (lua_type(L, 3) != LUA_TFUNCTION) {
    raise(L, fmt::format("`{}` is a map, so `:tag` takes a function that names each item, "
                         "map:tag(function(item) return item.sample end), not {}",
                         name, kind_text(L, 3)));
  } else if (graph.plan.nodes[self.node].detail().items.kind() == Value::Kind::table) {
    tag_items(L, graph, self.node);
  } else if (context(L).phase == ScriptPhase::task) {
    raise(L, fmt::format("`{}` maps over a handle in a dynamic task, where `:tag` takes no "
                         "function: map over a list that the task has, or pass the list to "
                         "another dynamic task",
                         name));
  } else {
    lua_pushvalue(L, 3);
    graph.tag_functions[self.node] = luaL_ref(L, LUA_REGISTRYINDEX);
    graph.plan.nodes[self.node].edit_detail().tags_items = true;
  }
  lua_pushvalue(L, 2);
  return 1;
}

}  // namespace flow::lua
