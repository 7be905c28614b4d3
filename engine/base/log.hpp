// The engine's interface for logging. All folders log through these functions; engine/log
// implements the Backend. While no backend is attached, or its level is higher, a call costs one
// atomic load.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "flow/log.hpp"

namespace flow::log {

/// Ids and free text of a line, as EngineLogLine has them.
struct Fields {
  std::string_view run{}, task{};
  uint32_t attempt = 0;
  std::string_view worker{}, detail{};
};

/// Writes lines. Thread-safe.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual void write(const EngineLogLine& line) = 0;  // never throws
  /// Returns the text with the values that hide() got redacted.
  virtual std::string redacted(std::string text) = 0;
};

namespace internal {
inline std::atomic<LogLevel> threshold{LogLevel::off};
}  // namespace internal

/// Whether lines of this level are written. Call it to skip building an expensive text.
inline bool is_on(LogLevel level) {
  return level >= internal::threshold.load(std::memory_order_relaxed);
}
/// Stamps the line with the wall clock and writes it if its level is on. Thread-safe; a line that
/// cannot be written is dropped.
void write(EngineLogLine line);
void write(LogLevel level, std::string_view message, const Fields& fields);

inline void debug(std::string_view message, const Fields& fields = {}) {
  if (is_on(LogLevel::debug)) write(LogLevel::debug, message, fields);
}
inline void info(std::string_view message, const Fields& fields = {}) {
  if (is_on(LogLevel::info)) write(LogLevel::info, message, fields);
}
inline void warning(std::string_view message, const Fields& fields = {}) {
  if (is_on(LogLevel::warning)) write(LogLevel::warning, message, fields);
}
inline void error(std::string_view message, const Fields& fields = {}) {
  if (is_on(LogLevel::error)) write(LogLevel::error, message, fields);
}

/// Sets the backend and the lowest level that it gets. null keeps the present backend. The level
/// `off` ends logging, but redacted() still uses the backend, which must never be destroyed. Calls
/// must not overlap.
void attach(Backend* backend, LogLevel level);

constexpr size_t kSecretsMax = 4096;  // values that hide() keeps
/// Adds values to redact in all later lines, for the life of the process. Values of fewer than 4
/// bytes are not redacted. If there are more than kSecretsMax, those added first are dropped.
/// Thread-safe.
void hide(const std::vector<std::string>& values);
/// Redacts the hidden values in the text; returns it unchanged if no backend was ever attached.
/// Lines are redacted when they are written. Call this only for a text that is truncated before it
/// is logged, because a truncated value may no longer match. A LogSink must not call it: it would
/// deadlock.
std::string redacted(std::string text);
/// The values that hide() got. Never null; a new pointer after each change.
std::shared_ptr<const std::vector<std::string>> hidden_values();

}  // namespace flow::log
