// SIGINT, SIGTERM and SIGHUP, or one more, as calls on an ordinary thread. At most one Signals
// lives at a time.
#pragma once
#include <functional>
#include <thread>
#include <vector>

namespace flow::cli {

/// Call first in main(). Signals that arrive from now on are kept for the verb's Signals object.
void hold_signals();
/// For a verb without a Signals object: restores the former handlers. A signal that was kept ends
/// the process now, unless it is ignored.
void release_signals();
/// Sets the exit code that a signal ends the process with once the verb's Signals object is
/// destroyed.
void set_exit_code(int code);

/// A thread that takes none of them: they are the main thread's.
std::thread begin_thread(std::function<void()> run);

class Signals {
 public:
  /// `on_signal(n)` is called for the n-th signal, from 1, on a thread of its own, also for those
  /// that were held. `also` is one more that counts.
  explicit Signals(std::function<void(int count)> on_signal, int also = 0);
  ~Signals();
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

 private:
  void loop();
  std::function<void(int)> on_signal_;
  std::vector<int> handled_;
  int read_end_ = -1;
  std::thread thread_;
};

}  // namespace flow::cli
