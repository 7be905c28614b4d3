#include "engine/log/log_format.hpp"

#include <fmt/format.h>

#include <ctime>
#include <string_view>

#include "engine/value/utf8.hpp"
#include "flow/value.hpp"

namespace flow::log {

namespace {

/// "2026-11-28T10:00:00.123Z"
std::string iso_time(int64_t ms) {
  time_t seconds = ms / 1000;
  tm utc{};
  gmtime_r(&seconds, &utc);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z", utc.tm_year + 1900,
                     utc.tm_mon + 1, utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec, ms % 1000);
}

/// U+0080 to U+009F: terminals interpret them as the beginnings of escape sequences.
bool is_c1(std::string_view text, size_t at) {
  return text[at] == '\xc2' && at + 1 < text.size() && (text[at + 1] & 0xe0) == 0x80;
}

/// Escapes the text so that it is one line and cannot control a terminal. `quotes`: within
/// quotation marks.
std::string escaped(std::string_view text, bool quotes) {
  std::string out;
  for (size_t i = 0; i < text.size(); i++) {
    auto byte = static_cast<unsigned char>(text[i]);
    if (byte == '\n') {
      out += "\\n";
    } else if (byte == '\t') {
      out += "\\t";
    } else if (is_c1(text, i)) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned char>(text[++i]));
    } else if (byte < 0x20 || byte == 0x7f) {
      out += fmt::format("\\x{:02x}", byte);
    } else if (quotes && (byte == '"' || byte == '\\')) {
      out += {'\\', text[i]};
    } else {
      out += text[i];
    }
  }
  return out;
}

void add_field(std::string& out, const char* name, std::string_view value) {
  if (value.empty()) return;
  bool is_plain = value.find_first_of(" \"\\=\n\t") == std::string_view::npos;
  std::string text = escaped(value, !is_plain);
  out += is_plain ? fmt::format(" {}={}", name, text) : fmt::format(" {}=\"{}\"", name, text);
}

void add_key(std::string& out, const char* name, std::string_view value) {
  out += fmt::format(",\"{}\":{}", name, to_json(Value(to_utf8(value))));
}

}  // namespace

std::string text_line(const EngineLogLine& line) {
  std::string out = fmt::format("{} {:<5} {}", iso_time(line.time_ms), level_name(line.level),
                                escaped(line.message, false));
  add_field(out, "run", line.run);
  add_field(out, "task", line.task);
  if (line.attempt > 0) out += fmt::format(" attempt={}", line.attempt);
  add_field(out, "worker", line.worker);
  add_field(out, "detail", line.detail);
  return out;
}

std::string json_line(const EngineLogLine& line) {
  std::string out = fmt::format("{{\"time\":\"{}\",\"level\":\"{}\"", iso_time(line.time_ms),
                                level_name(line.level));
  add_key(out, "message", line.message);
  if (!line.run.empty()) add_key(out, "run", line.run);
  if (!line.task.empty()) add_key(out, "task", line.task);
  if (line.attempt > 0) out += fmt::format(",\"attempt\":{}", line.attempt);
  if (!line.worker.empty()) add_key(out, "worker", line.worker);
  if (!line.detail.empty()) add_key(out, "detail", line.detail);
  return out + "}";
}

}  // namespace flow::log
