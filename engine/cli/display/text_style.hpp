// Colors and characters that the output may use, by the environment and the command line.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace flow::cli {

enum class Color : uint8_t { none, red, green, yellow, cyan, dim, bold };
enum class ColorMode : uint8_t { automatic, always, never };

/// `--color`. Default: automatic. Call it before any output.
void set_color_mode(ColorMode mode);
/// Whether output to this descriptor has colors. In automatic mode not if NO_COLOR is set; else if
/// CLICOLOR_FORCE is set and not 0; else if it is a terminal and TERM is neither missing nor dumb.
bool has_colors(int descriptor);
/// The text in the color, as a terminal's control sequences around it.
std::string painted(const std::string& text, Color color);

/// Whether the locale (the first set variable of LC_ALL, LC_CTYPE and LANG) is for UTF-8. Also if
/// none is set.
bool has_unicode_locale();
/// From now on shortened(), ellipsis() and frames use ASCII only. Call it before any output.
void use_ascii();
bool uses_ascii();
/// "…", or "..." after use_ascii().
const char* ellipsis();

/// A part of a line in one color.
struct Span {
  std::string text;
  Color color = Color::none;
};
using Line = std::vector<Span>;
/// The line cut to `columns_max` columns, with an ellipsis if it is cut.
Line fitted(const Line& line, size_t columns_max);
/// The line as text of at most `columns_max` columns, with an ellipsis if it is cut.
std::string rendered(const Line& line, size_t columns_max, bool with_colors);

}  // namespace flow::cli
