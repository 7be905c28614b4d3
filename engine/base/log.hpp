// The seam of the engine's log: any folder may log a line here, and engine/log writes it. While no
// log is attached, or its level is higher, a call costs one atomic load.
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
  /// The text with the values of `hide` redacted.
  virtual std::string redacted(std::string text) = 0;
};

namespace internal {
inline std::atomic<LogLevel> threshold{LogLevel::off};
}  // namespace internal

/// Whether a line of this level is written: ask before a costly text is made.
inline bool is_on(LogLevel level) {
  return level >= internal::threshold.load(std::memory_order_relaxed);
}
/// Stamps the line with the wall clock and writes it if its level is on. Any thread; never throws
/// and never fails.
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

/// Lines of `level` and higher go to `backend` from now on; null with `off` detaches. The backend
/// must live until the process ends.
void attach(Backend* backend, LogLevel level);

/// Values that no line may show. The newest kSecretsMax different ones are kept for the life of the
/// process. Thread-safe.
constexpr size_t kSecretsMax = 4096;
void hide(const std::vector<std::string>& values);
/// Redacts the hidden values in the text, if a log is attached. Lines are redacted when they are
/// written: call this for a text that is cut first, so that no part of a value remains. Not to be
/// called by a sink.
std::string redacted(std::string text);
/// Those of `hide`; the pointer changes whenever one is added. Never null.
std::shared_ptr<const std::vector<std::string>> hidden_values();

}  // namespace flow::log
