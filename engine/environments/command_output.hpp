// What a program printed, for an error.
#pragma once
#include <string>

namespace flow {

/// The end of the text, at most 1000 bytes, without blank lines after it.
inline std::string last_lines(std::string text) {
  constexpr size_t kShown = 1000;
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  return text.size() > kShown ? "…" + text.substr(text.size() - kShown) : text;
}

}  // namespace flow
