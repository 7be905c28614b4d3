#include "engine/process/cgroup.hpp"

#include <fcntl.h>
#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <optional>

#include "engine/base/files.hpp"
#include "engine/base/ids.hpp"

namespace flow {

namespace fs = std::filesystem;

namespace {

constexpr int64_t kMilli = 1000;
constexpr int64_t kUnlimited = int64_t{1} << 60;  // version 1 writes "none" as a number near 2^63
constexpr uint64_t kFileMax = 16 << 20;
constexpr int kDepthMax = 64;

std::string_view next_part(std::string_view& text, char separator) {
  size_t end = std::min(text.find(separator), text.size());
  std::string_view part = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return part;
}

std::optional<int64_t> number_in(std::string_view text) {
  int64_t number = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc::result_out_of_range) return INT64_MAX;
  if (error != std::errc()) return std::nullopt;
  return number;
}

/// /proc escapes blanks and backslashes in paths as three octal digits.
std::string unescaped(std::string_view text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); i++) {
    auto digit = [&](size_t at) { return at < text.size() && text[at] >= '0' && text[at] <= '7'; };
    if (text[i] == '\\' && digit(i + 1) && digit(i + 2) && digit(i + 3)) {
      plain += static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 +
                                 (text[i + 3] - '0'));
      i += 3;
    } else {
      plain += text[i];
    }
  }
  return plain;
}

struct Mount {
  std::string root, point;
  bool is_v2 = false;
  std::string options;  // of version 1: "rw,memory"
};

/// "31 23 0:28 ROOT POINT OPTIONS … - TYPE SOURCE SUPER_OPTIONS".
std::optional<Mount> parse_mount(std::string_view line) {
  constexpr int kBeforeRoot = 3;
  size_t separator = line.find(" - ");
  if (separator == std::string_view::npos) return std::nullopt;
  std::string_view after_controllers = line.substr(separator + 3);
  std::string_view type = next_part(after_controllers, ' ');
  if (type != "cgroup" && type != "cgroup2") return std::nullopt;
  next_part(after_controllers, ' ');
  for (int i = 0; i < kBeforeRoot; i++) next_part(line, ' ');
  Mount mount;
  mount.root = unescaped(next_part(line, ' '));
  mount.point = unescaped(next_part(line, ' '));
  mount.is_v2 = type == "cgroup2";
  mount.options = std::string(next_part(after_controllers, ' '));
  if (mount.root.empty() || mount.point.empty() || mount.point.front() != '/') return std::nullopt;
  return mount;
}

bool has_word(std::string_view words, std::string_view word, char separator) {
  while (!words.empty()) {
    std::string_view each = next_part(words, separator);
    while (!each.empty() && each.back() == '\n') each.remove_suffix(1);
    if (each == word) return true;
  }
  return false;
}

/// The folder of the group `path`. A group outside of the mounted part is not visible; the topmost
/// visible group is returned instead.
CgroupHierarchy place_of(const Mount& mount, std::string path) {
  CgroupHierarchy found{mount.point, mount.point};
  if (path.find("/..") != std::string::npos) return found;
  std::string root = mount.root == "/" ? "" : mount.root;
  if (!path.starts_with(root)) return found;
  path.erase(0, root.size());
  if (path.empty() || path == "/") return found;
  if (path.front() != '/') return found;
  found.folder = mount.point + path;
  return found;
}

std::string text_of(const std::string& path) {
  auto text = read_file(path, kFileMax);
  return text.ok() ? std::move(*text) : "";
}

/// The number behind `name` in lines of "NAME NUMBER"; 0 if it is missing.
int64_t field_of(std::string_view text, std::string_view name) {
  while (!text.empty()) {
    std::string_view line = next_part(text, '\n');
    if (next_part(line, ' ') != name) continue;
    return number_in(line).value_or(0);
  }
  return 0;
}

