// Builds the graph of a script given as text, and prints its plan as lines for comparison.
#pragma once
#include <fmt/format.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "lua/state/script.hpp"

namespace flow::test {

struct Script {
  std::string text;                            // text of pipeline.lua
  std::map<std::string, std::string> modules;  // path to text
  std::vector<std::pair<std::string, std::string>> text_params;
  Value params = Value::map({});
};

class Folder {
 public:
  Folder() {
    char pattern[] = "/tmp/flow-graph-XXXXXX";
    path = mkdtemp(pattern);
  }
  ~Folder() { std::filesystem::remove_all(path); }
  void write(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories((std::filesystem::path(path) / name).parent_path());
    std::ofstream(path + "/" + name) << text;
  }
  std::string path;
};

inline Result<BuildResult> build(const Script& script, const Folder& folder) {
  folder.write("pipeline.lua", script.text);
  for (const auto& [name, text] : script.modules) folder.write(name, text);
  BuildRequest request;
  request.root = request.working_directory = folder.path;
  request.main = "pipeline.lua";
  request.params = script.params;
  request.text_params = script.text_params;
  return make_script_vm()->build(request);
}

/// The error of a build, or "built".
inline std::string error_of(const Script& script) {
  Folder folder;
  auto built = build(script, folder);
  return built.ok() ? "built" : built.error().message;
}

inline std::string value_text(const Plan& plan, const Value& value) {
  if (value.kind() == Value::Kind::ref) {
    std::string text = "<" + plan.nodes[value.as_ref().node].name;
    for (const PathStep& step : value.as_ref().path)
      text += step.each                                ? ":" + step.key.as_string()
              : step.key.kind() == Value::Kind::string ? "." + step.key.as_string()
                                                       : "[" + to_json(step.key) + "]";
    return text + ">";
  }
  if (value.kind() == Value::Kind::file) return "file " + value.as_file().name;
  if (value.kind() != Value::Kind::table) return to_json(value);
  std::string text;
  for (const Value& item : value.as_table().list)
    text += (text.empty() ? "" : ", ") + value_text(plan, item);
  for (const auto& [key, item] : value.as_table().fields)
    text += (text.empty() ? "" : ", ") +
            (key.kind() == Value::Kind::string ? key.as_string() : to_json(key)) + "=" +
            value_text(plan, item);
  return "{" + text + "}";
}

/// One line per node: name, arguments, and special properties.
inline std::string plan_text(const Plan& plan) {
  std::string text;
  for (const TaskNode& node : plan.nodes) {
    text += node.name;
    if (node.kind == NodeKind::map) text += " map " + value_text(plan, node.detail().items);
    if (node.kind == NodeKind::when)
      text += fmt::format(" when {} then {} else {}", value_text(plan, node.detail().condition),
                          value_text(plan, node.detail().then_value),
                          value_text(plan, node.detail().else_value));
    if (node.kind != NodeKind::when) text += " " + value_text(plan, node.args.value());
    if (node.named_args) text += " named";
    if (node.detail().limit != 0) text += fmt::format(" limit {}", node.detail().limit);
    for (uint32_t before : node.detail().after) text += " after " + plan.nodes[before].name;
    if (node.guard.when != kNoNode)
      text += fmt::format(" if {}{}", node.guard.then_branch ? "" : "not ",
                          plan.nodes[node.guard.when].name);
    text += "\n";
  }
  return text + "-> " + value_text(plan, plan.result) + "\n";
}

inline std::string plan_of(const Script& script) {
  Folder folder;
  auto built = build(script, folder);
  return built.ok() ? plan_text(built->plan) : "error: " + built.error().message;
}

}  // namespace flow::test
