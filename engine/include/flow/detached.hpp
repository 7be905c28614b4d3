// Runs that outlive the process that starts them: a program in its own session executes the run,
// and reports to the process that started it while that process reads the reports. `flow run
// --detach` uses it; a client of a head needs RunOptions::detached only.
#pragma once
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "flow/flow.hpp"

namespace flow {

/// A report of a detached program to the process that started it.
struct DetachedReport {
  std::string type;                   ///< started, serving, warning, error, ended
  std::string run, name, pipeline;    ///< of started
  int32_t pid = 0;                    ///< of started: the program's
  std::string log;                    ///< of started: path of the file with its output
  std::vector<ServiceInfo> services;  ///< of started and serving: only names and URLs
  std::string text;                   ///< of a warning or an error
  int32_t exit_code = 0;              ///< of ended
};

/// A program that this process started. It is not a child of this process, so it is not reaped
/// here. Used by one thread.
class DetachedProgram {
 public:
  /// Starts `program`, an absolute path, with `arguments`. It gets the standard input and the
  /// standard error of this process, and no standard output. Throws Failed (environment).
  DetachedProgram(const std::string& program, const std::vector<std::string>& arguments);
  ~DetachedProgram();
  DetachedProgram(const DetachedProgram&) = delete;
  DetachedProgram& operator=(const DetachedProgram&) = delete;
  /// Blocks for the next report. Nothing: the program has ended without a report of type `ended`.
  std::optional<DetachedReport> next();

 private:
  int descriptor_ = -1;
  std::string received_;
};

class RotatedOutput;

/// The other end, in the program that a DetachedProgram started.
class DetachedReporter {
 public:
  /// Null if this process was not started by a DetachedProgram. Call it once, before other threads
  /// start.
  static std::unique_ptr<DetachedReporter> take();
  ~DetachedReporter();
  DetachedReporter(const DetachedReporter&) = delete;
  DetachedReporter& operator=(const DetachedReporter&) = delete;
  /// Thread-safe. Has no effect after the process that started this one has closed its end.
  void send(const DetachedReport& report) const;
  /// From now on the standard output and the standard error are appended to the file `log`, and
  /// the standard input is empty. If the file grows beyond 16 MiB it is renamed to LOG.1. Throws
  /// Failed (environment).
  void redirect(const std::string& log);

 private:
  explicit DetachedReporter(int descriptor);
  const int descriptor_;
  mutable std::mutex mutex_;  // held while a report is sent
  std::unique_ptr<RotatedOutput> output_;
};

}  // namespace flow
