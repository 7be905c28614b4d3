// flow.text: lines and words of files, and string functions that Lua does not have.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "lua/state/arguments.hpp"
#include "lua/tensor/tensor.hpp"

namespace flow::lua {
namespace {

std::string read_text(lua_State* L, const char* function) {
  std::string path = check_path(L, 1, function);
  require_task(L, function);
  auto text = read_input(path);
  if (!text.ok()) raise(L, fmt::format("{}: {}", function, text.error().message));
  return std::move(*text);
}

void append(lua_State* L, lua_Integer& count, std::string_view text) {
  push_text_value(L, text);
  lua_rawseti(L, -2, ++count);
}

// Calls f for each line, without its end.
template <typename F>
void each_line(std::string_view text, F f) {
  while (!text.empty()) {
    size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    if (line.ends_with('\r')) line.remove_suffix(1);
    f(line);
    if (end == std::string_view::npos) return;
    text.remove_prefix(end + 1);
  }
}

bool is_word_byte(char c) {
  auto byte = static_cast<unsigned char>(c);
  return byte >= 0x80 || (byte >= '0' && byte <= '9') || (byte >= 'A' && byte <= 'Z') ||
         (byte >= 'a' && byte <= 'z');
}

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; }

// Calls f for each word, in lower case: letters, digits, bytes beyond ASCII, and apostrophes
// between them. The string is valid until the next word.
template <typename F>
void each_word(std::string_view text, F f) {
  std::string word;
  for (size_t i = 0; i <= text.size(); i++) {
    bool inside = i < text.size() &&
                  (is_word_byte(text[i]) || (text[i] == '\'' && !word.empty() &&
                                             i + 1 < text.size() && is_word_byte(text[i + 1])));
    if (inside) {
      word += lower(text[i]);
    } else if (!word.empty()) {
      f(word);
      word.clear();
    }
  }
}

int lines(lua_State* L) {  // of a file
  std::string text = read_text(L, "flow.text.lines");
  lua_newtable(L);
  lua_Integer count = 0;
  each_line(text, [&](std::string_view line) { append(L, count, line); });
  return 1;
}

void push_words(lua_State* L, std::string_view text) {
  lua_newtable(L);
  lua_Integer count = 0;
  each_word(text, [&](const std::string& word) { append(L, count, word); });
}

int words(lua_State* L) {  // of a file
  push_words(L, read_text(L, "flow.text.words"));
  return 1;
}

int tokens(lua_State* L) {  // of a string
  push_words(L, check_text_argument(L, 1, "flow.text.tokens"));
  return 1;
}

// How often each word of a file, or each item of a list, occurs.
int histogram(lua_State* L) {
  std::map<std::string, lua_Integer, std::less<>> counts;
  if (lua_type(L, 1) == LUA_TTABLE) {
    for (lua_Integer i = 1; i <= static_cast<lua_Integer>(lua_rawlen(L, 1)); i++) {
      lua_rawgeti(L, 1, i);
      counts[std::string(check_text_argument(L, -1, "flow.text.histogram of a list"))]++;
      lua_pop(L, 1);
    }
  } else {
    std::string text = read_text(L, "flow.text.histogram");
    each_word(text, [&](const std::string& word) { counts[word]++; });
  }
  lua_createtable(L, 0, static_cast<int>(std::min<size_t>(counts.size(), 1u << 24)));
  for (const auto& [word, count] : counts) {
    push_text_value(L, word);
    lua_pushinteger(L, count);
    lua_rawset(L, -3);
  }
  return 1;
}

constexpr std::string_view kSpace = " \t\r\n\v\f";

// flow.text.split(s) at white space; flow.text.split(s, ",") at every ",".
int split(lua_State* L) {
  std::string_view text = check_text_argument(L, 1, "flow.text.split");
  bool at_space = lua_isnoneornil(L, 2);
  std::string_view separator = at_space ? "" : check_text_argument(L, 2, "flow.text.split");
  if (!at_space && separator.empty()) raise(L, "flow.text.split: the separator is empty");
  lua_newtable(L);
  lua_Integer count = 0;
  if (!at_space) {
    for (;;) {
      size_t end = text.find(separator);
      append(L, count, text.substr(0, end));
      if (end == std::string_view::npos) return 1;
      text.remove_prefix(end + separator.size());
    }
  }
  for (;;) {
    size_t start = text.find_first_not_of(kSpace);
    if (start == std::string_view::npos) return 1;
    text.remove_prefix(start);
    size_t end = text.find_first_of(kSpace);
    append(L, count, text.substr(0, end));
    if (end == std::string_view::npos) return 1;
    text.remove_prefix(end);
  }
}

int trim(lua_State* L) {
  std::string_view text = check_text_argument(L, 1, "flow.text.trim");
  size_t first = text.find_first_not_of(kSpace), last = text.find_last_not_of(kSpace);
  push_text_value(L, first == std::string_view::npos ? "" : text.substr(first, last - first + 1));
  return 1;
}

int join(lua_State* L) {
  check_list(L, 1, "flow.text.join");
  std::string_view between =
      lua_isnoneornil(L, 2) ? "" : check_text_argument(L, 2, "flow.text.join");
  std::string out;
  auto count = static_cast<lua_Integer>(lua_rawlen(L, 1));
  for (lua_Integer i = 1; i <= count; i++) {
    lua_rawgeti(L, 1, i);
    if (!lua_isstring(L, -1))
      raise(L, fmt::format("flow.text.join: item {} is {}, not a string or a number", i,
                           describe(L, -1)));
    size_t size;
    const char* text = lua_tolstring(L, -1, &size);
    if (i > 1) out += between;
    out.append(text, size);
    lua_pop(L, 1);
  }
  push_text_value(L, out);
  return 1;
}

// Replaces every `what` by `with`: plain text, no patterns.
int replace(lua_State* L) {
  std::string_view text = check_text_argument(L, 1, "flow.text.replace");
  std::string_view what = check_text_argument(L, 2, "flow.text.replace");
  std::string_view with = check_text_argument(L, 3, "flow.text.replace");
  if (what.empty()) raise(L, "flow.text.replace: the text to replace is empty");
  std::string out;
  for (;;) {
    size_t at = text.find(what);
    out += text.substr(0, at);
    if (at == std::string_view::npos) break;
    out += with;
    text.remove_prefix(at + what.size());
  }
  push_text_value(L, out);
  return 1;
}

int starts_with(lua_State* L) {
  lua_pushboolean(L, check_text_argument(L, 1, "flow.text.starts_with")
                         .starts_with(check_text_argument(L, 2, "flow.text.starts_with")));
  return 1;
}

int ends_with(lua_State* L) {
  lua_pushboolean(L, check_text_argument(L, 1, "flow.text.ends_with")
                         .ends_with(check_text_argument(L, 2, "flow.text.ends_with")));
  return 1;
}

}  // namespace

const luaL_Reg kTextFunctions[] = {
    {"lines", lines},         {"words", words},     {"tokens", tokens},
    {"histogram", histogram}, {"split", split},     {"trim", trim},
    {"join", join},           {"replace", replace}, {"starts_with", starts_with},
    {"ends_with", ends_with}, {nullptr, nullptr}};

}  // namespace flow::lua
