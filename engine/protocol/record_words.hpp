// The words of a record: one line of text in a file of the folder scratch/slots.
#pragma once
#include <algorithm>
#include <charconv>
#include <cstdint>
#include <string_view>
#include <system_error>

namespace flow {

constexpr uint64_t kRecordMax = 16 * 1024;  // bytes

/// Removes the first word of the text, and the blank after it.
inline std::string_view next_word(std::string_view& text) {
  size_t end = std::min(text.find(' '), text.size());
  std::string_view word = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return word;
}

/// False unless the whole word is a number.
template <typename Number>
bool read_number(std::string_view word, Number& number) {
  auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
  return error == std::errc() && end == word.data() + word.size();
}

/// Whether it has only digits, lower-case letters and hyphens, so that it may be part of a path.
inline bool is_plain(std::string_view word) {
  return !word.empty() && std::ranges::all_of(word, [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || c == '-';
  });
}

}  // namespace flow
