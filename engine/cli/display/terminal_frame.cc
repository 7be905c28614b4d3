#include "engine/cli/display/terminal_frame.hpp"

#include <algorithm>

#include "engine/cli/display/common.hpp"

namespace flow::cli {

namespace {

// Terminals that know this mode show what is between the two at once; others ignore it.
constexpr const char* kBeginUpdate = "\x1b[?2026h";
constexpr const char* kEndUpdate = "\x1b[?2026l";
constexpr const char* kEraseToEndOfLine = "\x1b[K";

std::string moved(size_t from, size_t to) {
  if (from == to) return "";
  size_t distance = from < to ? to - from : from - to;
  return "\x1b[" + std::to_string(distance) + (from < to ? "B" : "A");
}

/// Width without the control sequences of colors.
size_t shown_columns(const std::string& line) {
  std::string text;
  for (size_t i = 0; i < line.size(); i++) {
    if (line[i] != '\x1b') {
      text += line[i];
      continue;
    }
    i = std::min(line.find('m', i), line.size());
  }
  return columns_of(text);
}

}  // namespace

// A narrower terminal wraps the lines again, so the frame then has more of them. Those that a lower
// terminal pushed out at its top are gone.
std::string TerminalFrame::erase(TerminalSize size) {
  if (drawn_.empty()) return "";
  size_t rows = 0;
  for (const std::string& line : drawn_) {
    size_t wrapped =
        size.columns == 0 ? 0 : (shown_columns(line) + size.columns - 1) / size.columns;
    rows += size.columns < size_.columns ? std::max<size_t>(wrapped, 1) : 1;
  }
  if (size.rows > 0) rows = std::min(rows, size.rows - 1);
  std::string out = "\r" + moved(rows, 0);
  for (size_t i = 0; i < rows; i++) out += std::string(kEraseToEndOfLine) + "\x1b[B";
  out += kEraseToEndOfLine + moved(rows, 0);
  drawn_.clear();
  return out;
}

std::string TerminalFrame::draw(const std::vector<std::string>& lines, TerminalSize size,
                                const std::string& above) {
  std::string out;
  if (size != size_ || !above.empty()) out = erase(size);
  size_ = size;
  out += above;
  out += changed_lines(lines);
  drawn_ = lines;
  return out.empty() ? "" : kBeginUpdate + out + kEndUpdate;
}

std::string TerminalFrame::changed_lines(const std::vector<std::string>& lines) {
  if (lines == drawn_) return "";
  size_t at = drawn_.size();  // the cursor's line in the frame
  std::string out;
  for (size_t i = 0; i < std::max(lines.size(), drawn_.size()); i++) {
    if (i < lines.size() && i < drawn_.size() && lines[i] == drawn_[i]) continue;
    out += moved(at, i) + "\r";
    at = i;
    if (i < lines.size()) out += lines[i];
    out += kEraseToEndOfLine;
    if (i < drawn_.size()) continue;
    out += "\r\n";  // the line below may not exist yet
    at++;
  }
  return out + moved(at, lines.size()) + "\r" + kEraseToEndOfLine;
}

}  // namespace flow::cli
