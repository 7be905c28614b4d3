// Where lines of the engine's log go, by LogOptions: a file, the standard error, a function of the
// host program. Each line is redacted first.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "engine/log/log_file.hpp"
#include "flow/log.hpp"
#include "flow/result.hpp"

namespace flow::log {

/// One log. Not thread-safe.
class LogOutput {
 public:
  /// `private_dir`: the state's or the worker's folder, which the file must not lie in; "" if there
  /// is none.
  static Result<std::unique_ptr<LogOutput>> open(const LogOptions& options,
                                                 const std::string& private_dir);
  LogLevel level() const { return level_; }
  const std::string& private_dir() const { return private_dir_; }
  /// If the line's level is on. Lines that a file does not take are dropped and counted: the first
  /// time the standard error says so, and the file does once it takes lines again.
  void write(const EngineLogLine& line);
  uint64_t dropped() const { return dropped_; }

 private:
  LogOutput() = default;
  std::string formatted(const EngineLogLine& line) const;
  void write_to_file(const EngineLogLine& line);

  LogLevel level_ = LogLevel::off;
  bool json_ = false, has_stderr_ = false, has_warned_ = false;
  std::string path_, private_dir_;
  std::unique_ptr<LogFile> file_;
  LogSink sink_;
  uint64_t dropped_ = 0;  // since the last line that the file took
};

/// Begins a log: lines of this process go there until what it returns is destroyed. Null if the
/// options ask for none. Thread-safe. Errors: as LogFile::open, or of kind user for a file in
/// `private_dir`.
Result<std::shared_ptr<void>> open_log(const LogOptions& options, const std::string& private_dir);

}  // namespace flow::log
