// Uses vfork and exec, because posix_spawn has neither a parent-death signal nor close_range; an
// executor is small.
#include "engine/executor/processes.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/close_range.h>
#include <linux/magic.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <system_error>
#include <thread>

#include "engine/base/files.hpp"
#include "engine/base/ids.hpp"
#include "engine/base/system_error.hpp"
#include "engine/process/process_stat.hpp"

namespace flow {

namespace {

struct OpenFile {
  int descriptor, from, flags;  // as in Redirection
  const char* path;
};

struct ChildSetup {
  const char* program;
  char* const* argv;
  char* const* envp;
  const char* directory;
  int out, err, slot;
  const char* slot_prefix;
  size_t slot_prefix_size;
  const OpenFile* files;
  size_t file_count;
};

// Writes "PREFIX PGID DIRECTORY\n" before the program starts, so that leftovers can be found.
void record_slot(const ChildSetup& what) {
  char line[128 + PATH_MAX];
  char digits[16];
  size_t size = what.slot_prefix_size, count = 0;
  for (pid_t pid = ::getpid(); pid > 0; pid /= 10)
    digits[count++] = static_cast<char>('0' + pid % 10);
  std::memcpy(line, what.slot_prefix, size);
  while (count > 0) line[size++] = digits[--count];
  line[size++] = ' ';
  size_t length = std::min(std::strlen(what.directory), size_t{PATH_MAX});
  std::memcpy(line + size, what.directory, length);
  size += length;
  line[size++] = '\n';
  (void)!::pwrite(what.slot, line, size, 0);
}

// A FIFO could block the parent, which waits until the program starts, and files of /proc would
// describe the parent.
bool needs_shell(const char* path) {
  struct stat info {};
  struct statfs system {};
  if (::stat(path, &info) != 0 || ::statfs(path, &system) != 0) return false;
  if (system.f_type == PROC_SUPER_MAGIC) return true;
  return !S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode) && std::strcmp(path, "/dev/null") != 0;
}

// Returns 0 or the errno.
int redirect(const OpenFile& file) {
  if (file.from >= 0) return ::dup2(file.from, file.descriptor) < 0 ? errno : 0;
  if (needs_shell(file.path)) return EWOULDBLOCK;
  constexpr mode_t kMode = 0666;  // as a shell does; the umask applies
  int opened = ::open(file.path, file.flags, kMode);
  if (opened < 0) return errno;
  ::dup2(opened, file.descriptor);
  ::close(opened);
  return 0;
}

// Runs in the child, which shares the parent's memory: only system calls, no writes to that memory.
[[noreturn]] void become(const ChildSetup& what, volatile int& failed) {
  sigset_t none;
  sigemptyset(&none);
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (what.slot >= 0) record_slot(what);
  int null = ::open("/dev/null", O_RDONLY);
  ::dup2(null, 0);
  ::dup2(what.out, 1);
  ::dup2(what.err, 2);
  ::syscall(SYS_close_range, 3u, ~0u, 0u);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::signal(SIGPIPE, SIG_DFL);  // the child must not inherit ignored signals
  ::signal(SIGINT, SIG_DFL);
  ::signal(SIGTERM, SIG_DFL);
  int error = ::chdir(what.directory) == 0 ? 0 : errno;
  for (size_t i = 0; error == 0 && i < what.file_count; i++) error = redirect(what.files[i]);
  if (error == 0) {
    ::execve(what.program, what.argv, what.envp);
    error = errno;
  }
  failed = error;
  ::_exit(127);
}

std::string command_of(pid_t pid) {
  auto words = read_file(fmt::format("/proc/{}/cmdline", pid));
  std::string text = words.ok() ? std::move(*words) : "";
  while (!text.empty() && text.back() == '\0') text.pop_back();
  std::replace(text.begin(), text.end(), '\0', ' ');
  return text.empty() ? fmt::format("process {}", pid) : text;
}

bool is_regular_file(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode) && info.st_nlink > 0;
}

