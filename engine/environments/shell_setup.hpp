// The text that a shell runs before a command: modules, environments and the option `before`. Pure.
#pragma once
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "engine/plan/plan.hpp"

namespace flow {

/// What a machine has for an environment.
struct ShellSetup {
  std::string module_init{};    // the module system's script for this shell; needed for modules
  std::string venv{}, conda{};  // prefixes; "": none
  /// The text writes to this file what it is doing, and empties it before the command. So an error
  /// can name the option that failed.
  std::string stage_file{};
};

/// The text, which ends with a newline; "" if the shell has nothing to do. In a container it at
/// least empties the stage file, which shows that the shell runs.
std::string setup_text(const CommandEnvironment& environment, const ShellSetup& setup);
/// Sets the variables that activate the prefixes.
void activate(const ShellSetup& setup, std::map<std::string, std::string>& variables);

/// What `stage` of a stage file says to a user: "`before`", "the module `gcc/12.3`".
std::string stage_text(std::string_view stage);
/// Whether a failure at this stage is one of the machine, not of the task.
bool is_of_machine(std::string_view stage);

/// Whether the shell runs POSIX shell text, by the name of its program and its last flag.
bool reads_shell_text(const std::vector<std::string>& shell);

}  // namespace flow