bool write_value(const std::string& path, const std::string& value) {
  int file = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (file < 0) return false;
  bool ok = ::write(file, value.data(), value.size()) == static_cast<ssize_t>(value.size());
  int error = errno;
  ::close(file);
  errno = error;
  return ok;
}

/// Calls `visit` for each group from the process's own up to the topmost visible one.
template <typename Look>
void each_above(const CgroupHierarchy& group, Look visit) {
  std::string folder = group.folder;
  for (int i = 0; i < kDepthMax; i++) {
    visit(folder);
    if (folder.size() <= group.mount.size()) return;
    folder.resize(folder.rfind('/'));
  }
}

void lower(int64_t& least, int64_t value) {
  if (value > 0 && value < kUnlimited && (least == 0 || value < least)) least = value;
}

const CgroupHierarchy* find(const std::map<std::string, CgroupHierarchy>& groups,
                            const char* controller) {
  auto found = groups.find(controller);
  return found == groups.end() ? nullptr : &found->second;
}

}  // namespace

std::map<std::string, CgroupHierarchy> parse_cgroups(std::string_view groups,
                                                     std::string_view mounts) {
  std::vector<Mount> known;
  while (!mounts.empty()) {
    if (auto mount = parse_mount(next_part(mounts, '\n'))) known.push_back(std::move(*mount));
  }
  std::map<std::string, CgroupHierarchy> found;
  while (!groups.empty()) {  // "4:cpu,cpuacct:/PATH"; of version 2 "0::/PATH"
    std::string_view line = next_part(groups, '\n');
    next_part(line, ':');
    std::string_view controllers = next_part(line, ':');
    std::string path(line);
    if (path.empty() || path.front() != '/') continue;
    bool is_v2 = controllers.empty();
    do {
      std::string controller(next_part(controllers, ','));
      auto mount = std::find_if(known.begin(), known.end(), [&](const Mount& each) {
        return each.is_v2 == is_v2 && (is_v2 || has_word(each.options, controller, ','));
      });
      if (mount != known.end()) found.emplace(controller, place_of(*mount, path));
    } while (!controllers.empty());
  }
  return found;
}

std::map<std::string, CgroupHierarchy> own_cgroups() {
  return parse_cgroups(text_of("/proc/self/cgroup"), text_of("/proc/self/mountinfo"));
}

int64_t cgroup_memory_limit(const std::map<std::string, CgroupHierarchy>& groups) {
  int64_t least = 0;
  auto visit_folder = [&](const char* controller, const char* file) {
    const CgroupHierarchy* group = find(groups, controller);
    if (group == nullptr) return;
    each_above(*group, [&](const std::string& folder) {
      lower(least, number_in(text_of(folder + file)).value_or(0));
    });
  };
  visit_folder("", "/memory.max");
  visit_folder("memory", "/memory.limit_in_bytes");
  return least;
}

int64_t cgroup_cpu_limit_milli(const std::map<std::string, CgroupHierarchy>& groups) {
  int64_t least = 0;
  auto add = [&](std::optional<int64_t> quota, std::optional<int64_t> period) {
    if (!quota || !period || *quota <= 0 || *period <= 0 || *quota > kUnlimited / kMilli) return;
    lower(least, std::max<int64_t>(1, *quota * kMilli / *period));
  };
  if (const CgroupHierarchy* group = find(groups, "")) {
    each_above(*group, [&](const std::string& folder) {
      std::string text = text_of(folder + "/cpu.max");  // "50000 100000", "max 100000"
      std::string_view rest = text;
      auto quota = number_in(next_part(rest, ' '));
      add(quota, number_in(rest));
    });
  }
  if (const CgroupHierarchy* group = find(groups, "cpu")) {
    each_above(*group, [&](const std::string& folder) {
      add(number_in(text_of(folder + "/cpu.cfs_quota_us")),
          number_in(text_of(folder + "/cpu.cfs_period_us")));
    });
  }
  return least;
}

