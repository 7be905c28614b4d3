// A program of the system that is run for its answer.
#pragma once
#include <string>
#include <vector>

#include "flow/result.hpp"

namespace flow {

struct CommandResult {
  int code = 0;  // exit code; of one that a signal ended 128 and the signal
  std::string out, err;
};

/// Runs argv[0], found in the PATH, without input, and waits. An error where it can't be started or
/// does not end in time: it is killed then.
Result<CommandResult> run_command(const std::vector<std::string>& argv, int64_t within_ms);

}  // namespace flow
