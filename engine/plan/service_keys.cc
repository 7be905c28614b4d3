#include "engine/plan/service_keys.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "engine/base/files.hpp"

namespace flow {

namespace {

constexpr uint64_t kKeyFileMax = kServiceKeysMax * (kServiceKeyBytesMax + 2);  // with CR and LF

std::string_view without_blanks(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r\n";
  size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
}

bool is_key(std::string_view text) {
  return text.size() <= kServiceKeyBytesMax &&
         std::ranges::all_of(text, [](char c) { return c > ' ' && c < 0x7f && c != ','; });
}

/// `place` is the word for what the separator ends.
Result<std::vector<std::string>> split_keys(std::string_view text, char separator,
                                            const char* place) {
  std::vector<std::string> keys;
  for (size_t number = 1;; number++) {
    size_t end = text.find(separator);
    std::string_view key = without_blanks(text.substr(0, end));
    if (!is_key(key))
      return user_error(
          fmt::format("has a key that is not valid at {} {}: a key is 1 to {} visible ASCII "
                      "characters without commas",
                      place, number, kServiceKeyBytesMax));
    if (!key.empty()) keys.emplace_back(key);
    if (keys.size() > kServiceKeysMax)
      return user_error(fmt::format("has more than {} keys", kServiceKeysMax));
    if (end == std::string_view::npos) break;
    text.remove_prefix(end + 1);
  }
  if (keys.empty()) return user_error("has no key");
  return keys;
}

}  // namespace

Result<std::vector<std::string>> parse_key_list(std::string_view text) {
  return split_keys(text, ',', "place");
}

Result<std::vector<std::string>> read_key_file(const std::string& path) {
  auto text = read_file(path, kKeyFileMax);
  FLOW_TRY(text);
  auto keys = split_keys(*text, '\n', "line");
  if (!keys.ok()) return user_error(fmt::format("the file `{}` {}", path, keys.error().message));
  return keys;
}

Result<std::string> key_list_of_file(const std::string& path) {
  auto keys = read_key_file(path);
  FLOW_TRY(keys);
  return fmt::format("{}", fmt::join(*keys, ","));
}

std::vector<std::string> secrets_of_key_list(const std::string& text) {
  std::vector<std::string> secrets{text};
  if (auto keys = parse_key_list(text); keys.ok())
    secrets.insert(secrets.end(), keys->begin(), keys->end());
  return secrets;
}

Result<std::vector<std::string>> service_keys(const ServiceKeySource& source,
                                              std::string_view variable_text) {
  if (source.is_empty()) return std::vector<std::string>{};
  bool is_read_here = !source.file.empty() && variable_text.empty();
  if (is_read_here) return read_key_file(source.file);
  auto keys = parse_key_list(variable_text);
  if (!keys.ok())
    return user_error(
        source.file.empty()
            ? fmt::format("the environment variable {} {}", source.variable, keys.error().message)
            : fmt::format("the file `{}` {}", source.file, keys.error().message));
  return keys;
}

}  // namespace flow
