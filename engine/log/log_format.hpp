// A line of the engine's log as text, for people, or as JSON, for programs. Pure.
#pragma once
#include <string>

#include "flow/log.hpp"

namespace flow::log {

/// `2026-11-28T10:00:00.123Z info  worker joined worker=w1 detail="at 10.0.0.7:41231"`, without a
/// line break. Fields that are empty are left out. Control characters are escaped.
std::string text_line(const EngineLogLine& line);

/// One JSON object: time, level, message, then those of run, task, attempt, worker and detail that
/// are not empty, in this order. Bytes that are not UTF-8 are U+FFFD.
std::string json_line(const EngineLogLine& line);

}  // namespace flow::log