int64_t cgroup_oom_kills(const std::map<std::string, CgroupHierarchy>& groups) {
  int64_t count = 0;
  if (const CgroupHierarchy* group = find(groups, ""))
    count += field_of(text_of(group->folder + "/memory.events"), "oom_kill");
  if (const CgroupHierarchy* group = find(groups, "memory"))
    count += field_of(text_of(group->folder + "/memory.oom_control"), "oom_kill");
  return count;
}

int64_t usable_memory_bytes() {
  int64_t bytes = int64_t{::sysconf(_SC_PHYS_PAGES)} * ::sysconf(_SC_PAGESIZE);
  int64_t limit = cgroup_memory_limit(own_cgroups());
  return limit > 0 ? std::min(bytes, limit) : bytes;
}

int32_t usable_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  int64_t cpus = ::sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
  int64_t limit = cgroup_cpu_limit_milli(own_cgroups());
  if (limit > 0) cpus = std::min(cpus, (limit + kMilli - 1) / kMilli);
  return static_cast<int32_t>(std::max<int64_t>(1, cpus));
}

// ---- a group that flow created

bool Cgroup::set_memory_limit(int64_t bytes) const {
  if (!has_memory_) return false;
  std::string value = bytes > 0 ? std::to_string(bytes) : is_v2_ ? "max" : "-1";
  if (is_v2_) {
    // Swap would circumvent the memory limit.
    (void)write_value(folder_ + "/memory.swap.max", bytes > 0 ? "0" : "max");
    return write_value(folder_ + "/memory.max", value);
  }
  // The limit of memory and swap together is never below that of memory.
  bool has_swap = write_value(folder_ + "/memory.memsw.limit_in_bytes", "-1");
  if (!write_value(folder_ + "/memory.limit_in_bytes", value)) return false;
  if (has_swap && bytes > 0) (void)write_value(folder_ + "/memory.memsw.limit_in_bytes", value);
  if (!has_swap && bytes > 0) (void)write_value(folder_ + "/memory.swappiness", "0");
  return true;
}

int64_t Cgroup::anonymous_bytes() const {
  if (!has_memory_) return 0;
  std::string text = text_of(folder_ + "/memory.stat");
  if (!is_v2_) return field_of(text, "total_rss") + field_of(text, "total_shmem");
  return field_of(text, "anon") + field_of(text, "shmem");
}

int64_t Cgroup::peak_bytes() const {
  if (!has_memory_) return 0;
  const char* file = is_v2_ ? "/memory.peak" : "/memory.max_usage_in_bytes";
  return number_in(text_of(folder_ + file)).value_or(0);
}

void Cgroup::reset_peak() const {
  if (has_memory_ && !is_v2_) (void)write_value(folder_ + "/memory.max_usage_in_bytes", "0");
}

int64_t Cgroup::oom_kills() const {
  if (!has_memory_) return 0;
  return field_of(text_of(folder_ + (is_v2_ ? "/memory.events" : "/memory.oom_control")),
                  "oom_kill");
}

std::vector<pid_t> cgroup_members(const std::string& folder) {
  std::vector<pid_t> members;
  std::vector<std::string> folders{folder};
  for (size_t i = 0; i < folders.size(); i++) {
    std::string text = text_of(folders[i] + "/cgroup.procs");
    std::string_view rest = text;
    while (!rest.empty()) {
      auto number = number_in(next_part(rest, '\n'));
      if (number && *number > 1 && *number <= INT32_MAX)
        members.push_back(static_cast<pid_t>(*number));
    }
    std::error_code failed;
    for (fs::directory_iterator walk(folders[i], failed), end; !failed && walk != end;
         walk.increment(failed)) {
      std::error_code ignored;
      if (walk->is_directory(ignored)) folders.push_back(walk->path().string());
    }
  }
  return members;
}