/// Adds the files below `prefix` that the process has open for writing.
void add_descriptors(pid_t pid, const std::string& prefix, std::vector<std::string>& writes) {
  std::string folder = fmt::format("/proc/{}/fd", pid);
  DIR* open_files = ::opendir(folder.c_str());
  if (open_files == nullptr) return;
  while (dirent* entry = ::readdir(open_files)) {
    char target[PATH_MAX];
    std::string link = folder + "/" + entry->d_name;
    ssize_t size = ::readlink(link.c_str(), target, sizeof target);
    if (size <= 0) continue;
    std::string_view path(target, static_cast<size_t>(size));
    if (!path.starts_with(prefix) || !is_regular_file(link)) continue;
    auto info = read_file(fmt::format("/proc/{}/fdinfo/{}", pid, entry->d_name));
    size_t at = info.ok() ? info->find("flags:") : std::string::npos;
    if (at == std::string::npos) continue;
    unsigned long flags = std::strtoul(info->c_str() + at + 6, nullptr, 8);
    if ((flags & O_ACCMODE) != O_RDONLY) writes.emplace_back(path.substr(prefix.size()));
  }
  ::closedir(open_files);
}

/// Adds the files below `prefix` that the process has mapped shared and writable.
void add_mappings(pid_t pid, const std::string& prefix, std::vector<std::string>& writes) {
  auto maps = read_file(fmt::format("/proc/{}/maps", pid));
  if (!maps.ok()) return;
  for (size_t at = 0; at < maps->size();) {
    size_t end = std::min(maps->find('\n', at), maps->size());
    std::string_view line(maps->data() + at, end - at);
    at = end + 1;
    size_t rights = line.find(' ') + 1, path = line.find('/');
    bool is_written = path != line.npos && line.substr(rights, 4).starts_with("rw") &&
                      line.substr(rights, 4).ends_with('s');
    if (is_written && line.substr(path).starts_with(prefix) && !line.ends_with(" (deleted)"))
      writes.emplace_back(line.substr(path + prefix.size()));
  }
}

}  // namespace

std::string find_program(const std::string& name,
                         const std::map<std::string, std::string>& environment) {
  if (name.find('/') != std::string::npos) return name;
  auto path = environment.find("PATH");
  return find_in_path(name, path == environment.end() ? nullptr : &path->second);
}

SlotFile::SlotFile(const std::string& state_dir) {
  std::string folder = state_dir + "/scratch/slots";
  if (!make_dirs(folder).ok()) return;
  std::string path = fmt::format("{}/{}", folder, ::getpid());
  descriptor_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
}

std::string SlotFile::prefix() const {
  timespec now{};
  ::clock_gettime(CLOCK_BOOTTIME, &now);
  int64_t hz = ::sysconf(_SC_CLK_TCK);
  return fmt::format("{} {} ", boot_id(), now.tv_sec * hz + now.tv_nsec * hz / 1'000'000'000);
}

void SlotFile::clear() const {
  if (descriptor_ >= 0) (void)!::ftruncate(descriptor_, 0);
}

namespace {

std::thread joining;
std::atomic<bool> has_failed_to_join = false;

}  // namespace

void join_cgroup(const std::string& folder) {
  auto join = [path = folder + "/cgroup.procs"] {
    int file = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
    if (file < 0 || ::write(file, "0", 1) != 1) has_failed_to_join = true;
    if (file >= 0) ::close(file);
  };
  try {
    joining = std::thread(join);
  } catch (const std::system_error&) {  // the user's limit of threads is reached
    join();
  }
}

bool wait_for_cgroup() {
  if (joining.joinable()) joining.join();
  return !has_failed_to_join;
}

Result<ChildProcess> spawn(const SpawnRequest& what, const SlotFile& slot, int& failed_errno) {
  failed_errno = 0;
  wait_for_cgroup();
  std::vector<char*> argv, envp;
  for (const std::string& word : what.words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  std::vector<std::string> variables;
  variables.reserve(what.environment.size());
  for (const auto& [name, value] : what.environment) variables.push_back(name + "=" + value);
  for (std::string& variable : variables) envp.push_back(variable.data());
  envp.push_back(nullptr);
  int out[2], err[2];
  if (::pipe2(out, O_CLOEXEC) != 0)
    return environment_error(fmt::format("cannot make a pipe: {}", std::strerror(errno)));
  if (::pipe2(err, O_CLOEXEC) != 0) {
    ::close(out[0]);
    ::close(out[1]);
    return environment_error(fmt::format("cannot make a pipe: {}", std::strerror(errno)));
  }
  std::string prefix = slot.prefix();
  std::vector<OpenFile> files;
  for (const Redirection& each : what.redirections)
    files.push_back({each.descriptor, each.from, each.flags, each.path.c_str()});
  ChildSetup prepared{what.program.c_str(),   argv.data(),   envp.data(),
                      what.directory.c_str(), out[1],        err[1],
                      slot.descriptor(),      prefix.data(), prefix.size(),
                      files.data(),           files.size()};
  volatile int failed = 0;
  pid_t pid = ::vfork();
  if (pid == 0) become(prepared, failed);
  int fork_error = errno;
  ::close(out[1]);
  ::close(err[1]);
  if (pid < 0 || failed != 0) {
    ::close(out[0]);
    ::close(err[0]);
    if (pid > 0) ::waitpid(pid, nullptr, 0);
    failed_errno = pid > 0 ? failed : 0;
    int code = pid < 0 ? fork_error : failed;
    // The folder exists, so it is the program that is missing.
    bool is_missing = code == ENOENT && ::access(what.directory.c_str(), X_OK) == 0;
    Error error = system_error("start", what.program, code);
    if (is_missing) error.kind = ErrorKind::user;
    return error;
  }
  ChildProcess child;
  child.pid = pid;
  child.pidfd = static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));
  FLOW_CHECK(child.pidfd >= 0);  // Linux 5.3 and later; without it the end would go unnoticed
  child.out = out[0];
  child.err = err[0];
  ::fcntl(child.out, F_SETFL, O_NONBLOCK);
  ::fcntl(child.err, F_SETFL, O_NONBLOCK);
  return child;
}

