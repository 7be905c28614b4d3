// Most strings have no escape: the parts between escapes are copied whole.
#include "engine/serve/json/json_text.hpp"

#include <fmt/format.h>

#include <cstdint>

namespace flow {

namespace {

/// The four hexadecimal digits at `at`; -1 if there are none.
int32_t hexadecimal(const char* at, const char* end) {
  constexpr int kDigits = 4;
  if (end - at < kDigits) return -1;
  int32_t value = 0;
  for (int i = 0; i < kDigits; i++) {
    char c = at[i];
    int32_t digit = -1;
    if (c >= '0' && c <= '9') digit = c - '0';
    if (c >= 'a' && c <= 'f') digit = c - 'a' + 10;
    if (c >= 'A' && c <= 'F') digit = c - 'A' + 10;
    if (digit < 0) return -1;
    value = value << 4 | digit;
  }
  return value;
}

void append_utf8(std::string& out, uint32_t point) {
  auto add = [&](uint32_t byte) { out += static_cast<char>(byte); };
  if (point < 0x80) return add(point);
  if (point < 0x800) {
    add(0xc0 | point >> 6);
  } else {
    if (point < 0x10000) {
      add(0xe0 | point >> 12);
    } else {
      add(0xf0 | point >> 18);
      add(0x80 | (point >> 12 & 0x3f));
    }
    add(0x80 | (point >> 6 & 0x3f));
  }
  add(0x80 | (point & 0x3f));
}

/// After `\\u`: four digits, or a pair of surrogates.
const char* read_point(const char* at, const char* end, std::string& out) {
  int32_t first = hexadecimal(at, end);
  if (first < 0) return nullptr;
  at += 4;
  bool is_high = first >= 0xd800 && first < 0xdc00, is_low = first >= 0xdc00 && first < 0xe000;
  if (!is_high) {
    if (is_low) return nullptr;
    append_utf8(out, static_cast<uint32_t>(first));
    return at;
  }
  if (end - at < 2 || at[0] != '\\' || at[1] != 'u') return nullptr;
  int32_t second = hexadecimal(at + 2, end);
  if (second < 0xdc00 || second >= 0xe000) return nullptr;
  append_utf8(out, 0x10000 + (static_cast<uint32_t>(first - 0xd800) << 10) +
                       static_cast<uint32_t>(second - 0xdc00));
  return at + 6;
}

/// After a backslash.
const char* read_escape(const char* at, const char* end, std::string& out) {
  constexpr std::string_view kNames = "\"\\/bfnrt", kValues = "\"\\/\b\f\n\r\t";
  if (at == end) return nullptr;
  if (*at == 'u') return read_point(at + 1, end, out);
  size_t index = kNames.find(*at);
  if (index == std::string_view::npos) return nullptr;
  out += kValues[index];
  return at + 1;
}

}  // namespace

const char* read_json_text(const char* at, const char* end, std::string& out) {
  if (at >= end || *at != '"') return nullptr;
  at++;
  while (at < end) {
    const char* plain = at;
    while (at < end && *at != '"' && *at != '\\') at++;
    out.append(plain, at);
    if (at == end) return nullptr;
    if (*at == '"') return at + 1;
    at = read_escape(at + 1, end, out);
    if (at == nullptr) return nullptr;
  }
  return nullptr;
}

void append_json_text(std::string& out, std::string_view text) {
  constexpr std::string_view kValues = "\"\\\b\f\n\r\t", kNames = "\"\\bfnrt";
  out += '"';
  size_t plain = 0;
  for (size_t i = 0; i < text.size(); i++) {
    auto c = static_cast<unsigned char>(text[i]);
    if (c >= 0x20 && c != '"' && c != '\\') continue;
    out.append(text.substr(plain, i - plain));
    plain = i + 1;
    size_t index = kValues.find(text[i]);
    if (index == std::string_view::npos) {
      out += fmt::format("\\u{:04x}", c);
    } else {
      out += '\\';
      out += kNames[index];
    }
  }
  out.append(text.substr(plain));
  out += '"';
}

}  // namespace flow
