// A shell task's command as a template: where its placeholders are, by bash's own rules of quoting.
#pragma once
#include <string>
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
/// Why `count` positional arguments can't be given to `task`, or "".
std::string positional_problem(const ShellSpec& spec, const std::string& task, size_t count);

}  // namespace flow::lua
