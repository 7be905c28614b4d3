// Control groups: the limits that hold for this process, and groups of our own below its group.
//
// Version 2 has one hierarchy of folders; version 1 has one for each controller. A process is in
// one folder of each hierarchy, and what it starts begins in the same folders.
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

/// By controller ("memory", "cpu"); "" is version 2. From the texts of /proc/self/cgroup and
/// /proc/self/mountinfo.
std::map<std::string, CgroupHierarchy> parse_cgroups(std::string_view groups,
                                                     std::string_view mounts);
/// The control groups of this process; empty if they cannot be read.
std::map<std::string, CgroupHierarchy> own_cgroups();

/// The smallest limit of the process's group and those above it. 0: none.
int64_t cgroup_memory_limit(const std::map<std::string, CgroupHierarchy>& groups);
/// In thousandths of a CPU. 0: none.
int64_t cgroup_cpu_limit_milli(const std::map<std::string, CgroupHierarchy>& groups);
/// Processes that the kernel killed for want of memory in the process's own group. In version 2 the
/// groups below it count as well. 0 where that is not known.
int64_t cgroup_oom_kills(const std::map<std::string, CgroupHierarchy>& groups);

/// Memory that processes of this machine, or container, may use.
int64_t usable_memory_bytes();
/// CPUs by affinity and by the limit of the group; a part of one counts as one. At least 1.
int32_t usable_cpus();

/// A group of our own.
class Cgroup {
 public:
  Cgroup() = default;
  Cgroup(std::string folder, bool is_v2, bool has_memory)
      : folder_(std::move(folder)), is_v2_(is_v2), has_memory_(has_memory) {}

  bool exists() const { return !folder_.empty(); }
  const std::string& folder() const { return folder_; }
  /// Whether the kernel can limit and count its memory.
  bool has_memory() const { return has_memory_; }
  /// 0: none. False where the kernel refuses.
  bool set_memory_limit(int64_t bytes) const;
  /// Memory in use that belongs to no file; 0 where that is not known.
  int64_t anonymous_bytes() const;
  /// The most memory that was in use since `reset_peak`, or ever where the kernel cannot reset it;
  /// 0 where that is not known.
  int64_t peak_bytes() const;
  void reset_peak() const;
  int64_t oom_kills() const;

 private:
  std::string folder_;
  bool is_v2_ = false, has_memory_ = false;
};

/// Processes of the group in this folder and of the groups below it.
std::vector<pid_t> cgroup_members(const std::string& folder);
/// Removes the group and those below it; false where processes are left in it.
bool remove_cgroup(const std::string& folder);

/// Where groups of our own can be made.
class CgroupParent {
 public:
  CgroupParent() = default;
  /// Makes a group and removes it again to see what is possible. A group with the memory controller
  /// is preferred, version 2 before version 1.
  static CgroupParent find(const std::map<std::string, CgroupHierarchy>& groups);
  /// A group that does not exist where none can be made.
  Cgroup make(const std::string& name) const;
  bool exists() const { return !folder_.empty(); }
  bool has_memory() const { return has_memory_; }
  bool is_v2() const { return is_v2_; }
  const std::string& folder() const { return folder_; }
  /// Why the kernel cannot limit memory; "" where it can.
  const std::string& why_no_memory() const { return why_no_memory_; }

 private:
  std::string folder_, why_no_memory_;
  bool is_v2_ = false, has_memory_ = false;
};

}  // namespace flow
