// SIGINT, SIGTERM and SIGHUP as calls on an ordinary thread. At most one Signals lives at a time.
#pragma once
#include <functional>
#include <thread>

namespace flow::cli {

/// A thread that takes none of them: they are the main thread's.
std::thread begin_thread(std::function<void()> run);

class Signals {
 public:
  /// `on_signal(n)` is called for the n-th signal, from 1, on a thread of its own.
  explicit Signals(std::function<void(int count)> on_signal);
  ~Signals();
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

 private:
  void loop();
  std::function<void(int)> on_signal_;
  int read_end_ = -1;
  std::thread thread_;
};

}  // namespace flow::cli
