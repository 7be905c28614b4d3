// The engine's own threads, in a host program's process.
#pragma once
#include <pthread.h>

#include <csignal>
#include <thread>
#include <utility>

namespace flow {

/// While it lives, new threads start with all signals blocked except synchronous faults: the host
/// program's signals are for its own threads.
class NoSignals {
 public:
  NoSignals() {
    sigset_t all;
    sigfillset(&all);
    for (int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT})
      sigdelset(&all, fault);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~NoSignals() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  NoSignals(const NoSignals&) = delete;
  NoSignals& operator=(const NoSignals&) = delete;

 private:
  sigset_t before_;
};

template <typename F>
std::thread engine_thread(F&& run) {
  NoSignals none;
  return std::thread(std::forward<F>(run));
}

}  // namespace flow
