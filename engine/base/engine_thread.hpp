// Threads of the engine's own, in whatever process it is embedded.
#pragma once
#include <pthread.h>

#include <csignal>
#include <thread>
#include <utility>

namespace flow {

/// What threads that begin meanwhile inherit: the host's signals are for the host's threads. The
/// faults of a thread's own are not among them.
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