int kill_children() {
  int killed = 0;
  for (int round = 0; round < 1000; round++) {
    siginfo_t info{};
    // One system call shows whether a child is left.
    if (::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 && errno == ECHILD)
      return killed;
    pid_t self = ::getpid();
    each_process([&](pid_t pid) {
      auto stat = process_stat(pid);
      if (!stat || stat->parent != self) return;
      ::kill(pid, SIGKILL);
      killed++;
    });
    // The children of a killed child become ours (PR_SET_CHILD_SUBREAPER): repeat until none is
    // left.
    while (::waitpid(-1, nullptr, 0) > 0) {
      if (::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == 0) break;
      info = {};
    }
  }
  return killed;
}

bool reap_children() {
  pid_t ended;
  do ended = ::waitpid(-1, nullptr, WNOHANG);
  while (ended > 0 || (ended < 0 && errno == EINTR));
  return ended == 0;
}

bool has_children() {
  siginfo_t info{};
  return ::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0;
}

std::vector<Descendant> descendants(const std::string& folder, bool stop) {
  constexpr int kRoundsMax = 20;  // a process may fork before the signal stops it
  std::vector<pid_t> pids;
  for (int round = 0; round < kRoundsMax; round++) {
    std::vector<pid_t> found = living_descendants(::getpid());
    bool is_complete = !stop || found.size() <= pids.size();
    pids = std::move(found);
    if (is_complete) break;
    for (pid_t pid : pids) ::kill(pid, SIGSTOP);
  }
  char* resolved = ::realpath(folder.c_str(), nullptr);
  std::string prefix = (resolved != nullptr ? resolved : folder) + std::string("/");
  std::free(resolved);
  std::vector<Descendant> all;
  for (pid_t pid : pids) {
    Descendant each{pid, command_of(pid), {}};
    add_descriptors(pid, prefix, each.writes);
    add_mappings(pid, prefix, each.writes);
    std::sort(each.writes.begin(), each.writes.end());
    each.writes.erase(std::unique(each.writes.begin(), each.writes.end()), each.writes.end());
    all.push_back(std::move(each));
  }
  return all;
}

void wait_until_read() {
  constexpr int kRoundsMax = 50'000;  // of 100 us
  int unread = 0;
  for (int round = 0; round < kRoundsMax; round++) {
    if (::ioctl(STDERR_FILENO, FIONREAD, &unread) != 0 || unread == 0) return;
    ::usleep(100);
  }
}

void keep_descriptors() { ::syscall(SYS_close_range, 3u, ~0u, CLOSE_RANGE_CLOEXEC); }

}  // namespace flow
