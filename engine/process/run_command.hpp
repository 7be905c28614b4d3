// Runs a system program and returns its output.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "flow/result.hpp"

namespace flow {

struct CommandResult {
  int code = 0;  // exit code; 128 plus the signal if a signal ended the program
  std::string out, err;
};

/// Runs argv[0], searched in PATH, without input, and waits. `variables` replace this process's
/// variables of the same names. Error if it cannot be started or does not end within `within_ms`;
/// then it is killed.
Result<CommandResult> run_command(
    const std::vector<std::string>& argv, int64_t within_ms,
    const std::vector<std::pair<std::string, std::string>>& variables = {});

}  // namespace flow
