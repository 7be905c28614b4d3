#include "engine/submission/requester.hpp"

#include <fmt/format.h>

#include <unistd.h>

#include <algorithm>
#include <array>

#include "engine/base/user_name.hpp"
#include "engine/value/utf8.hpp"

namespace flow {

namespace {

constexpr std::string_view kBlanks = " ";

std::string find_requester() {
  std::array<char, 256> host{};
  bool is_known = ::gethostname(host.data(), host.size() - 1) == 0 && host[0] != '\0';
  return clean_requester(own_user_name() + "@" + (is_known ? host.data() : "localhost"));
}

/// The number of bytes of a character at the start of `text` that changes how the text around it is
/// shown: C1 controls, separators of lines and paragraphs, marks and overrides of direction.
size_t hidden_bytes(std::string_view text) {
  auto at = [&](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U; };
  if (at(0) == 0xc2 && at(1) >= 0x80 && at(1) < 0xa0) return 2;  // U+0080 to U+009F
  if (at(0) == 0xd8 && at(1) == 0x9c) return 2;                  // U+061C
  if (at(0) != 0xe2) return 0;
  if (at(1) == 0x80 && (at(2) == 0x8e || at(2) == 0x8f)) return 3;  // U+200E, U+200F
  if (at(1) == 0x80 && at(2) >= 0xa8 && at(2) <= 0xae) return 3;    // U+2028 to U+202E
  if (at(1) == 0x81 && at(2) >= 0xa6 && at(2) <= 0xa9) return 3;    // U+2066 to U+2069
  return 0;
}

/// At most `max` bytes of whole characters, without blanks at the end.
void shorten(std::string& text, size_t max) {
  if (text.size() > max) text.resize(character_begin(text, max));
  text.erase(text.find_last_not_of(kBlanks) + 1);
}

bool is_plain_name(std::string_view name) {
  return std::ranges::all_of(name, [](char c) { return c > ' ' && c < 0x7f && c != '"'; });
}

}  // namespace

const std::string& own_requester() {
  static const std::string requester = find_requester();
  return requester;
}

std::string clean_requester(std::string_view text) {
  // No character has more bytes after to_utf8 than before, but for a byte that becomes U+FFFD.
  std::string line = to_line(text.substr(0, 4 * kRequesterMax));
  std::string clean;
  for (size_t i = 0; i < line.size(); i++) {
    size_t hidden = hidden_bytes(std::string_view(line).substr(i));
    clean += hidden > 0 ? ' ' : line[i];
    if (hidden > 0) i += hidden - 1;
  }
  size_t begin = clean.find_first_not_of(kBlanks);
  if (begin == std::string::npos) return "";
  clean.erase(0, begin);
  shorten(clean, kRequesterMax);
  return clean;
}

std::string requester_from(std::string_view claimed_name, std::string_view host) {
  constexpr size_t kHostMax = 64, kQuoteBytes = 2;
  std::string from = clean_requester(host);
  shorten(from, kHostMax);
  from = " from " + (from.empty() ? "unknown" : from);
  std::string name = clean_requester(claimed_name);
  if (name.empty()) name = "unknown";
  shorten(name, kRequesterMax - kQuoteBytes - from.size());
  if (is_plain_name(name)) return name + from;
  std::ranges::replace(name, '"', '\'');
  return '"' + name + '"' + from;
}

std::string page_requester(std::string_view who, std::string_view address,
                           std::string_view key_fingerprint) {
  return fmt::format("{}@{} (page{}{})", who, address, key_fingerprint.empty() ? "" : ", key ",
                     key_fingerprint);
}

}  // namespace flow
