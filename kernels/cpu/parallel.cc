// A pool of threads that wait for parts of an operation. They start with the first operation that
// is large enough, and end with the process.
#include "kernels/cpu/parallel.hpp"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace flow::cpu {
namespace {

constexpr int kThreadsMax = 256;
// How often a thread looks for work, or for the end of it, before it sleeps: about 20 us, more than
// lies between two operations of a training step, and less than a user's other threads would miss.
constexpr int kLooks = 2000;

void relax() {
#if defined(__x86_64__)
  _mm_pause();
#else
  std::this_thread::yield();
#endif
}

// The parts of one operation are numbered; who comes takes the next. A round is opened by its
// number, so that a thread which comes late for one finds nothing there.
class Pool {
 public:
  void run(int threads, int64_t count, int64_t parts, PartsOf f) {
    std::lock_guard<std::mutex> turn(turn_);  // operations of several threads come one by one
    grow(std::min(threads, kThreadsMax) - 1);
    {
      std::lock_guard<std::mutex> hold(mutex_);
      call_ = &f;
      count_ = count;
      parts_ = parts;
      next_ = 0;
      left_.store(parts, std::memory_order_relaxed);
      round_.fetch_add(1, std::memory_order_release);
    }
    if (asleep_.load(std::memory_order_seq_cst) > 0) wake_.notify_all();
    while (take_part()) {
    }
    for (int look = 0; left_.load(std::memory_order_acquire) > 0; look++) {
      if (look < kLooks) {
        relax();
        continue;
      }
      std::unique_lock<std::mutex> hold(mutex_);
      done_.wait(hold, [&] { return left_.load(std::memory_order_acquire) == 0; });
    }
    std::lock_guard<std::mutex> hold(mutex_);
    call_ = nullptr;
  }

 private:
  void grow(int wanted) {
    for (; started_ < wanted; started_++) {
      sigset_t all, before;
      sigfillset(&all);
      pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are for the program's own threads
      std::thread([this] { serve(); }).detach();
      pthread_sigmask(SIG_SETMASK, &before, nullptr);
    }
  }

  bool take_part() {
    PartsOf* call = nullptr;
    int64_t part = 0, parts = 0, count = 0;
    {
      std::lock_guard<std::mutex> hold(mutex_);
      if (call_ == nullptr || next_ >= parts_) return false;
      call = call_;
      part = next_++;
      parts = parts_;
      count = count_;
    }
    (*call)(count * part / parts, count * (part + 1) / parts);
    if (left_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      std::lock_guard<std::mutex> hold(mutex_);
      done_.notify_one();
    }
    return true;
  }

  [[noreturn]] void serve() {
    pthread_setname_np(pthread_self(), "flow-compute");
    uint64_t seen = 0;
    for (;;) {
      for (int look = 0; look < kLooks && round_.load(std::memory_order_acquire) == seen; look++)
        relax();
      if (round_.load(std::memory_order_acquire) == seen) {
        std::unique_lock<std::mutex> hold(mutex_);
        asleep_.fetch_add(1, std::memory_order_seq_cst);
        wake_.wait(hold, [&] { return round_.load(std::memory_order_acquire) != seen; });
        asleep_.fetch_sub(1, std::memory_order_seq_cst);
      }
      seen = round_.load(std::memory_order_acquire);
      while (take_part()) {
      }
    }
  }

  std::mutex turn_;
  std::mutex mutex_;  // guards call_, count_, parts_, next_, and both waits
  std::condition_variable wake_, done_;
  PartsOf* call_ = nullptr;
  int64_t count_ = 0, parts_ = 0, next_ = 0;
  std::atomic<int64_t> left_{0};
  std::atomic<uint64_t> round_{0};
  std::atomic<int> asleep_{0};
  int started_ = 0;  // by who holds turn_
};

Pool& pool() {
  static Pool* made = new Pool;  // its threads live as long as the process: never destroyed
  return *made;
}

}  // namespace

void run_parts(int threads, int64_t count, int64_t parts, PartsOf f) {
  pool().run(threads, count, parts, f);
}

}  // namespace flow::cpu
