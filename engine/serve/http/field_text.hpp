// Text of HTTP header fields.
#pragma once
#include <algorithm>
#include <string_view>

namespace flow {

inline char lower_letter(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; }

inline bool is_blank(char c) { return c == ' ' || c == '\t'; }

/// Whether the text has no control characters but tabs.
inline bool is_printable(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](unsigned char c) { return c == '\t' || (c >= 32 && c != 127); });
}

/// Whether two names of fields, codings or hosts are equal: the case of letters does not matter.
inline bool equal_names(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](char x, char y) { return lower_letter(x) == lower_letter(y); });
}

inline std::string_view without_blanks(std::string_view text) {
  size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

/// Takes the first element of a list, such as `GET, HEAD`, from its begin.
inline std::string_view next_element(std::string_view& list) {
  std::string_view element = list.substr(0, list.find(','));
  list.remove_prefix(std::min(element.size() + 1, list.size()));
  return without_blanks(element);
}

/// How many elements a message that is forwarded may have in its `Connection`: each names fields
/// that are dropped.
constexpr size_t kConnectionElementsMax = 64;

/// Without the empty ones, which a list may have (RFC 9110, section 5.6.1).
inline size_t count_elements(std::string_view list) {
  size_t count = 0;
  while (!list.empty())
    if (!next_element(list).empty()) count++;
  return count;
}

}  // namespace flow
