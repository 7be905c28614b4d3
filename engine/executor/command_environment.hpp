// The environment of a command on this machine: what its options name, found or built.
#pragma once
#include <optional>
#include <string>

#include "engine/environments/shell_setup.hpp"
#include "engine/executor/attempt.hpp"

namespace flow {

struct OpenEnvironment {
  CommandEnvironment options;
  ShellSetup setup;
  std::string text;  // for the shell, before the command
};

/// Beside the scratch folder, as ShellSetup::stage_file.
std::string stage_file(const std::string& dir);

/// Finds what the command's environment needs. An error is a lack of this machine.
Result<OpenEnvironment> open_environment(Attempt& attempt);

/// The failure if the shell ended before it came to the command, or nothing. `status` is as waitpid
/// gives it.
std::optional<core::Failure> setup_failure(const Attempt& attempt, int status,
                                           const std::string& again);

}  // namespace flow
