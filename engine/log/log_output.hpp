// The outputs of the engine's log, as in LogOptions: a file, the standard error, a function of the
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
  /// `private_dir`: the folder of the state or the worker, in which the file must not be; "" if
  /// there is none.
  static Result<std::unique_ptr<LogOutput>> open(const LogOptions& options,
                                                 const std::string& private_dir);
  LogLevel level() const { return level_; }
  const std::string& private_dir() const { return private_dir_; }
  /// Writes the line if its level is enabled. Lines that a file does not accept are dropped and
  /// counted: the standard error reports the first one, and the file reports the number once it
  /// accepts lines again.
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
  uint64_t dropped_ = 0;  // since the last line that the file accepted
};

/// Opens a log: lines of this process are written to it until the returned object is destroyed.
/// Null if the options request no log. Thread-safe. Errors: as LogFile::open, or of kind user for a
/// file in `private_dir`.
Result<std::shared_ptr<void>> open_log(const LogOptions& options, const std::string& private_dir);

}  // namespace flow::log
