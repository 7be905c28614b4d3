// flow doctor: checks the machine and the state, and reports obstacles for runs.
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "engine/cli/verbs/verbs.hpp"
#include "flow/machine.hpp"
#include "flow_build_config.hpp"

namespace flow::cli {

namespace fs = std::filesystem;

namespace {

struct Check {
  enum class Verdict { ok, warning, problem } verdict;
  std::string name, text;
  std::string more{};  // additional fields of its JSON
};
using Verdict = Check::Verdict;

constexpr uint64_t kFreeBytesMin = uint64_t{1} << 30;
constexpr rlim_t kOpenFilesMin = 1024;

Check check_executor(const EngineOptions& options) {
  try {
    std::string program = executor_program(options);
    if (access(program.c_str(), X_OK) == 0) return {Verdict::ok, "executor", program};
    return {Verdict::problem, "executor",
            "`" + program + "` cannot be executed: " + std::strerror(errno)};
  } catch (const Failed& failed) {
    return {Verdict::problem, "executor", failed.error.message};
  }
}

Check check_cpus(const MachineLimits& limits) {
  std::string text = std::to_string(limits.cpus) + " (the default of --jobs";
  if (limits.is_cgroup_cpus) text += "; the limit of the control group";
  return {Verdict::ok, "cpus", text + ")"};
}

Check check_memory(const MachineLimits& limits) {
  std::string text = format_bytes(static_cast<uint64_t>(limits.memory_bytes));
  if (limits.is_cgroup_memory) text += " (the limit of the control group)";
  return {Verdict::ok, "memory", text};
}

Check check_memory_limits(const MachineLimits& limits) {
  if (limits.is_memory_enforced)
    return {Verdict::ok, "memory limits", "by the kernel: " + limits.memory_enforcement};
  return {Verdict::warning, "memory limits",
          "the memory of a task is measured every 0.1 s, so it may exceed its `memory` for that "
          "time: " +
              limits.memory_enforcement};
}

std::string json_of(const Gpu& gpu) {
  std::string json = ",\"gpu\":{\"index\":" + std::to_string(gpu.index);
  json += ",\"uuid\":" + json_text(gpu.uuid) + ",\"name\":" + json_text(gpu.name);
  json += ",\"memory_bytes\":" + std::to_string(gpu.memory_bytes);
  json += ",\"pci\":" + json_text(gpu.pci) + ",\"mig\":" + (gpu.is_mig ? "true" : "false");
  json += ",\"numa\":" + (gpu.numa < 0 ? "null" : std::to_string(gpu.numa));
  json += ",\"nvlink\":" + (gpu.nvlink < 0 ? "null" : std::to_string(gpu.nvlink));
  return json + ",\"fabric\":" + text_or_null(gpu.fabric) + "}";
}

/// Notes on workers and failed GPUs from the flow process that has the state open, if there is one.
/// A driver does not report a failed GPU again.
void add_workers(const EngineOptions& options, std::vector<Check>& checks) {
  ClusterInfo cluster;
  try {
    cluster = cluster_info(options);
  } catch (const Failed&) {
    return;  // no process has the state open
  }
  for (const NodeInfo& node : cluster.nodes) {
    if (!node.note.empty())
      checks.push_back(
          {Verdict::warning, "workers",
           (node.name.empty() ? "the head" : "`" + node.name + "`") + ": " + node.note});
    for (const Gpu& gpu : node.gpus)
      if (!gpu.fault.empty())
        checks.push_back(
            {Verdict::warning, "GPUs",
             (node.name.empty() ? "" : "`" + node.name + "`: ") + fault_text(node, gpu)});
  }
}

/// One line per GPU, per fault, and per GPU library.
std::vector<Check> check_gpus(const EngineOptions& options) {
  MachineGpus machine;
  try {
    machine = machine_gpus(options);
  } catch (const Failed& failed) {
    return {{Verdict::warning, "GPUs", failed.error.message}};
  }
  std::vector<Check> checks;
  for (const Gpu& gpu : machine.gpus) {
    std::string text = gpu.name + ", " + format_bytes(static_cast<uint64_t>(gpu.memory_bytes)) +
                       ", " + gpu.uuid + ", PCI " + gpu.pci;
    if (gpu.numa >= 0) text += ", NUMA node " + std::to_string(gpu.numa);
    if (gpu.nvlink >= 0) text += ", NVLink " + std::to_string(gpu.nvlink);
    if (!gpu.fabric.empty()) text += ", fabric " + gpu.fabric;
    checks.push_back({Verdict::ok, "GPU " + std::to_string(gpu.index), text, json_of(gpu)});
  }
  for (const std::string& problem : machine.problems)
    checks.push_back({Verdict::warning, "GPUs", problem});
  if (checks.empty()) checks.push_back({Verdict::ok, "GPUs", "none: " + machine.why_none});
  add_workers(options, checks);
  if (machine.gpus.empty()) return checks;
  for (const GpuLibrary& library : gpu_libraries())
    checks.push_back(
        {library.is_fine ? Verdict::ok : Verdict::warning, library.name, library.text});
  return checks;
}

Check check_open_files() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  std::string text = limit.rlim_cur == RLIM_INFINITY ? "unlimited" : std::to_string(limit.rlim_cur);
  if (limit.rlim_cur >= kOpenFilesMin) return {Verdict::ok, "open files", text};
  return {Verdict::warning, "open files",
          text + ": many tasks at once need more. Raise it with `ulimit -n 4096`."};
}

/// The nearest existing folder above `path`, in which a new state would be created.
std::string existing_above(const std::string& path) {
  std::error_code failed;
  fs::path at = fs::absolute(path, failed);
  while (!at.empty() && !fs::exists(at, failed) && at != at.root_path()) at = at.parent_path();
  return at.string();
}

Check check_state(const std::string& dir) {
  struct stat found {};
  if (stat(dir.c_str(), &found) != 0) {
    std::string above = existing_above(dir);
    if (access(above.c_str(), W_OK) != 0) {
      return {
          Verdict::problem, "state",
          dir + " does not exist, and `" + above + "` cannot be written: " + std::strerror(errno)};
    }
    return {Verdict::ok, "state", dir + " (made by the first run)"};
  }
  if (found.st_uid != geteuid()) {
    return {Verdict::problem, "state",
            dir + " belongs to another user. Choose another with --state DIR."};
  }
  if (access(dir.c_str(), W_OK) != 0) {
    return {Verdict::problem, "state", dir + " cannot be written: " + std::strerror(errno)};
  }
  std::string broken = broken_state_link(dir);
  if (!broken.empty()) return {Verdict::problem, "state", broken};
  std::string unusable = unusable_state(dir);
  if (!unusable.empty()) return {Verdict::problem, "state", unusable};
  if ((found.st_mode & 077) != 0) {
    return {Verdict::warning, "state",
            dir + " can be opened by others: `chmod 700 " + dir + "` closes it."};
  }
  return {Verdict::ok, "state", dir};
}

Check check_file_system(const std::string& dir) {
  std::string place = existing_above(dir);
  struct statfs system {};
  if (statfs(place.c_str(), &system) != 0) {
    return {Verdict::problem, "file system", place + ": " + std::strerror(errno)};
  }
  constexpr long kNfs = 0x6969, kCifs = 0xff534d42, kSmb2 = 0xfe534d42, kTmpfs = 0x01021994;
  struct {
    long magic;
    const char* name;
  } known[] = {{0xef53, "ext4"},    {0x58465342, "xfs"},     {0x9123683e, "btrfs"},
               {kTmpfs, "tmpfs"},   {0x794c7630, "overlay"}, {kNfs, "nfs"},
               {kCifs, "cifs"},     {kSmb2, "smb2"},         {0x2fc12fc1, "zfs"},
               {0x65735546, "fuse"}};
  long magic = static_cast<long>(system.f_type);
  std::string name = "type " + std::to_string(magic);
  for (const auto& each : known) {
    if (each.magic == magic) name = each.name;
  }
  uint64_t free_bytes =
      static_cast<uint64_t>(system.f_bavail) * static_cast<uint64_t>(system.f_bsize);
  std::string text = name + ", " + format_bytes(free_bytes) + " free";
  if (magic == kNfs || magic == kCifs || magic == kSmb2) {
    return {
        Verdict::warning, "file system",
        text +
            ": a network file system may not keep what was synced. Put the state on a local disk."};
  }
  if (magic == kTmpfs) {
    return {Verdict::warning, "file system", text + ": the state is gone after a reboot."};
  }
  if (free_bytes < kFreeBytesMin)
    return {Verdict::warning, "file system", text + ": free some space."};
  return {Verdict::ok, "file system", text};
}

Check check_bash() {
  for (const char* path : {"/bin/bash", "/usr/bin/bash", "/usr/local/bin/bash"}) {
    if (access(path, X_OK) == 0) return {Verdict::ok, "bash", path};
  }
  return {Verdict::warning, "bash",
          "not found: shell tasks need it, or `shell = { \"sh\", \"-eu\", \"-c\" }`."};
}

/// The libraries that GPUs use tell more than the build options.
Check check_nccl(std::vector<Check>& gpus) {
  auto found = std::find_if(gpus.begin(), gpus.end(),
                            [](const Check& check) { return check.name == "NCCL"; });
  if (found == gpus.end()) return {Verdict::ok, "NCCL", FLOW_BUILD_NCCL};
  Check check = std::move(*found);
  gpus.erase(found);
  return check;
}

std::vector<Check> all_checks(const EngineOptions& options) {
  utsname system{};
  uname(&system);
  std::string dir = state_directory(options);
  std::vector<Check> gpus = check_gpus(options);
  MachineLimits limits = machine_limits();
  std::vector<Check> checks = {
      {Verdict::ok, "flow",
       std::string(version()) + ", " + FLOW_BUILD_TYPE + ", " + FLOW_BUILD_COMPILER},
      {Verdict::ok, "system",
       std::string(system.sysname) + " " + system.release + " " + system.machine},
      check_executor(options),
      check_state(dir),
      check_file_system(dir),
      check_cpus(limits),
      check_memory(limits),
      check_memory_limits(limits),
      check_open_files(),
      check_bash(),
      {Verdict::ok, "CUDA", FLOW_BUILD_CUDA},
      check_nccl(gpus),
      {Verdict::ok, "UCX", FLOW_BUILD_UCX},
  };
  for (Check& check : gpus) checks.push_back(std::move(check));
  return checks;
}

const char* word(Verdict verdict) {
  switch (verdict) {
    case Verdict::ok:
      return "ok";
    case Verdict::warning:
      return "warning";
    case Verdict::problem:
      return "problem";
  }
  return "";
}

}  // namespace

void add_doctor(CLI::App& app, VerbContext& context) {
  CLI::App* verb = add_verb(app, context, "doctor", "check the machine and the state");
  verb->callback([&context] {
    context.action = [&context] {
      std::vector<std::vector<std::string>> rows;
      bool sound = true;
      for (const Check& check : all_checks(context.engine())) {
        sound &= check.verdict != Verdict::problem;
        rows.push_back({word(check.verdict), check.name, check.text});
        if (!context.json) continue;
        print_line("{\"check\":" + json_text(check.name) +
                   ",\"verdict\":" + json_text(word(check.verdict)) +
                   ",\"text\":" + json_text(check.text) + check.more + "}");
      }
      std::string text = context.json ? "" : table(rows);
      print_text(text);
      return sound ? int{kDone} : int{kUnreachable};
    };
  });
}

}  // namespace flow::cli
