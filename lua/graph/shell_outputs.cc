// The paths of a shell task's outputs as templates: `outputs = { o = "{sample}.txt" }`.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <map>

#include "engine/base/glob.hpp"
#include "lua/graph/shell_template.hpp"
#include "lua/state/script.hpp"

namespace flow {

namespace lua {

namespace {

bool is_letter(char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0 || c == '_'; }
bool is_part(char c) { return is_letter(c) || std::isdigit(static_cast<unsigned char>(c)) != 0; }

// The name in `{name}` or `{a.b}`, or "". `from` is the position of the brace.
std::string name_at(std::string_view text, size_t from) {
  size_t i = from + 1;
  if (i >= text.size() || !is_letter(text[i])) return "";
  while (i < text.size() &&
         (is_part(text[i]) || (text[i] == '.' && i + 1 < text.size() && is_part(text[i + 1]))))
    i++;
  bool is_closed = i < text.size() && text[i] == '}';
  return is_closed ? std::string(text.substr(from + 1, i - from - 1)) : "";
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> steps;
  for (size_t start = 0; start <= text.size();) {
    size_t end = std::min(text.find(separator, start), text.size());
    steps.push_back(text.substr(start, end - start));
    start = end + 1;
  }
  return steps;
}

// Whether the placeholder refers to a handle, whose value is not known while building.
bool has_ref(const CommandPart& part, const ShellSpec& spec, const Value& named) {
  if (!part.is_placeholder || named.find(part.path[0]) == nullptr) return false;
  auto value = find_value(part, spec, named, {});
  return value.ok() && value->kind() == Value::Kind::ref;
}

}  // namespace

std::vector<CommandPart> parse_output(std::string_view pattern) {
  std::vector<CommandPart> parts;
  std::string literal;
  auto flush = [&] {
    if (!literal.empty()) parts.push_back({false, false, std::move(literal), {}});
    literal.clear();
  };
  for (size_t at = 0; at < pattern.size();) {
    bool is_doubled = pattern.substr(at).starts_with("{{");
    std::string escaped = is_doubled ? name_at(pattern, at + 1) : "";
    bool is_escape = !escaped.empty() && pattern.substr(at + escaped.size() + 3).starts_with('}');
    std::string name = pattern[at] == '{' ? name_at(pattern, at) : "";
    if (is_escape) {
      literal += "{" + escaped + "}";
      at += escaped.size() + 4;
    } else if (!name.empty()) {
      flush();
      parts.push_back({true, false, name, split(name, '.')});
      at += name.size() + 2;
    } else {
      literal += pattern[at++];
    }
  }
  flush();
  return parts;
}

std::string inner_path_problem(const std::string& path) {
  if (path.find('\0') != std::string::npos) return "it has a NUL byte";
  if (path.starts_with('/')) return "it is an absolute path";
  if (path.ends_with("/.") || path.ends_with("/./")) return "it ends with the step `.`";
  bool has_name = false;
  for (const std::string& step : split(path, '/')) {
    if (step == "..") return "it has the step `..`";
    has_name = has_name || (!step.empty() && step != ".");
  }
  return has_name ? "" : "it names no file";
}

std::string outputs_problem(const ShellSpec& spec, const std::vector<std::string>& names) {
  for (const auto& [output, pattern] : spec.outputs) {
    for (const CommandPart& part : parse_output(pattern)) {
      if (!part.is_placeholder) continue;
      const std::string& root = part.path[0];
      bool is_argument = std::find(names.begin(), names.end(), root) != names.end();
      bool is_builtin = is_reserved_argument(root) && root != "outputs" && part.path.size() == 1;
      if (is_argument || is_builtin) continue;
      std::string near = nearest_name(root, names);
      return fmt::format(
          "the path of the output `{}` names `{{{}}}`, which is not an argument of this call{}; "
          "to keep the braces write `{{{{{}}}}}`",
          output, part.text, near.empty() ? "" : fmt::format(" (did you mean `{{{}}}`?)", near),
          part.text);
    }
  }
  return "";
}

std::string outputs_value_problem(const ShellSpec& spec, const Value& named) {
  for (const auto& [output, pattern] : spec.outputs)
    for (const CommandPart& part : parse_output(pattern))
      if (has_ref(part, spec, named)) return "";
  std::map<std::string, std::string> builtin;
  for (const char* name : {"cpus", "memory", "gpus", "rank", "ranks", "seed", "attempt"})
    builtin.emplace(name, "1");
  auto filled = fill_outputs(spec, named, builtin);
  return filled.ok() ? "" : filled.error().message;
}

}  // namespace lua

namespace {

using lua::CommandPart;

// The text for a placeholder's value in a path.
Result<std::string> path_text(const Value& value) {
  switch (value.kind()) {
    case Value::Kind::string:
      return value.as_string();
    case Value::Kind::integer:
      return std::to_string(value.as_integer());
    case Value::Kind::number:
      return lua::number_text(value.as_number());
    case Value::Kind::boolean:
      return std::string(value.as_boolean() ? "true" : "false");
    case Value::Kind::file:
      return value.as_file().name;
    default:
      return user_error("it is not a string, number, boolean or file");
  }
}

// One output, and whether it has a placeholder.
Result<std::pair<OutputPath, bool>> fill_output(const ShellSpec& spec, const std::string& output,
                                                std::string_view pattern, const Value& named,
                                                const std::map<std::string, std::string>& builtin) {
  OutputPath path{output, "", ""};
  std::string glob, written;  // `written` does not contain the inserted text
  bool has_placeholder = false;
  for (const CommandPart& part : lua::parse_output(pattern)) {
    if (!part.is_placeholder) {
      path.text += part.text;
      glob += part.text;
      written += part.text;
      continue;
    }
    has_placeholder = true;
    auto value = lua::find_value(part, spec, named, builtin);
    auto text = value.ok() ? path_text(*value) : Result<std::string>(value.error());
    if (!text.ok())
      return user_error(
          fmt::format("the path `{}` of the output `{}` can't be filled in: `{{{}}}`: "
                      "{}",
                      pattern, output, part.text, text.error().message));
    path.text += *text;
    glob += escape_glob(*text);
  }
  // An escaped wildcard makes a list too.
  if (is_glob(written) || written.find_first_of("*?[") != std::string::npos) path.glob = glob;
  return std::pair(std::move(path), has_placeholder);
}

}  // namespace

Result<std::vector<OutputPath>> fill_outputs(const ShellSpec& spec, const Value& named,
                                             const std::map<std::string, std::string>& builtin) {
  std::vector<OutputPath> all;
  std::map<std::string, std::pair<std::string, bool>> known;  // by path: the output
  for (const auto& [output, declared] : spec.outputs) {
    std::string_view pattern = declared;
    bool is_optional = is_optional_output(pattern);
    if (is_optional) pattern.remove_prefix(kOptionalMark.size());
    bool is_plain = pattern.starts_with(lua::kPlainPathMark);
    if (is_plain) pattern.remove_prefix(1);
    auto filled = fill_output(spec, output, pattern, named, builtin);
    FLOW_TRY(filled);
    auto& [path, has_placeholder] = *filled;
    path.is_optional = is_optional;
    if (is_plain) path.glob.clear();
    std::string problem = lua::inner_path_problem(path.text);
    if (!problem.empty())
      return user_error(
          fmt::format("the path `{}` of the output `{}` is not inside the task's "
                      "scratch folder: {}",
                      path.text, output, problem));
    auto [other, is_new] = known.emplace(path.text, std::pair(output, has_placeholder));
    if (!is_new && (has_placeholder || other->second.second))
      return user_error(fmt::format("the outputs `{}` and `{}` have one path, `{}`",
                                    other->second.first, output, path.text));
    all.push_back(std::move(path));
  }
  return all;
}

}  // namespace flow
