#include "engine/store/open_lock.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <thread>

namespace flow {

namespace {

constexpr int kTries = 500;
constexpr std::chrono::milliseconds kPause{5};

/// Opens the folder and locks it if possible.
int lock_folder(const std::string& folder, OpenLock::Access access) {
  int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return -1;
  int how = (access == OpenLock::Access::writer ? LOCK_EX : LOCK_SH) | LOCK_NB;
  for (int i = 0; i < kTries; i++) {
    if (::flock(descriptor, how) == 0 || (errno != EWOULDBLOCK && errno != EINTR)) break;
    std::this_thread::sleep_for(kPause);
  }
  return descriptor;
}

void release_lock(int descriptor) {
  if (descriptor >= 0) ::close(descriptor);
}

}  // namespace

// The lock of the outer folder is taken by one process at a time, so that a stream of readers
// cannot starve a writer.
OpenLock::OpenLock(const std::string& state_dir, Access access) {
  int turnstile = lock_folder(state_dir, access);
  descriptor_ = lock_folder(state_dir + "/db", access);
  release_lock(turnstile);
}

OpenLock::~OpenLock() { release_lock(descriptor_); }

}  // namespace flow
