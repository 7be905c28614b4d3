// Well-formed UTF-8 by the table of the Unicode standard (table 3-7), eight ASCII bytes at a time.
#include "engine/value/utf8.hpp"

#include <cstdint>
#include <cstring>

namespace flow {
namespace {

bool is_tail(uint8_t byte) { return (byte & 0xc0) == 0x80; }

// Bytes of the sequence that starts at `at`, or 0 if it is malformed.
size_t sequence_length(const uint8_t* at, size_t remaining) {
  uint8_t first = at[0];
  if (first < 0x80) return 1;
  if (first < 0xc2) return 0;
  if (first < 0xe0) return remaining >= 2 && is_tail(at[1]) ? 2 : 0;
  if (first < 0xf0) {
    if (remaining < 3 || !is_tail(at[1]) || !is_tail(at[2])) return 0;
    if (first == 0xe0 && at[1] < 0xa0) return 0;   // overlong
    if (first == 0xed && at[1] >= 0xa0) return 0;  // surrogate
    return 3;
  }
  if (first > 0xf4 || remaining < 4) return 0;
  if (!is_tail(at[1]) || !is_tail(at[2]) || !is_tail(at[3])) return 0;
  if (first == 0xf0 && at[1] < 0x90) return 0;   // overlong
  if (first == 0xf4 && at[1] >= 0x90) return 0;  // above U+10FFFF
  return 4;
}

}  // namespace

bool is_utf8(std::string_view text) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(text.data());
  size_t at = 0;
  while (at < text.size()) {
    uint64_t word;
    if (text.size() - at >= sizeof word) {
      std::memcpy(&word, bytes + at, sizeof word);
      if ((word & 0x8080808080808080u) == 0) {
        at += sizeof word;
        continue;
      }
    }
    size_t length = sequence_length(bytes + at, text.size() - at);
    if (length == 0) return false;
    at += length;
  }
  return true;
}

std::string to_utf8(std::string_view text) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(text.data());
  std::string out;
  for (size_t at = 0; at < text.size();) {
    size_t length = sequence_length(bytes + at, text.size() - at);
    out += length > 0 ? text.substr(at, length) : "\xef\xbf\xbd";
    at += length > 0 ? length : 1;
  }
  return out;
}

size_t character_begin(std::string_view text, size_t at) {
  constexpr size_t kTailsMax = 3;  // continuation bytes per character
  size_t begin = at;
  while (begin > 0 && begin < text.size() && is_tail(static_cast<uint8_t>(text[begin]))) {
    if (at - begin == kTailsMax) return at;
    begin--;
  }
  return begin;
}

std::string cut_text(std::string text, size_t max) {
  if (text.size() <= max) return text;
  size_t end = character_begin(text, max);
  std::string note = "… (" + std::to_string(text.size() - end) + " bytes more)";
  text.resize(end);
  return text + note;
}

std::string to_line(std::string_view text) {
  std::string line = to_utf8(text);
  for (char& c : line)
    if (static_cast<uint8_t>(c) < 0x20 || c == 0x7f) c = ' ';
  return line;
}

}  // namespace flow
