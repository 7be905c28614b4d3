// The lock is flock(2) on DIR/lock: the kernel releases it with its holder, so that a stale lock
// never has to be removed.
#include "engine/store/lock.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string_view>

#include "engine/base/clock.hpp"
#include "engine/base/files.hpp"
#include "engine/base/ids.hpp"
#include "engine/base/size_units.hpp"
#include "engine/blobs/folder.hpp"
#include "engine/process/process_stat.hpp"

namespace flow {

namespace {

std::string lock_path(const std::string& dir) { return dir + "/lock"; }

std::string first_line(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

/// Keeps the state out of the git repository in which it lies, wherever that is.
constexpr std::string_view kIgnoreFile = ".gitignore";

/// Entries that a state or a worker creates before its lock, or that a file system has by itself.
constexpr std::string_view kOwnEntries[] = {"objects", "scratch",   "secret",    "spool",
                                            "log",     "clients",   "kernels",   "downloads",
                                            "fronts",  kIgnoreFile, "lost+found"};

/// An entry that shows that the folder is not a state and must not become one; "" if it may be
/// used.
std::string foreign_entry(const std::string& dir) {
  std::string foreign;
  std::error_code failed;
  for (std::filesystem::directory_iterator walk(dir, failed), end; !failed && walk != end;
       walk.increment(failed)) {
    std::string name = walk->path().filename().string();
    if (name == "lock" || name == "db") return "";
    if (std::ranges::find(kOwnEntries, name) == std::end(kOwnEntries)) foreign = name;
  }
  return foreign;
}

/// Of a new state. A state without the file works as well.
void ignore_in_git(const std::string& dir) {
  std::error_code failed;
  if (std::filesystem::exists(dir + "/db", failed)) return;
  std::string path = dir + "/" + std::string(kIgnoreFile);
  int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (file < 0) return;
  (void)!::write(file, "*\n", 2);
  ::close(file);
}

std::string own_holder_text() {
  char host[256] = "?";
  gethostname(host, sizeof host - 1);
  std::string at = format_time(now_ms());
  at.resize(at.rfind('.'));  // seconds are enough
  at += 'Z';
  auto stat = process_stat(getpid());
  return fmt::format("process {} on {} since {}\nboot {} start {}\n", getpid(), host, at, boot_id(),
                     stat ? stat->start_ticks : 0);
}

}  // namespace

Status no_broken_links(const std::string& dir, std::initializer_list<const char*> parts) {
  for (const char* part : parts) {
    std::string path = dir + "/" + part;
    std::string broken = broken_link(path);
    if (broken.empty()) continue;
    return environment_error(
        fmt::format("the state `{}` cannot be used: `{}` is {}. Mount the disk that holds it, or "
                    "correct the link",
                    dir, path, broken));
  }
  return {};
}

Status own_state(const std::string& dir) {
  struct stat info {};
  if (::stat(dir.c_str(), &info) != 0) {
    return environment_error(
        fmt::format("cannot read the state `{}`: {}", dir, std::strerror(errno)));
  }
  if (info.st_uid != geteuid()) {
    return environment_error(
        fmt::format("the state `{}` belongs to another user (uid {}): name your own with --state "
                    "DIR or FLOW_STATE",
                    dir, info.st_uid));
  }
  if (std::string foreign = foreign_entry(dir); !foreign.empty()) {
    return user_error(
        fmt::format("`{}` is not a state of flow: it holds `{}` and no database. Name an empty or "
                    "a new folder with --state DIR or FLOW_STATE",
                    dir, foreign));
  }
  std::error_code unreadable;
  bool shared = (info.st_mode & (S_IWGRP | S_IWOTH)) != 0;
  if (shared && !std::filesystem::is_empty(dir, unreadable)) {
    return environment_error(
        fmt::format("the state `{}` can be written by other users (mode {:04o}), so what is in it "
                    "may be theirs: if you trust it, `chmod 700 {}`",
                    dir, info.st_mode & 07777, quote_shell(dir)));
  }
  if ((info.st_mode & 07777) != 0700 && ::chmod(dir.c_str(), 0700) != 0) {
    return environment_error(
        fmt::format("cannot make the state `{}` private: {}", dir, std::strerror(errno)));
  }
  return {};
}

Result<std::unique_ptr<StateLock>> StateLock::acquire(const std::string& dir) {
  auto failed = [&](const char* what) {
    return environment_error(fmt::format(
        "cannot {} the state `{}`: {}; name another folder with --state DIR or FLOW_STATE", what,
        dir, std::strerror(errno)));
  };
  std::error_code made;
  std::filesystem::path parent = std::filesystem::path(dir).parent_path();
  if (!parent.empty()) std::filesystem::create_directories(parent, made);
  if (::mkdir(dir.c_str(), 0700) != 0 && errno != EEXIST) return failed("create");
  FLOW_TRY(own_state(dir));
  FLOW_TRY(no_broken_links(dir));
  int descriptor = ::open(lock_path(dir).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (descriptor < 0) return failed("write");
  if (::flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
    int error = errno;
    ::close(descriptor);
    if (error == EWOULDBLOCK) return std::unique_ptr<StateLock>();
    errno = error;
    return failed("lock");
  }
  std::string text = own_holder_text();
  bool written =
      ::ftruncate(descriptor, 0) == 0 &&
      ::pwrite(descriptor, text.data(), text.size(), 0) == static_cast<ssize_t>(text.size());
  if (!written) {
    Error error = failed("write");
    ::close(descriptor);
    return error;
  }
  ignore_in_git(dir);
  return std::unique_ptr<StateLock>(new StateLock(descriptor));
}

StateLock::~StateLock() { ::close(descriptor_); }

Status readable_state(const std::string& dir) {
  FLOW_TRY(no_broken_links(dir, {"db"}));
  for (const std::string& folder : {dir, dir + "/db"}) {
    if (::access(folder.c_str(), R_OK | X_OK) == 0 || errno == ENOENT || errno == ENOTDIR) continue;
    return environment_error(
        fmt::format("cannot read the state `{}`: `{}`: {}", dir, folder, std::strerror(errno)));
  }
  return {};
}

bool state_is_locked(const std::string& dir) {
  int descriptor = ::open(lock_path(dir).c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return false;
  // A shared lock fails while the writer holds its exclusive one; readers do not exclude each
  // other.
  bool busy = ::flock(descriptor, LOCK_SH | LOCK_NB) != 0;
  ::close(descriptor);
  return busy;
}

std::string lock_holder(const std::string& dir) {
  std::string line = first_line(lock_path(dir).c_str());
  return line.empty() ? "an unknown process" : line;
}

}  // namespace flow
