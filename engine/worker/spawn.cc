// Processes, from the worker's side.
#include "engine/worker/spawn.hpp"

#include <dirent.h>
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
#include <fstream>
#include <functional>
#include <set>

extern char** environ;

namespace flow {

namespace {

constexpr int kLeftoverRounds = 200;  // of 10 ms

/// Fields 3.. of /proc/PID/stat: state, parent, group, …
std::vector<std::string> stat_fields(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string line;
  std::getline(file, line);
  std::vector<std::string> fields;
  size_t at = line.rfind(')');
  if (at == std::string::npos) return fields;
  for (at += 2; at < line.size();) {
    size_t end = std::min(line.find(' ', at), line.size());
    fields.push_back(line.substr(at, end - at));
    at = end + 1;
  }
  return fields;
}

void each_process(const std::function<void(pid_t)>& visit) {
  DIR* proc = ::opendir("/proc");
  if (proc == nullptr) return;
  while (dirent* entry = ::readdir(proc)) {
    pid_t pid = static_cast<pid_t>(std::strtol(entry->d_name, nullptr, 10));
    if (pid > 0) visit(pid);
  }
  ::closedir(proc);
}

bool carries(pid_t pid, const std::string& wanted) {
  std::ifstream file(fmt::format("/proc/{}/environ", pid), std::ios::binary);
  std::string variable;
  while (std::getline(file, variable, '\0')) {
    if (variable == wanted) return true;
  }
  return false;
}

}  // namespace

Result<ExecutorProcess> spawn_executor(
    const std::string& program, const std::vector<std::string>& arguments,
    const std::vector<std::pair<std::string, std::string>>& variables) {
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
  int buffer = 1 << 20;
  ::setsockopt(wire[0], SOL_SOCKET, SO_SNDBUF, &buffer, sizeof buffer);
  ::setsockopt(wire[1], SOL_SOCKET, SO_SNDBUF, &buffer, sizeof buffer);
  std::vector<std::string> words = {program};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv, envp;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  std::vector<std::string> all;
  for (char** entry = environ; *entry != nullptr; entry++) {
    std::string_view text = *entry;
    bool replaced = std::any_of(variables.begin(), variables.end(),
                                [&](const auto& v) { return text.starts_with(v.first + "="); });
    if (!replaced) all.emplace_back(text);
  }
  for (const auto& [name, value] : variables) all.push_back(name + "=" + value);
  for (std::string& variable : all) envp.push_back(variable.data());
  envp.push_back(nullptr);

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, errors[1], 1);
  posix_spawn_file_actions_adddup2(&actions, errors[1], 2);
  posix_spawn_file_actions_adddup2(&actions, wire[1], 3);
  posix_spawn_file_actions_addclosefrom_np(&actions, 4);
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
  // A descriptor of ours that is 3 already would keep its close-on-exec flag through dup2.
  int error = wire[1] == 3 ? ::fcntl(3, F_SETFD, 0) : 0;
  if (error == 0)
    error =
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
  process.pidfd = static_cast<int>(::syscall(SYS_pidfd_open, process.pid, 0));
  process.wire = wire[0];
  process.errors = errors[0];
  ::fcntl(process.wire, F_SETFL, O_NONBLOCK);
  ::fcntl(process.errors, F_SETFL, O_NONBLOCK);
  return process;
}

void kill_leftovers(const std::string& state_dir) {
  std::string mark = "FLOW_SLOT=" + state_dir;
  // A flow that runs inside an attempt of this very state must not end itself or its parents.
  std::set<pid_t> own;
  for (pid_t pid = ::getpid(); pid > 1 && own.insert(pid).second;) {
    std::vector<std::string> fields = stat_fields(pid);
    pid = fields.size() > 1 ? static_cast<pid_t>(std::strtol(fields[1].c_str(), nullptr, 10)) : 0;
  }
  for (int round = 0; round < kLeftoverRounds; round++) {
    bool any = false;
    each_process([&](pid_t pid) {
      if (own.contains(pid) || !carries(pid, mark)) return;
      std::vector<std::string> fields = stat_fields(pid);
      if (fields.empty() || fields[0] == "Z") return;
      any = true;
      ::kill(pid, SIGKILL);
    });
    if (!any) return;
    ::poll(nullptr, 0, 10);
  }
}

int64_t resident_bytes(const std::vector<pid_t>& groups) {
  constexpr size_t kGroup = 2, kResident = 21;  // fields 5 and 24, counted from field 3
  int64_t pages = 0;
  each_process([&](pid_t pid) {
    std::vector<std::string> fields = stat_fields(pid);
    if (fields.size() <= kResident) return;
    pid_t group = static_cast<pid_t>(std::strtol(fields[kGroup].c_str(), nullptr, 10));
    if (std::find(groups.begin(), groups.end(), group) != groups.end())
      pages += std::strtoll(fields[kResident].c_str(), nullptr, 10);
  });
  return pages * ::sysconf(_SC_PAGESIZE);
}

}  // namespace flow
