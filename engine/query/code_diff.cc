#include "engine/query/code_diff.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "engine/value/utf8.hpp"

namespace flow {

namespace {

constexpr size_t kLinesMax = 2000;  // of each version: the table of a comparison has their product
constexpr size_t kShownMax = 30, kLineBytesMax = 160;
constexpr size_t kContext = 1;

struct DiffLine {
  char mark = ' ';  // ' ', '-' or '+'
  const std::string* text = nullptr;
};

/// The lines of both versions in one order, by a longest common subsequence.
std::vector<DiffLine> merged(const std::vector<std::string>& before,
                             const std::vector<std::string>& now) {
  size_t width = now.size() + 1;
  std::vector<uint16_t> common((before.size() + 1) * width);  // of the rest from i and j
  for (size_t i = before.size(); i-- > 0;) {
    for (size_t j = now.size(); j-- > 0;) {
      common[i * width + j] =
          before[i] == now[j] ? static_cast<uint16_t>(common[(i + 1) * width + j + 1] + 1)
                              : std::max(common[(i + 1) * width + j], common[i * width + j + 1]);
    }
  }
  std::vector<DiffLine> lines;
  size_t i = 0, j = 0;
  while (i < before.size() || j < now.size()) {
    if (i < before.size() && j < now.size() && before[i] == now[j]) {
      lines.push_back({' ', &now[j++]});
      i++;
    } else if (i < before.size() &&
               (j == now.size() || common[(i + 1) * width + j] >= common[i * width + j + 1])) {
      lines.push_back({'-', &before[i++]});
    } else {
      lines.push_back({'+', &now[j++]});
    }
  }
  return lines;
}

/// Whether the line is a change or near one.
bool is_shown(const std::vector<DiffLine>& lines, size_t at) {
  size_t from = at > kContext ? at - kContext : 0;
  size_t end = std::min(lines.size(), at + kContext + 1);
  return std::any_of(lines.begin() + static_cast<ptrdiff_t>(from),
                     lines.begin() + static_cast<ptrdiff_t>(end),
                     [](const DiffLine& line) { return line.mark != ' '; });
}

std::string short_line(const DiffLine& line) {
  std::string text = line.mark + *line.text;
  if (text.size() <= kLineBytesMax) return text;
  return text.substr(0, character_begin(text, kLineBytesMax)) + "…";
}

}  // namespace

SourceLines source_lines(const Bundle& bundle, const std::string& source) {
  SourceLines out;
  size_t colon = source.rfind(':'), dash = source.rfind('-');
  if (colon == std::string::npos || dash == std::string::npos || dash < colon) return out;
  size_t first = 0, last = 0;
  const char* data = source.data();
  std::from_chars(data + colon + 1, data + dash, first);
  std::from_chars(data + dash + 1, data + source.size(), last);
  std::string_view file = std::string_view(source).substr(0, colon);
  auto is_it = [&](const auto& each) { return each.first == file; };
  auto found = std::find_if(bundle.files.begin(), bundle.files.end(), is_it);
  if (first == 0 || found == bundle.files.end()) return out;
  out.first = first;
  std::string_view rest = found->second;
  for (size_t number = 1; number <= last && !rest.empty(); number++) {
    size_t end = rest.find('\n');
    if (number >= first) out.lines.emplace_back(rest.substr(0, end));
    rest = end == std::string_view::npos ? "" : rest.substr(end + 1);
  }
  return out;
}

SourceLines lines_of(std::string_view text) {
  SourceLines out;
  while (!text.empty()) {
    size_t end = text.find('\n');
    out.lines.emplace_back(text.substr(0, end));
    text = end == std::string_view::npos ? "" : text.substr(end + 1);
  }
  return out;
}

std::vector<std::string> line_diff(const SourceLines& before, const SourceLines& now) {
  if (before.lines == now.lines || before.lines.size() > kLinesMax || now.lines.size() > kLinesMax)
    return {};
  std::vector<DiffLine> lines = merged(before.lines, now.lines);
  std::vector<std::string> out;
  size_t old_line = before.first, new_line = now.first;
  for (size_t at = 0; at < lines.size(); at++) {
    if (is_shown(lines, at)) {
      if (out.size() >= kShownMax) {
        out.emplace_back("…");
        break;
      }
      bool begins = at == 0 || !is_shown(lines, at - 1);
      if (begins) out.push_back(fmt::format("@@ -{} +{} @@", old_line, new_line));
      out.push_back(short_line(lines[at]));
    }
    old_line += lines[at].mark != '+';
    new_line += lines[at].mark != '-';
  }
  return out;
}

}  // namespace flow
