#include "engine/crypto/decoded_text.hpp"

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <utility>

namespace flow {

namespace {

/// Appends what the first character or escape of a text stands for and returns its size; kOpen if
/// the text ends within the escape.
using Reader = size_t (*)(std::string_view text, std::string& out);

constexpr size_t kOpen = 0;
constexpr int32_t kNoHex = -1, kOpenHex = -2;

/// The number that `count` hexadecimal digits at `at` stand for; kNoHex if they are none, kOpenHex
/// if the text ends before the last one.
int32_t read_hex(std::string_view text, size_t at, size_t count) {
  int32_t number = 0;
  for (size_t i = at; i < at + count; i++) {
    if (i >= text.size()) return kOpenHex;
    auto c = static_cast<unsigned char>(text[i]);
    if (std::isxdigit(c) == 0) return kNoHex;
    number = number * 16 + (std::isdigit(c) != 0 ? c - '0' : std::tolower(c) - 'a' + 10);
  }
  return number;
}

void append_utf8(int32_t code, std::string& out) {
  auto add = [&](int32_t byte) { out += static_cast<char>(byte); };
  auto add_tail = [&](int shift) { add(0x80 | ((code >> shift) & 0x3f)); };
  if (code < 0x80) return add(code);
  if (code < 0x800) {
    add(0xc0 | (code >> 6));
  } else if (code < 0x10000) {
    add(0xe0 | (code >> 12));
    add_tail(6);
  } else {
    add(0xf0 | (code >> 18));
    add_tail(12);
    add_tail(6);
  }
  add_tail(0);
}

size_t read_plain(std::string_view text, std::string& out) {
  out += text[0];
  return 1;
}

bool is_high_surrogate(int32_t code) { return code >= 0xd800 && code < 0xdc00; }
bool is_low_surrogate(int32_t code) { return code >= 0xdc00 && code < 0xe000; }

/// `\u00e9`, or two of them for a character above U+FFFF.
size_t read_unicode(std::string_view text, std::string& out) {
  constexpr size_t kSize = 6;
  int32_t code = read_hex(text, 2, 4);
  if (code == kOpenHex) return kOpen;
  if (code == kNoHex || is_low_surrogate(code)) return read_plain(text, out);
  if (!is_high_surrogate(code)) {
    append_utf8(code, out);
    return kSize;
  }
  std::string_view rest = text.substr(kSize);
  if (rest.empty() || rest == "\\") return kOpen;
  int32_t low = rest.starts_with("\\u") ? read_hex(rest, 2, 4) : kNoHex;
  if (low == kOpenHex) return kOpen;
  if (!is_low_surrogate(low)) return read_plain(text, out);
  append_utf8(0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00), out);
  return 2 * kSize;
}

/// Escapes of JSON strings and of words of a shell. A backslash before another letter or digit
/// stands for itself.
size_t read_backslash(std::string_view text, std::string& out) {
  if (text[0] != '\\') return read_plain(text, out);
  if (text.size() == 1) return kOpen;
  constexpr std::string_view kLetters = "abefnrtv", kControls = "\a\b\x1b\f\n\r\t\v";
  char next = text[1];
  if (size_t at = kLetters.find(next); at != kLetters.npos) {
    out += kControls[at];
    return 2;
  }
  if (next == 'u') return read_unicode(text, out);
  if (next == 'x') {
    int32_t byte = read_hex(text, 2, 2);
    if (byte == kOpenHex) return kOpen;
    if (byte == kNoHex) return read_plain(text, out);
    out += static_cast<char>(byte);
    return 4;
  }
  auto byte = static_cast<unsigned char>(next);
  if (std::isalnum(byte) != 0 || byte >= 0x80) return read_plain(text, out);
  out += next;
  return 2;
}

/// A single quote in a word in single quotes: `'\''`, or `'"'"'`.
size_t read_quotes(std::string_view text, std::string& out) {
  for (std::string_view quote : {"'\\''", "'\"'\"'"}) {
    if (text.starts_with(quote)) {
      out += '\'';
      return quote.size();
    }
    if (quote.starts_with(text)) return kOpen;
  }
  return read_plain(text, out);
}

size_t read_percent(std::string_view text, std::string& out) {
  if (text[0] != '%') return read_plain(text, out);
  int32_t byte = read_hex(text, 1, 2);
  if (byte == kOpenHex) return kOpen;
  if (byte == kNoHex) return read_plain(text, out);
  out += static_cast<char>(byte);
  return 3;
}

/// As HTML forms are sent.
size_t read_form(std::string_view text, std::string& out) {
  if (text[0] != '+') return read_percent(text, out);
  out += ' ';
  return 1;
}

DecodedText decoded(const DecodedText& from, Reader reader) {
  DecodedText to;
  std::string_view text = from.text;
  size_t at = 0;
  while (at < text.size()) {
    size_t size = reader(text.substr(at), to.text);
    if (size == kOpen) break;
    to.begins.resize(to.text.size(), from.begin_of(at));
    at += size;
  }
  to.begins.push_back(from.begin_of(at));
  return to;
}

using Visit = std::function<void(const DecodedText&)>;

/// Visits `level` and what it is without escapes.
void visit_decoded(DecodedText level, const Visit& visit) {
  for (int depth = 0;; depth++) {
    auto holds = [&](char c) { return level.text.find(c) != std::string::npos; };
    visit(level);
    if (holds('\'')) visit(decoded(level, read_quotes));
    if (holds('%')) visit(decoded(level, read_percent));
    if (holds('+')) visit(decoded(level, read_form));
    if (depth == kEscapeDepthMax || !holds('\\')) return;
    level = decoded(level, read_backslash);
  }
}

}  // namespace

size_t DecodedText::end_of(size_t at) const {
  if (is_original()) return at;
  size_t begin = begins[at - 1];
  while (begins[at] == begin) at++;  // the last one is higher: each escape has a size
  return begins[at];
}

size_t DecodedText::escape_begin(size_t place) const {
  if (is_original() || place >= begins.back()) return place;
  return *std::prev(std::upper_bound(begins.begin(), begins.end(), place));
}

void each_decoded_text(std::string_view text, const Visit& visit) {
  DecodedText original{std::string(text), {}};
  bool has_quotes = text.find('\'') != text.npos && text.find('\\') != text.npos;
  if (has_quotes) visit_decoded(decoded(original, read_quotes), visit);  // JSON as a shell's word
  visit_decoded(std::move(original), visit);
}

bool may_be_escaped(std::string_view value) {
  return std::any_of(value.begin(), value.end(), [](unsigned char c) {
    return std::isalnum(c) == 0 && c != '-' && c != '_' && c != '.' && c != '~';
  });
}

}  // namespace flow
