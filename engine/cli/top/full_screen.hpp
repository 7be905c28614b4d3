// The whole terminal, by ncurses: keys in, lines out. The only file that sees ncurses.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>

#include "engine/cli/display/terminal_frame.hpp"
#include "engine/cli/top/top_view.hpp"

namespace flow::cli {

/// At most one exists at a time. Used by one thread, except for wake().
class FullScreen {
 public:
  /// Takes over the terminal of the standard streams. Null if $TERM names an unknown one.
  static std::unique_ptr<FullScreen> open();
  ~FullScreen();
  /// The terminal is as it was before; nothing may be drawn any more.
  void end();
  FullScreen(const FullScreen&) = delete;
  FullScreen& operator=(const FullScreen&) = delete;

  /// The present size. Call it before each draw().
  TerminalSize size();
  void draw(const TopFrame& frame);
  /// The next draw() writes every line: after other programs wrote to the terminal.
  void forget();
  /// Blocks until a key was pressed, wake() was called, or the time is over.
  void wait(int64_t within_ms);
  void wake();
  std::optional<uint32_t> key();                 ///< nothing: no key was pressed
  bool is_closed() const { return is_closed_; }  ///< the terminal is gone

 private:
  FullScreen();
  bool has_colors_ = false, is_closed_ = false, is_ended_ = false;
  TerminalSize size_;
  int wake_read_ = -1, wake_write_ = -1;
};

}  // namespace flow::cli
