// The CPUs and memory that tasks may use on this machine, or in the container of this process.
#pragma once
#include <cstdint>
#include <string>

namespace flow {

struct MachineLimits {
  int32_t cpus = 1;               // limited by affinity and control group
  int64_t memory_bytes = 0;       // the smaller of the machine's and the control group's
  bool is_cgroup_memory = false;  // the control group has less memory than the machine
  bool is_cgroup_cpus = false;    // the control group has fewer CPUs than the affinity allows
  /// Whether the kernel enforces a task's `memory`. Otherwise its usage is polled every 0.1 s.
  bool is_memory_enforced = false;
  /// How it is enforced (control group version and folder), or why it is not.
  std::string memory_enforcement;
};

/// An error message if a folder of the state is a broken symbolic link, for example to a disk that
/// is not mounted. It names the link and its target. "" if there is none.
std::string broken_state_link(const std::string& directory);

/// An error message if no program of this version can use the state: a newer flow wrote it, or it
/// is damaged. "" if one can, or if there is no state yet.
std::string unusable_state(const std::string& directory);

/// The limits of this process. Creates and removes a control group to find out whether it can.
MachineLimits machine_limits();

}  // namespace flow
