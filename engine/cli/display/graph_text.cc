// Data edges are solid, order-only edges dashed.
#include "engine/cli/display/graph_text.hpp"

#include <map>

#include "engine/cli/display/common.hpp"

namespace flow::cli {

namespace {

const char* dot_shape(const std::string& kind) {
  if (kind == "map") return "box3d";
  if (kind == "when") return "diamond";
  if (kind == "dynamic") return "hexagon";
  if (kind == "service") return "cylinder";
  return "box";
}

std::string dot_quoted(const std::string& text) {
  std::string out = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + "\"";
}

std::string mermaid_label(const PlanNode& node) {
  std::string text;
  for (char c : tagged_name(node.name, node.tag))
    text += c == '"' ? std::string("#quot;") : c == '#' ? std::string("#35;") : std::string(1, c);
  text = "\"" + text + "\"";
  if (node.kind == "map") return "[[" + text + "]]";
  if (node.kind == "when") return "{" + text + "}";
  if (node.kind == "dynamic") return "{{" + text + "}}";
  if (node.kind == "service") return "[(" + text + ")]";
  return "[" + text + "]";
}

std::string json_list(const std::vector<std::string>& names) {
  std::string out = "[";
  for (const std::string& name : names) out += (out.size() > 1 ? "," : "") + json_text(name);
  return out + "]";
}

}  // namespace

std::string graph_dot(const PlanInfo& plan) {
  std::string out = "digraph " + dot_quoted(plan.pipeline) +
                    " {\n  rankdir=LR;\n  node [shape=box, style=rounded];\n";
  for (const PlanNode& node : plan.nodes) {
    std::string label =
        node.tag.empty() ? "" : ", label=" + dot_quoted(tagged_name(node.name, node.tag));
    out += "  " + dot_quoted(node.name) + " [shape=" + dot_shape(node.kind) + label + "];\n";
  }
  for (const PlanNode& node : plan.nodes) {
    for (const std::string& need : node.needs) {
      out += "  " + dot_quoted(need) + " -> " + dot_quoted(node.name) + ";\n";
    }
    for (const std::string& before : node.after) {
      out += "  " + dot_quoted(before) + " -> " + dot_quoted(node.name) + " [style=dashed];\n";
    }
  }
  return out + "}\n";
}

std::string graph_mermaid(const PlanInfo& plan) {
  std::map<std::string, std::string> ids;
  std::string out = "flowchart LR\n";
  for (const PlanNode& node : plan.nodes) {
    std::string id = "n" + std::to_string(ids.size());
    ids.emplace(node.name, id);
    out += "  " + id + mermaid_label(node) + "\n";
  }
  for (const PlanNode& node : plan.nodes) {
    for (const std::string& need : node.needs)
      out += "  " + ids[need] + " --> " + ids[node.name] + "\n";
    for (const std::string& before : node.after)
      out += "  " + ids[before] + " -.-> " + ids[node.name] + "\n";
  }
  return out;
}

std::string graph_json(const PlanInfo& plan) {
  std::string out = "{\"pipeline\":" + json_text(plan.pipeline) + ",\"nodes\":[";
  for (const PlanNode& node : plan.nodes) {
    if (out.back() == '}') out += ",";
    out += "{\"name\":" + json_text(node.name) + ",\"tag\":" + text_or_null(node.tag) +
           ",\"task\":" + text_or_null(node.task) + ",\"kind\":" + json_text(node.kind) +
           ",\"needs\":" + json_list(node.needs) + ",\"after\":" + json_list(node.after) + "}";
  }
  return out + "]}\n";
}

}  // namespace flow::cli
