// Text of URLs, headers and profile files.
#pragma once
#include <string>
#include <string_view>

namespace flow::fetch {

/// Letters of ASCII in lower case.
inline std::string lower_case(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if ('A' <= c && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return out;
}

/// Without white space at both ends.
inline std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

}  // namespace flow::fetch
