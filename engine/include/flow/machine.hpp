// What this machine, or the container that the process runs in, lets its tasks use.
#pragma once
#include <cstdint>
#include <string>

namespace flow {

struct MachineLimits {
  int32_t cpus = 1;               // by affinity and by the limit of the control group
  int64_t memory_bytes = 0;       // the machine's, or the control group's where that is less
  bool is_cgroup_memory = false;  // the control group has less memory than the machine
  bool is_cgroup_cpus = false;    // the control group has fewer CPUs than the affinity allows
  /// Whether the kernel keeps tasks within their `memory`. Where it does not, their use is looked
  /// at every 0.1 s.
  bool is_memory_enforced = false;
  /// How: the version of control groups and the folder, or why not.
  std::string memory_enforcement;
};

/// An error message if a folder of the state is a broken symbolic link, for example to a disk that
/// is not mounted. It names the link and its target. "" if there is none.
std::string broken_state_link(const std::string& directory);

/// Of this process. Makes a control group and removes it again to see whether one can be made.
MachineLimits machine_limits();

}  // namespace flow
