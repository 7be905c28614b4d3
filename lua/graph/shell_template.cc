// Fills a shell task's command: values as quoted words, lists as their items, numbers in the
// shortest text that reads back.
#include "lua/graph/shell_template.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <unordered_set>

#include "engine/base/files.hpp"
#include "lua/graph/plain_command.hpp"
#include "lua/state/script.hpp"

namespace flow {

namespace lua {

namespace {

std::string some_argument(const ShellSpec& spec) {
  return spec.args.empty() ? "files" : spec.args[0];
}

/// For a table that was meant as the value of one argument, such as a group of files.
std::string fields_as_arguments(const Value::Table& table) {
  constexpr size_t kFieldsMax = 8;
  std::string names;
  for (const auto& [key, value] : table.fields) {
    if (!argument_name_problem(key.as_string()).empty()) return "";
    names += fmt::format("{}\"{}\"", names.empty() ? "" : ", ", key.as_string());
  }
  std::string text = ". A single table names the arguments by its fields";
  if (table.fields.size() > kFieldsMax) return text;
  return text + fmt::format(": for all of this one, `args = {{ {} }}`", names);
}

}  // namespace

std::string named_problem(const ShellSpec& spec, const std::string& task, const Value& table) {
  const Value::Table& fields = table.as_table();
  bool integer_key = !fields.list.empty();
  for (const auto& [key, value] : fields.fields)
    integer_key = integer_key || key.kind() != Value::Kind::string;
  if (integer_key)
    return fmt::format(
        "`{0}` is called with one table, which is a table of named arguments, and it has a key "
        "that is not a string: write `{0} {{ {1} = … }}`",
        task, some_argument(spec));
  std::vector<std::string> given;
  for (const auto& [key, value] : fields.fields) {
    given.push_back(key.as_string());
    std::string problem = argument_name_problem(given.back());
    if (!problem.empty()) return fmt::format("`{}`: {}", task, problem);
    if (spec.args.empty()) continue;
    if (std::find(spec.args.begin(), spec.args.end(), given.back()) != spec.args.end()) continue;
    std::string near = nearest_name(given.back(), spec.args);
    std::string text = fmt::format(
        "`{}` has no argument `{}`{}; its arguments are: {}", task, given.back(),
        near.empty() ? "" : fmt::format(" (did you mean `{}`?)", near), fmt::join(spec.args, ", "));
    return near.empty() ? text + fields_as_arguments(fields) : text;
  }
  for (const std::string& arg : spec.args)
    if (std::find(given.begin(), given.end(), arg) == given.end())
      return fmt::format("`{}` is called without its argument `{}`: its arguments are: {}", task,
                         arg, fmt::join(spec.args, ", "));
  return "";
}

std::string positional_problem(const ShellSpec& spec, const std::string& task, size_t count) {
  if (count == spec.args.size()) return "";
  if (spec.args.empty())
    return fmt::format(
        "`{0}` is called with positional arguments, and its `args` is missing: add `args = {{ "
        "\"{1}\" }}` to "
        "it, or call it with one table, `{0} {{ {1} = … }}`",
        task, some_argument(spec));
  if (count < spec.args.size())
    return fmt::format("`{}` is called without its argument `{}`: it takes {} ({})", task,
                       spec.args[count], spec.args.size(), fmt::join(spec.args, ", "));
  return fmt::format("`{}` is called with {} arguments, and takes {} ({})", task, count,
                     spec.args.size(), fmt::join(spec.args, ", "));
}

}  // namespace lua

Result<Value> name_arguments(const ShellSpec& spec, const std::string& task, const Value& args,
                             bool named) {
  const std::vector<Value>& list = args.as_table().list;
  if (named && list.size() == 1 && list[0].kind() == Value::Kind::table) {
    std::string problem = lua::named_problem(spec, task, list[0]);
    if (!problem.empty()) return user_error(problem);
    return list[0];
  }
  std::string problem = lua::positional_problem(spec, task, list.size());
  if (!problem.empty()) return user_error(problem);
  std::vector<std::pair<Value, Value>> fields;
  for (size_t i = 0; i < list.size(); i++) fields.emplace_back(Value(spec.args[i]), list[i]);
  return Value::map(std::move(fields));
}

namespace {

using lua::CommandPart;

// One word; also quoted if its neighbors would change the meaning of plain letters.
std::string quoted_word(const std::string& word, char before, char after) {
  bool joins = std::isalnum(static_cast<unsigned char>(before)) || before == '_' || before == '~' ||
               before == '$' || before == '\\' || after == '<' || after == '>' || after == '=' ||
               after == '+';
  std::string quoted = quote_shell(word);
  return quoted == word && (joins || lua::is_shell_keyword(word)) ? "'" + word + "'" : quoted;
}

class TemplateRenderer {
 public:
  TemplateRenderer(const CommandPart& part, char before, char after)
      : part_(part), before_(before), after_(after) {}

  Result<std::string> text(const Value& value) const {
    if (value.kind() != Value::Kind::table) return word(value);
    const Value::Table& table = value.as_table();
    if (!table.fields.empty())
      return wrong(fmt::format("a table with fields: name one, `{{{}.{}}}`", part_.text,
                               table.fields[0].first.kind() == Value::Kind::string
                                   ? table.fields[0].first.as_string()
                                   : "name"));
    std::string all;
    for (const Value& item : table.list) {
      if (item.kind() == Value::Kind::table)
        return wrong("a list of tables: its items are strings, numbers, booleans or files");
      auto one = word(item);
      if (!one.ok()) return one;
      if (!all.empty()) all += ' ';
      all += *one;
    }
    return all;
  }

