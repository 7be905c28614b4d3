#include "engine/front/front_folder.hpp"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "engine/base/clock.hpp"
#include "engine/base/files.hpp"

namespace flow {

namespace {

constexpr int kOwnerOnly = 0600;

std::string stamp() {
  int64_t ms = now_ms();
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:03}Z", fmt::gmtime(static_cast<time_t>(ms / 1000)),
                     ms % 1000);
}

}  // namespace

FrontLog::FrontLog(int folder, std::string name) : folder_(folder), name_(std::move(name)) {
  open();
}

void FrontLog::open() {
  int file =
      ::openat(folder_, name_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, kOwnerOnly);
  if (file < 0) return;
  struct stat status {};
  if (::fstat(file, &status) == 0) bytes_ = status.st_size;
  ::dup2(file, STDOUT_FILENO);
  ::dup2(file, STDERR_FILENO);
  ::close(file);
}

void FrontLog::write(const std::string& line) {
  std::lock_guard lock(mutex_);
  if (bytes_ >= kBytesMax) {
    ::renameat(folder_, name_.c_str(), folder_, (name_ + ".1").c_str());
    open();
  }
  std::string text = fmt::format("{} {}\n", stamp(), line);
  bytes_ += static_cast<int64_t>(text.size());
  write_all(STDERR_FILENO, text);
}

Result<std::unique_ptr<FrontFolder>> FrontFolder::open(const std::string& path) {
  auto failed = [&](const char* what) {
    return environment_error(
        fmt::format("cannot {} the folder {} of a front: {}", what, path, std::strerror(errno)));
  };
  FLOW_TRY(make_dirs(path));
  int folder = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return failed("open");
  int lock = ::openat(folder, kLock, O_RDWR | O_CREAT | O_CLOEXEC, kOwnerOnly);
  if (lock >= 0 && ::flock(lock, LOCK_EX | LOCK_NB) == 0)
    return std::unique_ptr<FrontFolder>(new FrontFolder(path, folder, lock));
  bool is_held = lock >= 0 && errno == EWOULDBLOCK;
  Status error = failed("lock");
  if (lock >= 0) ::close(lock);
  ::close(folder);
  if (is_held) return std::unique_ptr<FrontFolder>();
  return error.error();
}

FrontFolder::~FrontFolder() {
  ::close(lock_);
  ::close(folder_);
}

void FrontFolder::clear() const {
  ::unlinkat(folder_, kSocket, 0);
  ::unlinkat(folder_, kPid, 0);
  ::unlinkat(folder_, kTraffic, 0);
}

}  // namespace flow
