// SIGINT, SIGTERM and SIGHUP, or one more, as calls on an ordinary thread. At most one Signals
// lives at a time.
#pragma once
#include <functional>
#include <thread>
#include <vector>

namespace flow::cli {

/// First of all in main(): a signal from now on waits for the verb's Signals.
void hold_signals();
/// For a verb without Signals: a signal that was held ends the process now, and later ones do too.
void release_signals();
/// The process is about to end with this code: a signal that comes after the verb's Signals ends it
/// so.
void leave_with(int code);

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
