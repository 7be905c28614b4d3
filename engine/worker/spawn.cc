// Starts and measures executor processes.
#include "engine/worker/spawn.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <map>
#include <set>
#include <string_view>

#include "engine/base/files.hpp"
#include "engine/base/ids.hpp"
#include "engine/base/open_files.hpp"
#include "engine/process/process_stat.hpp"
#include "engine/protocol/frames.hpp"

extern char** environ;

namespace flow {

namespace {

/// Whether the variable configures a library of the machine that an executor loads as it starts.
/// All others belong to the user who started the worker and may hold secrets; an attempt gets those
/// of its own run.
bool is_of_machine(std::string_view name) {
  constexpr std::string_view kNames[] = {"PATH", "HOME",   "LANG",          "LANGUAGE",
                                         "TZ",   "TMPDIR", "GLIBC_TUNABLES"};
  constexpr std::string_view kOfAttempts[] = {"FLOW_RUN", "FLOW_TASK", "FLOW_ATTEMPT"};
  constexpr std::string_view kPrefixes[] = {
      "LC_",   "LD_",   "CUDA_", "NVIDIA_", "NCCL_", "UCX_",  "OMP_",  "OPENBLAS_", "MALLOC_",
      "ASAN_", "TSAN_", "LSAN_", "UBSAN_",  "LLVM_", "FLOW_", "NVTX_", "NSYS_",     "QUADD_"};
  if (std::ranges::find(kOfAttempts, name) != std::end(kOfAttempts)) return false;
  return std::ranges::find(kNames, name) != std::end(kNames) ||
         std::ranges::any_of(kPrefixes, [&](auto prefix) { return name.starts_with(prefix); });
}

}  // namespace

std::vector<std::string> machine_environment(const EnvironmentVariables& variables) {
  std::vector<std::string> all;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; entry++) {
    std::string_view text = *entry, name = text.substr(0, text.find('='));
    bool is_replaced =
        std::ranges::any_of(variables, [&](const auto& v) { return v.first == name; });
    if (!is_replaced && is_of_machine(name)) all.emplace_back(text);
  }
  for (const auto& [name, value] : variables) all.push_back(name + "=" + value);
  return all;
}

namespace {

/// Duplicates the descriptor to a number above those that the child uses, because the host program
/// may have closed its standard streams.
int above_wire(int descriptor) {
  if (descriptor < 0 || descriptor > kWireDescriptor) return descriptor;
  int raised = ::fcntl(descriptor, F_DUPFD_CLOEXEC, kWireDescriptor + 1);
  ::close(descriptor);
  return raised;
}

}  // namespace

Result<ExecutorProcess> spawn_executor(const std::string& program,
                                       const std::vector<std::string>& arguments,
                                       EnvironmentVariables variables) {
  int wire[2], errors[2];
  auto failed = [&](const char* what, int error) {
    return environment_error(
        fmt::format("cannot {} `{}`: {}", what, program, std::strerror(error)));
  };
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, wire) != 0)
    return failed("make a socket for", errno);
  if (::pipe2(errors, O_CLOEXEC) != 0) {
    int error = errno;
    ::close(wire[0]);
    ::close(wire[1]);
    return failed("make a pipe for", error);
  }
  for (int* end : {&wire[0], &wire[1], &errors[0], &errors[1]}) *end = above_wire(*end);
  int buffer = 1 << 20;
  ::setsockopt(wire[0], SOL_SOCKET, SO_SNDBUF, &buffer, sizeof buffer);
  ::setsockopt(wire[1], SOL_SOCKET, SO_SNDBUF, &buffer, sizeof buffer);
  std::vector<std::string> words = {program};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv, envp;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  // OpenBLAS starts spinning threads when it is loaded. With 1 here, an attempt sets the number
  // that it may use.
  variables.emplace_back("OPENBLAS_NUM_THREADS", "1");
  std::vector<std::string> all = machine_environment(variables);
  for (std::string& variable : all) envp.push_back(variable.data());
  envp.push_back(nullptr);

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, errors[1], 1);
  posix_spawn_file_actions_adddup2(&actions, errors[1], 2);
  posix_spawn_file_actions_adddup2(&actions, wire[1], kWireDescriptor);
  posix_spawn_file_actions_addclosefrom_np(&actions, kWireDescriptor + 1);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none, defaults;
  sigemptyset(&none);
  sigfillset(&defaults);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &defaults);
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  ExecutorProcess process;
  int error =
      posix_spawn(&process.pid, program.c_str(), &actions, &attributes, argv.data(), envp.data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  ::close(wire[1]);
  ::close(errors[1]);
  if (error != 0) {
    ::close(wire[0]);
    ::close(errors[0]);
    return failed("start", error);
  }
  restore_open_files(process.pid);
  process.pidfd = static_cast<int>(::syscall(SYS_pidfd_open, process.pid, 0));
  process.wire = wire[0];
  process.errors = errors[0];
  ::fcntl(process.wire, F_SETFL, O_NONBLOCK);
  ::fcntl(process.errors, F_SETFL, O_NONBLOCK);
  return process;
}

int end_executor(const ExecutorProcess& child) {
  constexpr int kEndMs = 1000;
  ::kill(-child.pid, SIGKILL);
  int status = 0;
  pollfd ended{child.pidfd, POLLIN, 0};
  if (::poll(&ended, 1, kEndMs) > 0) ::waitpid(child.pid, &status, 0);
  for (int descriptor : {child.wire, child.errors, child.pidfd}) ::close(descriptor);
  return status;
}

// A process that left the group is still a child of the executor, or becomes one when its parent
// ends (PR_SET_CHILD_SUBREAPER).
namespace {

/// File-backed pages of a process, which the system can reclaim.
int64_t file_pages(pid_t pid) {
  auto status = read_file("/proc/" + std::to_string(pid) + "/status");
  if (!status.ok()) return 0;
  constexpr std::string_view kField = "\nRssFile:";
  size_t at = status->find(kField);
  if (at == std::string::npos) return 0;
  constexpr int64_t kKib = 1024;
  return std::strtoll(status->c_str() + at + kField.size(), nullptr, 10) * kKib /
         ::sysconf(_SC_PAGESIZE);
}

}  // namespace

int64_t resident_bytes(pid_t executor) { return resident_bytes(std::vector{executor}).front(); }

std::vector<int64_t> resident_bytes(const std::vector<pid_t>& executors) {
  std::multimap<pid_t, pid_t> children;
  std::map<pid_t, int64_t> pages;
  each_process([&](pid_t pid) {
    auto stat = process_stat(pid);
    if (!stat) return;
    children.emplace(stat->parent, pid);
    pages[pid] = stat->resident_pages;
  });
  std::vector<int64_t> sums;
  for (pid_t executor : executors) {
    int64_t sum = 0;
    std::set<pid_t> counted;
    std::vector<pid_t> next = {executor};
    while (!next.empty()) {
      pid_t pid = next.back();
      next.pop_back();
      if (!counted.insert(pid).second) continue;
      sum += pages[pid] - file_pages(pid);
      auto [first, last] = children.equal_range(pid);
      for (auto child = first; child != last; ++child) next.push_back(child->second);
    }
    sums.push_back(sum * ::sysconf(_SC_PAGESIZE));
  }
  return sums;
}

}  // namespace flow
