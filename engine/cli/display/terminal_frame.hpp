// The lines at the bottom of a terminal that are rewritten in place. Pure: returns the bytes to
// write.
#pragma once
#include <cstddef>
#include <string>
#include <vector>

namespace flow::cli {

struct TerminalSize {
  size_t columns = 80, rows = 24;
  bool operator==(const TerminalSize&) const = default;
};

/// The cursor stays at the start of the line below the frame. A frame of at most `rows - 2` lines
/// never scrolls the terminal once it has its place: the screen is not cleared as a whole, because
/// terminal multiplexers keep a cleared screen in their history.
class TerminalFrame {
 public:
  /// Replaces the frame by these lines, each narrower than the terminal. Writes only the lines that
  /// changed; "" if none did. `above` is printed above the frame first, where it stays; it is empty
  /// or ends with a newline.
  std::string draw(const std::vector<std::string>& lines, TerminalSize size,
                   const std::string& above = "");
  /// Erases the frame, and leaves the cursor where it began. "" if there is none.
  std::string erase(TerminalSize size);
  /// Leaves the frame where it is, after others wrote to the terminal: the next begins at the
  /// cursor.
  void forget() { drawn_.clear(); }

 private:
  std::string changed_lines(const std::vector<std::string>& lines);

  std::vector<std::string> drawn_;
  TerminalSize size_;
};

}  // namespace flow::cli
