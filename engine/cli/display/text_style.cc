// The variables are those of no-color.org and bixense.com/clicolors.
#include "engine/cli/display/text_style.hpp"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <string_view>

#include "engine/cli/display/common.hpp"

namespace flow::cli {

namespace {

ColorMode color_mode = ColorMode::automatic;
bool is_ascii_only = false;

std::string_view variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

const char* code_of(Color color) {
  switch (color) {
    case Color::none:
      return "";
    case Color::red:
      return "31";
    case Color::green:
      return "32";
    case Color::yellow:
      return "33";
    case Color::cyan:
      return "36";
    case Color::dim:
      return "2";
    case Color::bold:
      return "1";
  }
  return "";
}

}  // namespace

void set_color_mode(ColorMode mode) { color_mode = mode; }

bool has_colors(int descriptor) {
  if (color_mode != ColorMode::automatic) return color_mode == ColorMode::always;
  if (!variable("NO_COLOR").empty()) return false;
  std::string_view forced = variable("CLICOLOR_FORCE");
  if (!forced.empty() && forced != "0") return true;
  std::string_view term = variable("TERM");
  return !term.empty() && term != "dumb" && isatty(descriptor) == 1;
}

std::string painted(const std::string& text, Color color) {
  if (color == Color::none || text.empty()) return text;
  return std::string("\x1b[") + code_of(color) + "m" + text + "\x1b[0m";
}

bool has_unicode_locale() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    std::string locale(variable(name));
    if (locale.empty()) continue;
    std::ranges::transform(locale, locale.begin(), [](unsigned char c) { return std::tolower(c); });
    return locale.find("utf-8") != std::string::npos || locale.find("utf8") != std::string::npos;
  }
  return true;
}

void use_ascii() { is_ascii_only = true; }

bool uses_ascii() { return is_ascii_only; }

const char* ellipsis() { return is_ascii_only ? "..." : "…"; }

Line fitted(const Line& line, size_t columns_max) {
  std::string whole;
  for (const Span& span : line) whole += span.text;
  std::string shown = shortened(whole, columns_max);
  // The cut text has the same bytes as the whole one up to its ellipsis, which stays uncolored.
  Line out;
  size_t at = 0;
  for (const Span& span : line) {
    size_t same = 0;
    while (same < span.text.size() && at + same < shown.size() &&
           shown[at + same] == span.text[same])
      same++;
    out.push_back({shown.substr(at, same), span.color});
    at += same;
    if (same < span.text.size()) break;
  }
  out.push_back({shown.substr(std::min(at, shown.size())), Color::none});
  return out;
}

std::string rendered(const Line& line, size_t columns_max, bool with_colors) {
  std::string out;
  for (const Span& span : fitted(line, columns_max))
    out += with_colors ? painted(span.text, span.color) : span.text;
  return out;
}

}  // namespace flow::cli
