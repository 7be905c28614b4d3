#include "engine/api/rotated_output.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "engine/base/engine_thread.hpp"
#include "engine/base/file_descriptor.hpp"

namespace flow {

namespace {

/// Whether the path is still that of the open file.
bool is_at(const struct stat& file, const std::string& path) {
  struct stat there {};
  return ::stat(path.c_str(), &there) == 0 && there.st_dev == file.st_dev &&
         there.st_ino == file.st_ino;
}

}  // namespace

Status RotatedOutput::redirect(const RotatedOutputOptions& options) {
  constexpr int kOwnerOnly = 0600;
  FileDescriptor output(
      ::open(options.path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, kOwnerOnly));
  bool is_done = output.number >= 0;
  for (int descriptor : options.descriptors)
    is_done = is_done && ::dup2(output.number, descriptor) >= 0;
  if (is_done) return {};
  return environment_error(
      fmt::format("cannot write the log `{}`: {}", options.path, std::strerror(errno)));
}

RotatedOutput::RotatedOutput(RotatedOutputOptions options)
    : options_(std::move(options)), thread_(engine_thread([this] { watch(); })) {}

RotatedOutput::~RotatedOutput() {
  {
    std::lock_guard lock(mutex_);
    is_over_ = true;
    changed_.notify_one();
  }
  thread_.join();
}

void RotatedOutput::watch() {
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, options_.pause, [this] { return is_over_; })) check();
}

/// The lock of the file makes it one process that renames it.
void RotatedOutput::check() const {
  const int descriptor = options_.descriptors.front();
  struct stat file {};
  if (::fstat(descriptor, &file) != 0) return;
  if (is_at(file, options_.path)) {
    if (file.st_size < options_.bytes_max) return;
    FileDescriptor locked(::open(options_.path.c_str(), O_RDONLY | O_CLOEXEC));
    if (locked.number < 0 || ::flock(locked.number, LOCK_EX) != 0) return;
    if (is_at(file, options_.path)) ::rename(options_.path.c_str(), (options_.path + ".1").c_str());
  }
  (void)redirect(options_);
}

}  // namespace flow
