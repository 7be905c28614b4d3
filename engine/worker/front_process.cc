#include "engine/worker/front_process.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <vector>

#include "engine/base/file_descriptor.hpp"
#include "engine/base/files.hpp"
#include "engine/base/open_files.hpp"
#include "engine/base/unix_socket.hpp"
#include "engine/worker/spawn.hpp"

namespace flow {

namespace {

int open_pidfd(pid_t pid) { return static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)); }

struct FrontSetup {
  char* const* argv;
  char* const* envp;
  const char* log;
};

// Both run in a child that shares the memory of this process: only system calls.
[[noreturn]] void become_front(const FrontSetup& what, volatile int& failed) {
  int null = ::open("/dev/null", O_RDONLY);
  int log = ::open(what.log, O_WRONLY | O_CREAT | O_APPEND, 0600);
  ::dup2(null, STDIN_FILENO);
  ::dup2(log, STDOUT_FILENO);
  ::dup2(log, STDERR_FILENO);
  ::syscall(SYS_close_range, 3u, ~0u, 0u);
  for (int number : {SIGPIPE, SIGHUP, SIGINT, SIGTERM, SIGCHLD}) ::signal(number, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::execve(what.argv[0], what.argv, what.envp);
  failed = errno;
  ::_exit(127);
}
[[noreturn]] void start_orphan(const FrontSetup& what, volatile pid_t& pid, volatile int& failed) {
  ::setsid();
  pid_t front = ::vfork();
  if (front == 0) become_front(what, failed);
  if (front < 0) failed = errno;
  pid = front;
  ::_exit(0);
}

/// Starts it as the child of a process that has ended. Its output goes to front.log in the folder.
/// Returns the errno, or 0.
int spawn_front(std::vector<std::string> words, const std::string& folder, pid_t& pid) {
  std::vector<std::string> variables = machine_environment({});
  std::vector<char*> argv, envp;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  for (std::string& variable : variables) envp.push_back(variable.data());
  envp.push_back(nullptr);
  std::string log = folder + "/front.log";
  FrontSetup setup{argv.data(), envp.data(), log.c_str()};
  volatile pid_t front = -1;
  volatile int failed = 0;
  sigset_t all, before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);  // no handler runs in the child
  pid_t middle = ::vfork();
  if (middle == 0) start_orphan(setup, front, failed);
  int error = middle < 0 ? errno : failed;
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  while (middle > 0 && ::waitpid(middle, nullptr, 0) < 0 && errno == EINTR) {
  }
  pid = front;
  if (error == 0) restore_open_files(pid);
  return error;
}

}  // namespace

void remove_ended_fronts(const std::string& state_dir) {
  constexpr time_t kStartS = 60;
  namespace fs = std::filesystem;
  std::error_code failed;
  std::vector<fs::path> folders;
  for (fs::directory_iterator walk(state_dir + "/fronts", failed), end; !failed && walk != end;
       walk.increment(failed))
    folders.push_back(walk->path());
  for (const fs::path& folder : folders) {
    struct stat info {};
    bool is_old = ::stat(folder.c_str(), &info) == 0 && info.st_mtime + kStartS < ::time(nullptr);
    if (!is_old) continue;
    FileDescriptor lock(::open((folder / "front.lock").c_str(), O_RDWR | O_CLOEXEC));
    bool is_held = lock.number >= 0 && ::flock(lock.number, LOCK_EX | LOCK_NB) != 0;
    if (!is_held) fs::remove_all(folder, failed);
  }
}

uint16_t read_gate_port(const std::string& folder, pid_t front) {
  constexpr size_t kFileMax = 64;  // bytes
  auto text = read_file(folder + "/front.gate", kFileMax);
  unsigned port = 0;
  long pid = 0;
  bool is_complete = text.ok() && std::sscanf(text->c_str(), "%u %ld\n", &port, &pid) == 2;
  return is_complete && pid == front && port <= UINT16_MAX ? static_cast<uint16_t>(port) : 0;
}

std::string front_program(const std::string& executor) {
  return (std::filesystem::path(executor).parent_path() / "flow-front").string();
}

Result<FrontProcess> find_or_start_front(const std::string& program, const std::string& folder,
                                         int64_t lease_ms) {
  FLOW_TRY(make_dirs(folder));
  FrontProcess front;
  if (auto connected = connect_unix(folder + "/front.sock"); connected.ok()) {
    FileDescriptor connection(*connected);
    front.pid = peer_of(connection.number);
    if (front.pid > 0) front.pidfd = open_pidfd(front.pid);
  }
  if (front.pidfd >= 0) return front;
  int error = spawn_front({program, "--folder", folder, "--lease", std::to_string(lease_ms)},
                          folder, front.pid);
  if (error != 0)
    return environment_error(fmt::format("cannot start `{}`, the front of the service: {}", program,
                                         std::strerror(error)));
  front.pidfd = open_pidfd(front.pid);
  front.is_new = true;
  return front;
}

}  // namespace flow
