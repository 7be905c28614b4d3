#include "engine/worker/leftovers.hpp"

#include <dirent.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <set>
#include <vector>

#include "engine/base/files.hpp"
#include "engine/base/ids.hpp"
#include "engine/environments/containers.hpp"
#include "engine/process/cgroup.hpp"
#include "engine/process/process_stat.hpp"
#include "engine/protocol/record_words.hpp"

namespace flow {

namespace {

constexpr int kRounds = 200;  // of 10 ms
constexpr uint64_t kStartsWithinS = 2;
constexpr const char *kCgroupSuffix = ".cgroup", *kContainerSuffix = ".container";

std::string slots_folder(const std::string& state_dir) { return state_dir + "/scratch/slots"; }

/// Only a complete line counts, because the writer may have died while writing it.
std::optional<std::string_view> first_line(std::string_view text) {
  size_t end = text.find('\n');
  if (end == std::string_view::npos) return std::nullopt;
  return text.substr(0, end);
}

/// Whether the process has an environment variable that begins with this "NAME=VALUE" and is not
/// one of `spared`.
bool carries(pid_t pid, const std::string& wanted, const std::set<std::string>& spared) {
  std::ifstream file(fmt::format("/proc/{}/environ", pid), std::ios::binary);
  std::string variable;
  while (std::getline(file, variable, '\0')) {
    if (variable.starts_with(wanted)) return !spared.contains(variable);
  }
  return false;
}

/// The processes to kill.
struct Leftovers {
  std::string mark;              // begin of the variable
  std::set<std::string> spared;  // variables of processes that stay
  std::vector<ProgramRecord> programs;
  std::vector<std::string> cgroups;
};

/// Whether the group of this number is still the one that was recorded.
bool has_its_leader(const ProgramRecord& program) {
  auto leader = process_stat(program.group);
  if (!leader || leader->group != program.group) return false;
  uint64_t last =
      program.start_ticks + kStartsWithinS * static_cast<uint64_t>(sysconf(_SC_CLK_TCK));
  return leader->start_ticks + 1 >= program.start_ticks && leader->start_ticks <= last;
}

/// This process and its parents, which a flow inside an attempt of the same state must not kill.
std::set<pid_t> own_family() {
  std::set<pid_t> own;
  for (pid_t pid = ::getpid(); pid > 1 && own.insert(pid).second;) {
    auto stat = process_stat(pid);
    pid = stat ? stat->parent : 0;
  }
  return own;
}

/// Kills repeatedly until nothing is left, because a killed process may just have started another.
void kill_all(const Leftovers& leftovers) {
  std::set<pid_t> own = own_family(), groups;
  for (const ProgramRecord& program : leftovers.programs) {
    if (has_its_leader(program)) groups.insert(program.group);
  }
  for (int round = 0; round < kRounds; round++) {
    bool any = false;
    auto end = [&](pid_t pid) { any = ::kill(pid, SIGKILL) == 0 || any; };
    for (const std::string& folder : leftovers.cgroups) {
      for (pid_t pid : cgroup_members(folder)) {
        auto stat = process_stat(pid);  // nothing without /proc
        bool has_ended = stat && stat->state == 'Z';
        if (!has_ended && !own.contains(pid)) end(pid);
      }
    }
    each_process([&](pid_t pid) {
      if (own.contains(pid)) return;
      auto stat = process_stat(pid);
      if (!stat || stat->state == 'Z') return;
      if (groups.contains(stat->group) || carries(pid, leftovers.mark, leftovers.spared)) end(pid);
    });
    if (!any) break;
    ::poll(nullptr, 0, 10);
  }
  for (const std::string& folder : leftovers.cgroups) remove_cgroup(folder);
}

std::string record_text(const std::string& path) {
  auto text = read_file(path, kRecordMax);
  return text.ok() ? std::move(*text) : "";
}

void add_program(const std::string& path, Leftovers& leftovers) {
  auto record = parse_program_record(record_text(path));
  if (record && record->boot == boot_id()) leftovers.programs.push_back(std::move(*record));
}

}  // namespace

std::optional<ProgramRecord> parse_program_record(std::string_view text) {
  auto line = first_line(text);
  if (!line) return std::nullopt;
  ProgramRecord record;
  record.boot = std::string(next_word(*line));
  bool ok = is_plain(record.boot) && read_number(next_word(*line), record.start_ticks) &&
            record.start_ticks < UINT64_MAX / 2 && read_number(next_word(*line), record.group) &&
            record.group > 1;  // group 1 is everything
  if (!ok) return std::nullopt;
  return record;
}

std::optional<CgroupRecord> parse_cgroup_record(std::string_view text, std::string_view state_id) {
  auto line = first_line(text);
  if (!line) return std::nullopt;
  CgroupRecord record;
  record.boot = std::string(next_word(*line));
  record.folder = std::string(*line);
  size_t last = record.folder.rfind('/');
  bool ok = is_plain(record.boot) && record.folder.starts_with('/') &&
            record.folder.find('\0') == std::string::npos &&
            record.folder.find("/../") == std::string::npos && is_plain(state_id);
  if (!ok) return std::nullopt;
  std::string_view name = std::string_view(record.folder).substr(last + 1);
  std::string prefix = cgroup_name(state_id, "");
  if (!name.starts_with(prefix) || !is_plain(name.substr(prefix.size()))) return std::nullopt;
  return record;
}

Result<std::string> state_id(const std::string& state_dir) {
  FLOW_TRY(make_dirs(state_dir + "/scratch"));
  struct stat info {};
  if (::stat(state_dir.c_str(), &info) != 0)
    return environment_error(
        fmt::format("cannot read the state `{}`: {}", state_dir, std::strerror(errno)));
  std::string here =
      fmt::format("{} {}", static_cast<uint64_t>(info.st_dev), static_cast<uint64_t>(info.st_ino));
  std::string path = state_dir + "/scratch/id";
  std::string text = record_text(path);
  if (auto line = first_line(text)) {
    std::string_view id = next_word(*line);
    if (is_plain(id) && *line == here) return std::string(id);
    // The directory was copied or moved: its slot files refer to processes of the original.
    std::error_code ignored;
    std::filesystem::remove_all(slots_folder(state_dir), ignored);
  }
  std::string id = random_name();
  FLOW_TRY(write_file_atomic(path, id + " " + here + "\n"));
  return id;
}

std::string slot_mark(const std::string& state_id, const std::string& name) {
  return state_id + ":" + name;
}

std::string cgroup_name(std::string_view state_id, const std::string& name) {
  return fmt::format("flow-{}-{}", state_id, name);
}

bool record_cgroup(const std::string& state_dir, const std::string& name,
                   const std::string& folder) {
  std::ofstream file(slots_folder(state_dir) + "/" + name + kCgroupSuffix, std::ios::trunc);
  file << boot_id() << ' ' << folder << '\n';
  file.close();
  return !file.fail();
}

void remove_old_cgroups(const std::string& parent) {
  constexpr time_t kAgeS = 600;  // one that was just made has no executor yet
  DIR* folder = parent.empty() ? nullptr : ::opendir(parent.c_str());
  if (folder == nullptr) return;
  time_t now = ::time(nullptr);
  while (dirent* entry = ::readdir(folder)) {
    std::string path = parent + "/" + entry->d_name;
    struct stat info {};
    bool is_ours = std::string_view(entry->d_name).starts_with("flow-");
    if (!is_ours || ::stat(path.c_str(), &info) != 0) continue;
    if (S_ISDIR(info.st_mode) && info.st_mtime + kAgeS < now) ::rmdir(path.c_str());
  }
  ::closedir(folder);
}

std::vector<ReplicaRecord> kill_leftovers(const std::string& state_dir,
                                          const std::string& state_id) {
  Leftovers leftovers;
  leftovers.mark = "FLOW_SLOT=" + slot_mark(state_id, "");
  std::vector<std::filesystem::path> files;
  std::error_code ignored;
  for (std::filesystem::directory_iterator walk(slots_folder(state_dir), ignored), end;
       !ignored && walk != end; walk.increment(ignored))
    files.push_back(walk->path());
  std::vector<ReplicaRecord> replicas;
  std::set<std::string> stems;  // of the files of spared executors
  for (const auto& file : files) {
    if (file.extension() != kReplicaSuffix) continue;
    auto record = parse_replica_record(record_text(file.string()));
    if (!record || !is_alive(*record)) continue;
    leftovers.spared.insert("FLOW_SLOT=" + slot_mark(state_id, record->slot));
    stems.insert(std::to_string(record->pid));
    stems.insert(record->slot);
    replicas.push_back(std::move(*record));
  }
  std::erase_if(files, [&](const auto& file) { return stems.contains(file.stem().string()); });
  for (const auto& file : files) {
    bool is_program = file.extension() != kCgroupSuffix && file.extension() != kContainerSuffix &&
                      file.extension() != kReplicaSuffix;
    if (is_program) add_program(file.string(), leftovers);
    if (file.extension() != kCgroupSuffix) continue;
    auto record = parse_cgroup_record(record_text(file.string()), state_id);
    if (record && record->boot == boot_id()) leftovers.cgroups.push_back(std::move(record->folder));
  }
  kill_all(leftovers);
  for (const auto& file : files) {
    if (file.extension() == kContainerSuffix) {
      remove_container(file.string());
    } else if (file.extension() == kReplicaSuffix) {
      remove_replica_record(state_dir, std::atoi(file.stem().c_str()));
    } else {
      std::filesystem::remove(file, ignored);
    }
  }
  return replicas;
}

std::string recorded_cgroup(const std::string& state_dir, const std::string& state_id,
                            const std::string& name) {
  auto record = parse_cgroup_record(
      record_text(slots_folder(state_dir) + "/" + name + kCgroupSuffix), state_id);
  return record && record->boot == boot_id() ? record->folder : "";
}

void kill_leftovers_of(const std::string& state_dir, pid_t executor, const std::string& mark,
                       const std::string& cgroup) {
  Leftovers leftovers;
  leftovers.mark = "FLOW_SLOT=" + mark;
  add_program(fmt::format("{}/{}", slots_folder(state_dir), executor), leftovers);
  if (!cgroup.empty()) leftovers.cgroups.push_back(cgroup);
  kill_all(leftovers);
  remove_replica_record(state_dir, executor);
  remove_container(container_record_path(state_dir, executor));
  ::unlink(container_variables_path(state_dir, executor).c_str());
}

void forget_slot(const std::string& state_dir, pid_t executor, const std::string& name,
                 const std::string& cgroup) {
  // An executor that was asked to end at once did not wait for its container.
  remove_container(container_record_path(state_dir, executor));
  ::unlink(container_variables_path(state_dir, executor).c_str());
  ::unlink(fmt::format("{}/{}", slots_folder(state_dir), executor).c_str());
  remove_replica_record(state_dir, executor);
  if (cgroup.empty()) return;
  if (remove_cgroup(cgroup))
    ::unlink(fmt::format("{}/{}{}", slots_folder(state_dir), name, kCgroupSuffix).c_str());
}

}  // namespace flow
