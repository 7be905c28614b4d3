// Starting flow-executor: by posix_spawn, in its own group, with descriptor 3 and nothing else of
// ours.
#pragma once
#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "flow/result.hpp"

namespace flow {

struct ExecutorProcess {
  pid_t pid = 0;
  int pidfd = -1;
  int wire = -1;    // our end
  int errors = -1;  // its stdout and stderr; non-blocking
};

/// `variables` and those of the machine's libraries are its environment, and nothing else of this
/// process's.
Result<ExecutorProcess> spawn_executor(const std::string& program,
                                       const std::vector<std::string>& arguments,
                                       std::vector<std::pair<std::string, std::string>> variables);

/// Kills one that has started nothing, and gives what waitpid tells. What hangs within a driver
/// can't be killed: it is left behind.
int end_executor(const ExecutorProcess& child);

/// Bytes of resident memory of an executor and all that descends from it.
int64_t resident_bytes(pid_t executor);

}  // namespace flow
