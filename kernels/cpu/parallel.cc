// A pool of threads that execute parts of an operation. They start with the first operation that is
// large enough, and live as long as the process.
#include "kernels/cpu/parallel.hpp"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace flow::cpu {
namespace {

constexpr int kThreadsMax = 256;
// How often a thread polls for work, or for its end, before it sleeps: about 20 us, more than the
// time between two operations of a training step, and short enough for other threads of the
// machine.
constexpr int kSpinsMax = 2000;

void relax() {
#if defined(__x86_64__)
  _mm_pause();
#else
  std::this_thread::yield();
#endif
}

// A thread of the pool; it sleeps if `asleep`. The kernel tends to wake a thread on its last CPU,
// even if that is its waker's, where it would find the operation done every time.
struct Helper {
  pid_t id = 0;
  int cpu = -1;  // where it fell asleep
  bool asleep = false;
  bool is_held = false;  // pinned to one CPU, until it wakes
};

// The CPUs for helpers to wake on: each is not used by another thread of the pool, while there are
// enough.
class FreeCpus {
 public:
  FreeCpus() {
    if (::sched_getaffinity(0, sizeof free_, &free_) != 0) CPU_ZERO(&free_);
    all_ = free_;
    CPU_CLR(std::max(::sched_getcpu(), 0), &free_);
  }
  const cpu_set_t& all() const { return all_; }

  void take(Helper& helper) {
    if (helper.cpu >= 0 && CPU_ISSET(helper.cpu, &free_)) {
      CPU_CLR(helper.cpu, &free_);
      return;
    }
    int cpu = 0;
    while (cpu < CPU_SETSIZE && !CPU_ISSET(cpu, &free_)) cpu++;
    if (cpu == CPU_SETSIZE) return;
    cpu_set_t there;
    CPU_ZERO(&there);
    CPU_SET(cpu, &there);
    CPU_CLR(cpu, &free_);
    helper.is_held = ::sched_setaffinity(helper.id, sizeof there, &there) == 0;
  }

 private:
  cpu_set_t all_, free_;
};

// The parts of one operation are numbered; each thread takes the next one. The round's number
// prevents a thread that is late for it from taking a part.
class HelperPool {
 public:
  void run(int threads, int64_t count, int64_t parts, PartFunction f) {
    std::lock_guard<std::mutex> turn(turn_);  // operations of several threads run one by one
    grow(std::min(threads, kThreadsMax) - 1);
    {
      std::lock_guard<std::mutex> hold(mutex_);
      call_ = &f;
      count_ = count;
      parts_ = parts;
      next_ = 0;
      left_.store(parts, std::memory_order_relaxed);
      round_.fetch_add(1, std::memory_order_release);
      if (asleep_ > 0) {
        place(threads - 1);
        wake_.notify_all();
      }
    }
    while (run_next_part()) {
    }
    for (int spin = 0; left_.load(std::memory_order_acquire) > 0; spin++) {
      if (spin < kSpinsMax) {
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
    while (static_cast<int>(helpers_.size()) < wanted) {
      sigset_t all, before;
      sigfillset(&all);
      pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are for the program's own threads
      helpers_.push_back(std::make_unique<Helper>());
      std::thread([this, helper = helpers_.back().get()] { serve(*helper); }).detach();
      pthread_sigmask(SIG_SETMASK, &before, nullptr);
    }
  }

  // With mutex_ held.
  void place(int wanted) {
    FreeCpus free_cpus;
    cpus_ = free_cpus.all();
    for (auto& helper : helpers_)
      if (!helper->asleep) wanted--;
    for (auto& helper : helpers_)
      if (helper->asleep && wanted-- > 0) free_cpus.take(*helper);
  }

  bool run_next_part() {
    PartFunction* call = nullptr;
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

  void sleep(Helper& helper, uint64_t seen) {
    std::unique_lock<std::mutex> hold(mutex_);
    if (round_.load(std::memory_order_acquire) != seen) return;
    helper.cpu = ::sched_getcpu();
    helper.asleep = true;
    asleep_++;
    wake_.wait(hold, [&] { return round_.load(std::memory_order_acquire) != seen; });
    asleep_--;
    helper.asleep = false;
    if (!std::exchange(helper.is_held, false)) return;
    cpu_set_t cpus = cpus_;
    hold.unlock();
    ::sched_setaffinity(0, sizeof cpus, &cpus);
  }

  [[noreturn]] void serve(Helper& helper) {
    pthread_setname_np(pthread_self(), "flow-compute");
    helper.id = ::gettid();
    uint64_t seen = 0;
    for (;;) {
      for (int spin = 0; spin < kSpinsMax && round_.load(std::memory_order_acquire) == seen; spin++)
        relax();
      if (round_.load(std::memory_order_acquire) == seen) sleep(helper, seen);
      seen = round_.load(std::memory_order_acquire);
      while (run_next_part()) {
      }
    }
  }

  std::mutex turn_;
  std::mutex mutex_;  // guards call_, count_, parts_, next_, asleep_, cpus_, helpers, both waits
  std::condition_variable wake_, done_;
  PartFunction* call_ = nullptr;
  int64_t count_ = 0, parts_ = 0, next_ = 0;
  std::atomic<int64_t> left_{0};
  std::atomic<uint64_t> round_{0};
  int asleep_ = 0;
  cpu_set_t cpus_{};                              // that the caller may use
  std::vector<std::unique_ptr<Helper>> helpers_;  // grows with turn_ held
};

HelperPool& pool() {
  static HelperPool* made =
      new HelperPool;  // its threads live as long as the process: never destroyed
  return *made;
}

}  // namespace

void run_parts(int threads, int64_t count, int64_t parts, PartFunction f) {
  pool().run(threads, count, parts, f);
}

}  // namespace flow::cpu
