// While a Signals object exists, its handler writes one byte to a pipe and a thread reads it.
// Before that, handle_early() counts signals; afterwards handle_late() exits with the exit code, if
// it is known. The main thread's signal mask is not changed, because children would inherit it.
#include "engine/cli/display/signals.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <iterator>
#include <utility>

#include "engine/cli/display/common.hpp"

namespace flow::cli {

namespace {

constexpr int kHandled[] = {SIGINT, SIGTERM, SIGHUP};
constexpr char kArrived = 's', kQuit = 'q';
std::atomic<int> write_end{-1};

void notify(char what) {
  int saved = errno;
  int fd = write_end.load();
  if (fd >= 0) [[maybe_unused]]
    ssize_t ignored = write(fd, &what, 1);
  errno = saved;
}

void handle(int) { notify(kArrived); }

/// A signal that is kept from the start.
struct HeldSignal {
  int number = 0;
  std::atomic<int> arrived{0};
  std::atomic<bool> is_held{false};
  struct sigaction before {};
};
HeldSignal held_signals[] = {{SIGINT}, {SIGTERM}, {SIGHUP}, {SIGUSR2}};

void handle_early(int number) {
  for (HeldSignal& held : held_signals)
    if (held.number == number) held.arrived++;
}

std::atomic<int> exit_code_on_signal{-1};

void handle_late(int) {
  int code = exit_code_on_signal.load();
  if (code >= 0) _exit(code);
}

void release(HeldSignal& held) {
  if (!held.is_held.exchange(false)) return;
  sigaction(held.number, &held.before, nullptr);
  if (held.arrived > 0 && held.before.sa_handler == SIG_DFL) raise(held.number);
}

}  // namespace

void hold_signals() {
  struct sigaction action {};
  action.sa_handler = handle_early;
  action.sa_flags = SA_RESTART;
  for (HeldSignal& held : held_signals) {
    sigaction(held.number, nullptr, &held.before);
    if (held.number == SIGHUP && held.before.sa_handler == SIG_IGN) continue;  // nohup
    held.is_held = sigaction(held.number, &action, nullptr) == 0;
  }
}

void release_signals() {
  for (HeldSignal& held : held_signals) release(held);
}

void set_exit_code(int code) { exit_code_on_signal = code; }

std::thread begin_thread(std::function<void()> run) {
  sigset_t handled, before;
  sigemptyset(&handled);
  for (int number : kHandled) sigaddset(&handled, number);
  sigaddset(&handled, SIGUSR2);  // for verbs that also handle it
  pthread_sigmask(SIG_BLOCK, &handled, &before);
  std::thread thread(std::move(run));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

Signals::Signals(std::function<void(int)> on_signal, int also)
    : on_signal_(std::move(on_signal)), handled_(std::begin(kHandled), std::end(kHandled)) {
  if (also != 0) handled_.push_back(also);
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0)
    fail_environment("cannot make a pipe for signals: too many open files");
  read_end_ = ends[0];
  write_end = ends[1];
  thread_ = begin_thread([this] { loop(); });
  struct sigaction action {};
  action.sa_handler = handle;
  action.sa_flags = SA_RESTART;
  for (int number : handled_) {
    struct sigaction old {};
    sigaction(number, nullptr, &old);
    // SIGHUP stays ignored under nohup. The other two are handled even if a script's shell ignores
    // them.
    if (number == SIGHUP && old.sa_handler == SIG_IGN) continue;
    sigaction(number, &action, nullptr);
  }
  for (HeldSignal& held : held_signals) {
    bool is_ours = std::find(handled_.begin(), handled_.end(), held.number) != handled_.end();
    if (!is_ours) release(held);
    if (is_ours && held.is_held.exchange(false))
      for (int i = held.arrived; i > 0; i--) notify(kArrived);
  }
}

// The work is done: from now on a signal ends the process with the code of set_exit_code().
Signals::~Signals() {
  struct sigaction action {};
  action.sa_handler = handle_late;
  action.sa_flags = SA_RESTART;
  for (int number : handled_) {
    struct sigaction old {};
    sigaction(number, nullptr, &old);
    if (old.sa_handler == handle) sigaction(number, &action, nullptr);
  }
  notify(kQuit);
  thread_.join();
  close(write_end.exchange(-1));
  close(read_end_);
}

namespace {

std::atomic<bool> has_been_stopped{false};

// The default action stops the process only where a shell can continue it, unlike SIGSTOP.
void handle_stop(int) {
  int saved = errno;
  constexpr char kShowCursor[] = "\x1b[?25h";
  [[maybe_unused]] ssize_t ignored = write(STDOUT_FILENO, kShowCursor, sizeof kShowCursor - 1);
  struct sigaction action {
  }, handler{};
  action.sa_handler = SIG_DFL;
  sigaction(SIGTSTP, &action, &handler);
  raise(SIGTSTP);
  sigaction(SIGTSTP, &handler, nullptr);
  has_been_stopped = true;
  errno = saved;
}

}  // namespace

CursorOnStop::CursorOnStop() {
  struct sigaction action {
  }, before{};
  sigaction(SIGTSTP, nullptr, &before);
  if (before.sa_handler != SIG_DFL) return;
  action.sa_handler = handle_stop;
  action.sa_flags = SA_RESTART | SA_NODEFER;  // so that raise() stops at once
  is_handled_ = sigaction(SIGTSTP, &action, nullptr) == 0;
}

CursorOnStop::~CursorOnStop() {
  struct sigaction action {};
  action.sa_handler = SIG_DFL;
  if (is_handled_) sigaction(SIGTSTP, &action, nullptr);
}

bool CursorOnStop::was_stopped() { return has_been_stopped.exchange(false); }

void Signals::loop() {
  int count = 0;
  char what;
  for (;;) {
    ssize_t got = read(read_end_, &what, 1);
    if (got < 0 && errno == EINTR) continue;
    if (got != 1 || what == kQuit) return;
    on_signal_(++count);
  }
}

}  // namespace flow::cli
