// Control groups: the limits that apply to this process, and groups that flow creates below its
// group.
//
// Version 2 has one hierarchy of folders; version 1 has one per controller. A process is in one
// folder of each hierarchy, and its child processes start in the same folders.
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace flow {

/// A hierarchy as this process sees it.
struct CgroupHierarchy {
  std::string mount;   // folder of the topmost visible group
  std::string folder;  // of this process's group: `mount` or below it
};

/// By controller ("memory", "cpu"); "" is version 2. Parsed from the texts of /proc/self/cgroup and
/// /proc/self/mountinfo.
std::map<std::string, CgroupHierarchy> parse_cgroups(std::string_view groups,
                                                     std::string_view mounts);
/// The control groups of this process; empty if they cannot be read.
std::map<std::string, CgroupHierarchy> own_cgroups();

/// The smallest limit of the process's group and those above it. 0: none.
int64_t cgroup_memory_limit(const std::map<std::string, CgroupHierarchy>& groups);
/// In thousandths of a CPU. 0: none.
int64_t cgroup_cpu_limit_milli(const std::map<std::string, CgroupHierarchy>& groups);
/// Number of processes in the process's own group that the kernel killed for lack of memory.
/// Version 2 also counts the groups below it. 0 if unknown.
int64_t cgroup_oom_kills(const std::map<std::string, CgroupHierarchy>& groups);

/// Memory in bytes that processes of this machine or container may use.
int64_t usable_memory_bytes();
/// CPUs by affinity and by the limit of the group, rounded up. At least 1.
int32_t usable_cpus();

/// A control group that flow created.
class Cgroup {
 public:
  Cgroup() = default;
  Cgroup(std::string folder, bool is_v2, bool has_memory)
      : folder_(std::move(folder)), is_v2_(is_v2), has_memory_(has_memory) {}

  bool exists() const { return !folder_.empty(); }
  const std::string& folder() const { return folder_; }
  /// Whether the kernel can limit and count its memory.
  bool has_memory() const { return has_memory_; }
  /// 0: no limit. Returns false if the kernel rejects it.
  bool set_memory_limit(int64_t bytes) const;
  /// Memory in use that does not belong to a file; 0 if unknown.
  int64_t anonymous_bytes() const;
  /// Peak memory use since `reset_peak`, or in total if the kernel cannot reset it; 0 if unknown.
  int64_t peak_bytes() const;
  void reset_peak() const;
  int64_t oom_kills() const;

 private:
  std::string folder_;
  bool is_v2_ = false, has_memory_ = false;
};

/// Processes of the group in this folder and of the groups below it.
std::vector<pid_t> cgroup_members(const std::string& folder);
/// Removes the group and those below it. Returns false if processes are left in it.
bool remove_cgroup(const std::string& folder);

/// The place where flow can create groups.
class CgroupParent {
 public:
  CgroupParent() = default;
  /// Creates a group and removes it again to find out what is possible. A group with the memory
  /// controller is preferred, and version 2 over version 1.
  static CgroupParent find(const std::map<std::string, CgroupHierarchy>& groups);
  /// Returns a group that does not exist if none can be created.
  Cgroup make(const std::string& name) const;
  bool exists() const { return !folder_.empty(); }
  bool has_memory() const { return has_memory_; }
  bool is_v2() const { return is_v2_; }
  const std::string& folder() const { return folder_; }
  /// Why the kernel cannot limit memory; "" if it can.
  const std::string& why_no_memory() const { return why_no_memory_; }

 private:
  std::string folder_, why_no_memory_;
  bool is_v2_ = false, has_memory_ = false;
};

}  // namespace flow
