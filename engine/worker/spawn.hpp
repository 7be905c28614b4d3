// Starts flow-executor with posix_spawn, in its own process group, with descriptor 3 and no other
// descriptor of this process.
#pragma once
#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "engine/base/environment_variables.hpp"
#include "flow/result.hpp"

namespace flow {

struct ExecutorProcess {
  pid_t pid = 0;
  int pidfd = -1;
  int wire = -1;    // our end
  int errors = -1;  // its stdout and stderr; non-blocking
};

/// `variables`, and the variables of this process's environment that configure the machine's
/// libraries and are not among them.
std::vector<std::string> machine_environment(const EnvironmentVariables& variables);

/// Its environment consists of `variables` and the variables that configure the machine's
/// libraries.
Result<ExecutorProcess> spawn_executor(const std::string& program,
                                       const std::vector<std::string>& arguments,
                                       EnvironmentVariables variables);

/// Kills an executor that has started nothing and returns its wait status. A process that hangs in
/// a driver cannot be killed and is left behind.
int end_executor(const ExecutorProcess& child);

/// Resident memory in bytes of an executor and its descendants.
int64_t resident_bytes(pid_t executor);
/// The same of several executors, with one look at all processes.
std::vector<int64_t> resident_bytes(const std::vector<pid_t>& executors);

}  // namespace flow