bool remove_cgroup(const std::string& folder) {
  if (::rmdir(folder.c_str()) == 0 || errno == ENOENT) return true;
  std::error_code failed;
  for (fs::directory_iterator walk(folder, failed), end; !failed && walk != end;
       walk.increment(failed)) {
    std::error_code ignored;
    if (walk->is_directory(ignored)) remove_cgroup(walk->path().string());
  }
  return ::rmdir(folder.c_str()) == 0;
}

// ---- where groups can be created

namespace {

struct Candidate {
  std::string folder;
  bool is_v2 = false, has_memory = false;
};

/// In order of preference.
std::vector<Candidate> candidates(const std::map<std::string, CgroupHierarchy>& groups,
                                  std::string& why) {
  std::vector<Candidate> all;
  const CgroupHierarchy *v2 = find(groups, ""), *memory = find(groups, "memory");
  if (v2 != nullptr) {
    auto hands_on = [&](const std::string& folder) {
      return has_word(text_of(folder + "/cgroup.subtree_control"), "memory", ' ');
    };
    // A version 2 group that has processes passes no controller on, except the root. A sibling of
    // the group works as well.
    bool can = has_word(text_of(v2->folder + "/cgroup.controllers"), "memory", ' ');
    if (can && !hands_on(v2->folder))
      (void)write_value(v2->folder + "/cgroup.subtree_control", "+memory");
    if (hands_on(v2->folder)) all.push_back({v2->folder, true, true});
    std::string above = fs::path(v2->folder).parent_path().string();
    if (v2->folder.size() > v2->mount.size() && hands_on(above)) all.push_back({above, true, true});
  }
  if (memory != nullptr) all.push_back({memory->folder, false, true});
  if (all.empty()) why = "no memory controller of cgroups is mounted here";
  if (v2 != nullptr) all.push_back({v2->folder, true, false});
  for (const char* controller : {"freezer", "pids"}) {
    if (const CgroupHierarchy* group = find(groups, controller))
      all.push_back({group->folder, false, false});
  }
  return all;
}

/// Whether a group can be created there that a child process may join.
bool works(const Candidate& candidate, std::string& why) {
  std::string probe = candidate.folder + "/flow-probe-" + random_name();
  if (::mkdir(probe.c_str(), 0755) != 0) {
    why = "no group can be created in `" + candidate.folder + "`: " + std::strerror(errno);
    return false;
  }
  // A process that moves must also have write access to the common ancestor group.
  bool ok = ::access((probe + "/cgroup.procs").c_str(), W_OK) == 0 &&
            (!candidate.is_v2 || ::access((candidate.folder + "/cgroup.procs").c_str(), W_OK) == 0);
  if (!ok) why = "no process can be moved to a group in `" + candidate.folder + "`";
  const char* limit = candidate.is_v2 ? "/memory.max" : "/memory.limit_in_bytes";
  if (ok && candidate.has_memory && ::access((probe + limit).c_str(), W_OK) != 0) {
    why = "groups in `" + candidate.folder + "` have no memory limit";
    ok = false;
  }
  ::rmdir(probe.c_str());
  return ok;
}

}  // namespace

CgroupParent CgroupParent::find(const std::map<std::string, CgroupHierarchy>& groups) {
  CgroupParent parent;
  for (const Candidate& candidate : candidates(groups, parent.why_no_memory_)) {
    std::string why;
    if (!works(candidate, why)) {
      if (candidate.has_memory) parent.why_no_memory_ = why;
      continue;
    }
    parent.folder_ = candidate.folder;
    parent.is_v2_ = candidate.is_v2;
    parent.has_memory_ = candidate.has_memory;
    if (parent.has_memory_) parent.why_no_memory_.clear();
    return parent;
  }
  return parent;
}

Cgroup CgroupParent::make(const std::string& name) const {
  if (!exists()) return {};
  std::string folder = folder_ + "/" + name;
  if (::mkdir(folder.c_str(), 0755) != 0) return {};
  return {folder, is_v2_, has_memory_};
}

}  // namespace flow
