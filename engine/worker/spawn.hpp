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

Result<ExecutorProcess> spawn_executor(
    const std::string& program, const std::vector<std::string>& arguments,
    const std::vector<std::pair<std::string, std::string>>& variables);

/// Kills every process that an earlier engine's attempts over this state left behind: they carry
/// FLOW_SLOT=STATE.
void kill_leftovers(const std::string& state_dir);

/// Bytes of resident memory of the processes in these groups.
int64_t resident_bytes(const std::vector<pid_t>& groups);

}  // namespace flow
