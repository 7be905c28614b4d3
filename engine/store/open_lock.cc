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

/// The folder's descriptor, locked if that can be had.
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

// Through the outer folder goes one after the other: readers that come all the time do not keep a
// writer waiting.
OpenLock::OpenLock(const std::string& state_dir, Access access) {
  int turnstile = lock_folder(state_dir, access);
  descriptor_ = lock_folder(state_dir + "/db", access);
  release_lock(turnstile);
}

OpenLock::~OpenLock() { release_lock(descriptor_); }

}  // namespace flow
