#include "engine/store/opening.hpp"

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
int lock_folder(const std::string& folder, Opening::Who who) {
  int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return -1;
  int how = (who == Opening::Who::writer ? LOCK_EX : LOCK_SH) | LOCK_NB;
  for (int i = 0; i < kTries; i++) {
    if (::flock(descriptor, how) == 0 || (errno != EWOULDBLOCK && errno != EINTR)) break;
    std::this_thread::sleep_for(kPause);
  }
  return descriptor;
}

void let_go(int descriptor) {
  if (descriptor >= 0) ::close(descriptor);
}

}  // namespace

// Through the outer folder goes one after the other: readers that come all the time do not keep a
// writer waiting.
Opening::Opening(const std::string& state_dir, Who who) {
  int turnstile = lock_folder(state_dir, who);
  descriptor_ = lock_folder(state_dir + "/db", who);
  let_go(turnstile);
}

Opening::~Opening() { let_go(descriptor_); }

}  // namespace flow
