// The log of the engine itself: what its processes do, not what tasks print. Nothing is logged
// unless an engine or a worker is given LogOptions that ask for it.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace flow {

/// In the order of severity. `off` is for LogOptions only: no line has it.
enum class LogLevel : uint8_t { trace, debug, info, warning, error, off };
const char* level_name(LogLevel level);  ///< "trace", "debug", "info", "warning", "error", "off"

/// One line of the engine's log. Ids that do not apply are "" and 0. Values of secret variables are
/// `***` in all texts.
struct EngineLogLine {
  LogLevel level = LogLevel::info;
  int64_t time_ms = 0;  ///< wall clock, since the Unix epoch
  std::string message;  ///< the event, a fixed text such as "worker joined"
  std::string run, task;
  uint32_t attempt = 0;  ///< from 1
  std::string worker;
  std::string detail;  ///< the reason, an address, amounts: free text
};

/// Receives each line whose level is `LogOptions::level` or higher. It is called on the thread that
/// logs, one call at a time, and that thread waits for it: also the thread of the engine's turns.
/// It must return soon, must not call the engine or the worker, must not wait for a lock that a
/// thread holds while it uses or destroys one of them, and must not throw (what it throws is
/// dropped with the line). Its last call returns before the destructor of the engine or the worker
/// does.
using LogSink = std::function<void(const EngineLogLine&)>;

/// Where lines of the log go. Lines come from everything that runs in this process: if it has
/// several engines or workers, each of their logs gets the lines of all.
struct LogOptions {
  /// Default: `info` if there is a file or a sink, else `off`. With a level but neither of them,
  /// lines go to the standard error.
  std::optional<LogLevel> level{};
  /// Lines are appended to this file. At 10 MiB it is renamed (`flow.log` to `flow.1.log`, that one
  /// to `flow.2.log`, up to 4) and a new one begins. If it cannot be written, because the disk is
  /// full for example, lines are dropped and counted, and the engine continues. Must not lie in the
  /// state. Only one process may use it.
  std::string file{};
  bool json = false;  ///< one JSON object per line in the file or the standard error
  LogSink sink{};
};

}  // namespace flow
