// Calls of shell tasks: one plain table means named arguments, anything else is positional, and the
// command's placeholders are checked against them while building.
#include <fmt/format.h>

#include <algorithm>

#include "lua/graph/shell_template.hpp"
#include "lua/state/graph_builder.hpp"

namespace flow::lua {

namespace {

void raise_if(lua_State* L, const std::string& problem) {
  if (!problem.empty()) raise(L, problem);
}

constexpr const char* kPort = "port";
constexpr const char* kPortIsTaken =
    "no argument can be named `port`, which is the port that flow gives to the server";

/// Whether the command starts a server, at `{port}`.
bool has_port(const TaskDef& def) { return def.kind == TaskKind::service; }

/// The names that the command may use.
std::vector<std::string> with_port(const TaskDef& def, std::vector<std::string> names) {
  if (has_port(def)) names.emplace_back(kPort);
  return names;
}

std::string port_problem(const TaskDef& def, const std::vector<CommandPart>& parts) {
  bool names_port = std::ranges::any_of(
      parts, [](const CommandPart& part) { return part.is_placeholder && part.text == kPort; });
  if (!has_port(def) || names_port) return "";
  return fmt::format(
      "task `{}`: the command does not name `{{port}}`, the port at which its server must listen "
      "on 127.0.0.1: write for example [[server --port {{port}}]]",
      def.name);
}

std::string command_problem(const TaskDef& def, const std::vector<std::string>& names) {
  auto parts = parse_command(def.shell, with_port(def, names));
  if (!parts.ok()) return fmt::format("task `{}`, {}", def.name, parts.error().message);
  if (std::string problem = port_problem(def, *parts); !problem.empty()) return problem;
  bool no_memory = def.resources.memory_bytes == 0 &&
                   (def.resource_functions & kMemoryFunction) == 0 &&
                   std::find(names.begin(), names.end(), "memory") == names.end();
  for (const CommandPart& part : *parts)
    if (part.is_placeholder && part.text == "memory" && no_memory)
      return fmt::format(
          "task `{}`: the command names `{{memory}}`, and the task has no option "
          "`memory`: add it, memory = \"2GiB\"",
          def.name);
  std::string problem = outputs_problem(def.shell, names);
  return problem.empty() ? "" : fmt::format("task `{}`: {}", def.name, problem);
}

std::vector<std::string> names_of(const Value& table) {
  std::vector<std::string> names;
  for (const auto& [key, value] : table.as_table().fields)
    if (key.kind() == Value::Kind::string) names.push_back(key.as_string());
  return names;
}

// `{a.b}` of an argument whose fields are known while building.
std::string field_problem(const CommandPart& part, const Value& named) {
  if (part.path.size() < 2) return "";
  const Value* value = named.find(part.path[0]);
  if (value == nullptr || value->kind() != Value::Kind::table) return "";
  const std::string& field = part.path[1];
  if (value->find(field) != nullptr) return "";
  if (field.find_first_not_of("0123456789") == std::string::npos) return "";
  return fmt::format("the command names `{{{}}}`, and `{}` has no field `{}`{}", part.text,
                     part.path[0], field, did_you_mean(field, names_of(*value)));
}

// Checks the known parts of the arguments against the command's placeholders.
std::string literal_problem(const TaskDef& def, const Value& named) {
  auto parts = parse_command(def.shell, with_port(def, names_of(named)));
  if (!parts.ok()) return "";
  for (const CommandPart& part : *parts) {
    if (!part.is_placeholder) continue;
    std::string problem = field_problem(part, named);
    if (problem.empty()) problem = filling_problem(part, def.shell, named);
    if (!problem.empty()) return fmt::format("task `{}`: {}", def.name, problem);
  }
  std::string problem = outputs_value_problem(def.shell, named);
  return problem.empty() ? "" : fmt::format("task `{}`: {}", def.name, problem);
}

std::string named_call_problem(const TaskDef& def, const Value& table) {
  std::string problem = named_problem(def.shell, def.name, table);
  if (problem.empty() && has_port(def) && table.find(std::string_view(kPort)) != nullptr)
    problem = fmt::format("`{}`: {}", def.name, kPortIsTaken);
  // With `args` the command was checked when the task was defined.
  if (problem.empty() && def.shell.args.empty()) problem = command_problem(def, names_of(table));
  if (problem.empty()) problem = literal_problem(def, table);
  return problem;
}

std::string positional_call_problem(const TaskDef& def, const std::vector<Value>& list) {
  std::string problem = positional_problem(def.shell, def.name, list.size());
  if (!problem.empty()) return problem;
  if (def.shell.args.empty()) return command_problem(def, {});
  std::vector<std::pair<Value, Value>> fields;
  for (size_t i = 0; i < list.size(); i++) {
    if (list[i].is_nil())
      return fmt::format("`{}` is called with nil for its argument `{}`", def.name,
                         def.shell.args[i]);
    fields.emplace_back(Value(def.shell.args[i]), list[i]);
  }
  return literal_problem(def, Value::map(std::move(fields)));
}

}  // namespace

void check_shell_definition(lua_State* L, const TaskDef& def) {
  const std::vector<std::string>& args = def.shell.args;
  for (size_t i = 0; i < args.size(); i++) {
    std::string problem = argument_name_problem(args[i]);
    if (has_port(def) && args[i] == kPort) problem = kPortIsTaken;
    if (problem.empty() && std::find(args.begin(), args.begin() + static_cast<std::ptrdiff_t>(i),
                                     args[i]) != args.begin() + static_cast<std::ptrdiff_t>(i))
      problem = fmt::format("`{}` is named twice", args[i]);
    if (!problem.empty()) raise(L, fmt::format("task `{}`: in `args`, {}", def.name, problem));
  }
  if (!args.empty()) raise_if(L, command_problem(def, args));
}

void read_shell_call(lua_State* L, const TaskObject& task, TaskNode& node) {
  const TaskDef& def = task.def;
  node.named_args = lua_gettop(L) == 2 && lua_type(L, 2) == LUA_TTABLE;
  const Value args = read_arguments(L, 2, def.name);
  const std::vector<Value>& list = args.as_table().list;
  raise_if(L,
           node.named_args ? named_call_problem(def, list[0]) : positional_call_problem(def, list));
  node.args = args;
}

void check_shell_map(lua_State* L, const TaskObject& task, TaskNode& node) {
  const TaskDef& def = task.def;
  const Value args = node.args.value();
  const std::vector<Value>& rest = args.as_table().list;
  auto with_rest = [&](const Value& item) {
    std::vector<Value> list{item};
    list.insert(list.end(), rest.begin(), rest.end());
    return list;
  };
  if (!rest.empty()) raise_if(L, positional_call_problem(def, with_rest(Value(Ref()))));
  if (node.detail().items.kind() != Value::Kind::table) {
    node.named_args = rest.empty();
    return;
  }
  int number = 0;
  for (const Value& item : node.detail().items.as_table().list) {
    number++;
    bool named = rest.empty() && item.kind() == Value::Kind::table;
    node.named_args = node.named_args || named;
    std::string problem =
        named ? named_call_problem(def, item) : positional_call_problem(def, with_rest(item));
    if (!problem.empty()) raise(L, fmt::format("item {} of flow.map: {}", number, problem));
  }
}

}  // namespace flow::lua
