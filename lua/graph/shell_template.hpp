// A shell task's command as a template: its placeholders, found by bash's own quoting rules.
#pragma once
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "engine/plan/plan.hpp"

namespace flow::lua {

struct CommandPart {
  bool is_placeholder = false;
  bool in_arithmetic = false;     // within $(( )): a number, unquoted
  std::string text;               // literal text; of a placeholder its name, "a.b"
  std::vector<std::string> path;  // of a placeholder: "a", "b"
};

/// Splits spec.command. `names` are the arguments of the call. Errors name the placeholder, its
/// line in the command, and the nearest correct name.
Result<std::vector<CommandPart>> parse_command(const ShellSpec& spec,
                                               const std::vector<std::string>& names);
/// cpus, memory, gpus, rank, ranks, seed, attempt, outputs: no argument may have these names.
bool is_reserved_argument(const std::string& name);
/// Why `name` cannot be an argument's name, or "".
std::string argument_name_problem(const std::string& name);
/// Why the table cannot be the named arguments of `task`, or "".
std::string named_problem(const ShellSpec& spec, const std::string& task, const Value& table);
/// Why `named` cannot fill this placeholder, or "". Handles in it are not known yet.
std::string filling_problem(const CommandPart& part, const ShellSpec& spec, const Value& named);
/// The value of a placeholder; a handle is returned unchanged.
Result<Value> find_value(const CommandPart& part, const ShellSpec& spec, const Value& named,
                         const std::map<std::string, std::string>& builtin);
/// A number in a command: the shortest text that reads back.
std::string number_text(double number);

/// Prefix of a path in ShellSpec::outputs that is not a glob (`glob = false`). No path inside the
/// scratch folder begins with it.
constexpr char kPlainPathMark = '/';
/// The placeholders in an output's path, in order. Braces that are not `{name}` are text, and
/// `{{name}}` is the text `{name}`.
std::vector<CommandPart> parse_output(std::string_view pattern);
/// Why arguments of these names cannot fill the outputs' placeholders, or "".
std::string outputs_problem(const ShellSpec& spec, const std::vector<std::string>& names);
/// Why these arguments cannot fill them, or "". Handles in them are not known yet.
std::string outputs_value_problem(const ShellSpec& spec, const Value& named);
/// Why `path` cannot be a path inside the scratch folder, or "".
std::string inner_path_problem(const std::string& path);
/// Why `task` cannot take `count` positional arguments, or "".
std::string positional_problem(const ShellSpec& spec, const std::string& task, size_t count);

}  // namespace flow::lua