 private:
  Error wrong(const std::string& what) const {
    return user_error(fmt::format("the placeholder `{{{}}}` is {}", part_.text, what));
  }

  Result<std::string> word(const Value& value) const {
    std::string text;
    bool is_number = false;
    switch (value.kind()) {
      case Value::Kind::string:
        text = value.as_string();
        is_number = !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
        break;
      case Value::Kind::integer:
        text = std::to_string(value.as_integer());
        is_number = true;
        break;
      case Value::Kind::number:
        text = lua::number_text(value.as_number());
        is_number = true;
        break;
      case Value::Kind::boolean:
        text = value.as_boolean() ? "true" : "false";
        break;
      case Value::Kind::nil:
      case Value::Kind::null:
      case Value::Kind::missing:  // the core skips the task instead
        return wrong("without a value: give it one, or a default in the task that made it");
      case Value::Kind::tensor:
        return wrong("a tensor, which has no text: write it to a file in an earlier task");
      case Value::Kind::ref:  // while building: the value does not exist yet
        return std::string();
      case Value::Kind::file:  // while building: the path does not exist yet
        if (!part_.in_arithmetic) return std::string();
        break;
      default:
        return wrong("not a string, number, boolean, file or list of these");
    }
    if (text.find('\0') != std::string::npos)
      return wrong("a string with a NUL byte, which no command can take");
    if (!part_.in_arithmetic) return quoted_word(text, before_, after_);
    if (!is_number) return wrong("within $(( )), which allows only a number");
    return text;
  }

  const CommandPart& part_;
  char before_, after_;
};

}  // namespace

std::string lua::number_text(double number) {
  char buffer[40];
  auto end = std::to_chars(buffer, buffer + sizeof buffer, number).ptr;
  return {buffer, end};
}

Result<Value> lua::find_value(const CommandPart& part, const ShellSpec& spec, const Value& named,
                              const std::map<std::string, std::string>& builtin) {
  const std::string& root = part.path[0];
  if (root == "outputs") {
    for (const auto& [name, pattern] : spec.outputs)
      if ("outputs." + name == part.text) return Value(pattern);
    return user_error(fmt::format("`{{{}}}` names no output of this task", part.text));
  }
  const Value* at = named.find(root);
  if (at == nullptr) {
    auto found = builtin.find(root);
    if (found != builtin.end()) return Value(found->second);
    if (root == "memory")
      return user_error(
          "the placeholder `{memory}` has no value: give the task the option `memory`");
    return user_error(fmt::format("the placeholder `{{{}}}` has no value in this call", part.text));
  }
  std::string place = root;
  for (size_t i = 1; i < part.path.size(); i++) {
    if (at->kind() == Value::Kind::ref) return *at;
    const std::string& step = part.path[i];
    bool is_index = step.find_first_not_of("0123456789") == std::string::npos && step.size() < 10;
    const Value* next =
        is_index ? at->find(Value(static_cast<int64_t>(std::stoll(step)))) : nullptr;
    if (next == nullptr) next = at->find(step);
    if (next == nullptr) {
      std::vector<std::string> names;
      if (at->kind() == Value::Kind::table)
        for (const auto& [key, value] : at->as_table().fields)
          if (key.kind() == Value::Kind::string) names.push_back(key.as_string());
      std::string near = nearest_name(step, names);
      return user_error(
          fmt::format("the placeholder `{{{}}}`: `{}` has no field `{}`{}", part.text, place, step,
                      near.empty() ? "" : fmt::format(" (did you mean `{}`?)", near)));
    }
    at = next;
    place += "." + step;
  }
  return *at;
}

std::string lua::filling_problem(const CommandPart& part, const ShellSpec& spec,
                                 const Value& named) {
  if (named.find(part.path[0]) == nullptr) return "";
  auto value = find_value(part, spec, named, {});
  if (!value.ok()) return value.error().message;
  auto text = TemplateRenderer(part, ' ', ' ').text(*value);
  return text.ok() ? "" : text.error().message;
}

Result<std::string> fill_command(const ShellSpec& spec, const Value& named,
                                 const std::map<std::string, std::string>& builtin) {
  std::vector<std::string> names;
  if (named.kind() == Value::Kind::table)
    for (const auto& [key, value] : named.as_table().fields)
      if (key.kind() == Value::Kind::string) names.push_back(key.as_string());
  auto parts = lua::parse_command(spec, names);
  if (!parts.ok()) return parts.error();
  std::string filled;
  for (size_t i = 0; i < parts->size(); i++) {
    const CommandPart& part = (*parts)[i];
    if (!part.is_placeholder) {
      filled += part.text;
      continue;
    }
    auto value = find_value(part, spec, named, builtin);
    if (!value.ok()) return value.error();
    bool literal_next = i + 1 < parts->size() && !(*parts)[i + 1].is_placeholder;
    char before = filled.empty() ? ' ' : filled.back();
    char after = literal_next ? (*parts)[i + 1].text[0] : ' ';
    auto text = TemplateRenderer(part, before, after).text(*value);
    if (!text.ok()) return text;
    filled += *text;
  }
  return filled;
}

}  // namespace flow
