// Delivers SIGINT, SIGTERM, SIGHUP and optionally one more signal as calls on an ordinary thread.
// At most one Signals object exists at a time.
#pragma once
#include <functional>
#include <thread>
#include <vector>

namespace flow::cli {

/// Call it first in main(). Later signals are kept for the verb's Signals object.
void hold_signals();
/// For a verb without a Signals object: restores the previous handlers. A kept signal ends the
/// process now, unless it is ignored.
void release_signals();
/// Sets the exit code with which a signal ends the process after the verb's Signals object is
/// destroyed.
void set_exit_code(int code);

/// Blocks these signals on the calling thread; the main thread handles them.
std::thread begin_thread(std::function<void()> run);

/// While it exists, SIGTSTP (Ctrl-Z) shows the terminal's cursor before it stops the process, as
/// without a handler. At most one exists at a time.
class CursorOnStop {
 public:
  CursorOnStop();
  ~CursorOnStop();
  CursorOnStop(const CursorOnStop&) = delete;
  CursorOnStop& operator=(const CursorOnStop&) = delete;
  /// Whether the process was stopped, and has continued, since the last call.
  bool was_stopped();

 private:
  bool is_handled_ = false;
};

class Signals {
 public:
  /// `on_signal(n)` is called for the n-th signal, from 1, on its own thread, including signals
  /// that were kept. `also` is one more signal to handle.
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
