// Follows a run from start to end: shows it, stops it on Ctrl-C, and determines the exit code.
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "engine/cli/display/common.hpp"
#include "engine/cli/display/signals.hpp"

namespace flow::cli {

/// The meaning of Ctrl-C in each phase of the command. Created before the engine starts anything.
class Interrupts {
 public:
  Interrupts();
  /// From now on signals stop this run. `note` prints a line to stderr.
  void attach(Run run, int64_t grace_ms, std::function<void(const std::string&)> note);
  void set_serving(bool serving) { serving_ = serving; }
  int64_t elapsed_ms() const;  // time since construction, on a monotonic clock
  void begin_copy();  // from now on a signal stops the copying, and a second one ends the process
  void detach(int code);  // the run has ended; from now on a signal ends the process with its code

 private:
  void on_signal(int count);
  void stop();
  const int64_t began_ms_;
  std::mutex mutex_;
  std::optional<Run> run_;
  int64_t grace_ms_ = 0;
  std::function<void(const std::string&)> note_;
  int stop_requests_ = 0;  // signals that asked the attached run to stop
  int early_ = 0;          // signals before a run was attached
  std::shared_ptr<std::atomic<bool>> is_attached_ = std::make_shared<std::atomic<bool>>(false);
  bool is_copying_ = false, copy_stopped_ = false;
  std::optional<int> end_code_;
  std::atomic<bool> serving_{false};
  Signals signals_;  // last: its thread uses the other members
};

struct WatchOptions {
  int64_t grace_ms = 10'000;
  std::string out;      // folder to copy the result to
  bool strict = false;  // ignored failures make the exit code 1
  bool leaves = false;  // the run continues elsewhere when its services are ready
};

/// Shows the run until it ends, or until it is left, prints result, errors and summary. Returns the
/// exit code.
int watch(Engine& engine, Run run, const VerbContext& context, const WatchOptions& options,
          Interrupts& interrupts);

}  // namespace flow::cli
