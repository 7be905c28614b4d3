// A shell task's command as a template: where its placeholders are, by bash's own rules of quoting.
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
  std::string text;               // as it stays; of a placeholder its name, "a.b"
  std::vector<std::string> path;  // of a placeholder: "a", "b"
};

/// Splits spec.command. `names` are the arguments of the call. Errors name the placeholder, its
/// line in the command, and the nearest right name.
Result<std::vector<CommandPart>> parse_command(const ShellSpec& spec,
                                               const std::vector<std::string>& names);
/// cpus, memory, gpus, rank, ranks, seed, attempt, outputs: no argument has these names.
bool is_reserved_argument(const std::string& name);
/// Why `name` can't be an argument's name, or "".
std::string argument_name_problem(const std::string& name);
/// Why these can't be the named arguments of `task`, or "".
std::string named_problem(const ShellSpec& spec, const std::string& task, const Value& table);
/// Why `named` can't fill this placeholder, or "". What is a handle in it is not known yet.
std::string filling_problem(const CommandPart& part, const ShellSpec& spec, const Value& named);
/// The value that a placeholder stands for, with a handle left as it is.
Result<Value> find_value(const CommandPart& part, const ShellSpec& spec, const Value& named,
                         const std::map<std::string, std::string>& builtin);
/// A number as a command has it: the shortest text that reads back.
std::string number_text(double number);

/// ShellSpec::outputs holds a path that is not a glob (`glob = false`) with this before it, which
/// no path inside the scratch folder begins with.
constexpr char kPlainPathMark = '/';
/// The placeholders in an output's path, in its order. Braces that are not `{name}` are text, and
/// `{{name}}` is the text `{name}`.
std::vector<CommandPart> parse_output(std::string_view pattern);
/// Why the outputs' placeholders can't be filled from arguments of these names, or "".
std::string outputs_problem(const ShellSpec& spec, const std::vector<std::string>& names);
/// Why these arguments can't fill them, or "". What is a handle in them is not known yet.
std::string outputs_value_problem(const ShellSpec& spec, const Value& named);
/// Why `path` can't be a path inside the scratch folder, or "".
std::string inner_path_problem(const std::string& path);
/// Why `count` positional arguments can't be given to `task`, or "".
std::string positional_problem(const ShellSpec& spec, const std::string& task, size_t count);

}  // namespace flow::lua
