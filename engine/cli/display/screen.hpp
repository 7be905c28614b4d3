// Shows the events of an active run on the standard output: plain lines, JSON, or a frame on a
// terminal.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "engine/cli/display/display.hpp"
#include "engine/cli/display/signals.hpp"
#include "engine/cli/display/terminal_frame.hpp"

namespace flow::cli {

/// silent: errors and warnings only. json: one event per line. plain: one line per event. live: a
/// frame that is rewritten in place, and above it the lines that stay.
enum class ScreenStyle : uint8_t { json, plain, live, silent };

/// Whether the standard output is a terminal that can move its cursor.
bool is_terminal();
/// That of the standard output's terminal; the default if it is unknown.
TerminalSize terminal_size();
/// The width of the terminal; of a pipe 120.
size_t output_columns();

/// Owns the standard output while the run is active. Thread-safe; its own thread draws the frame.
class Screen {
 public:
  Screen(Run run, ScreenStyle style, std::string title);
  ~Screen() { close(); }
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  void show(const Event& event);
  void line(const std::string& text);
  /// Prints a line to stderr without damaging the frame.
  void note(const std::string& line);
  bool serving();
  /// Replaces the frame by the lines that stay after the run.
  void close();
  /// Whether the error of this task was printed. Call it after close().
  bool is_explained(const std::string& task) const { return view_.is_explained(task); }

 private:
  void tick();
  void count(std::unique_lock<std::mutex>& lock);
  void draw();
  void print(const Event& event, const std::vector<std::string>& lines);
  void add_above(const std::string& text);
  /// Removes the frame and prints what waits to be printed above it.
  void clear_frame();
  /// Whether a frame may be drawn: not by a background job, whose terminal another program uses.
  bool has_terminal();
  int64_t run_now_ms() const;

  Run run_;
  const ScreenStyle style_;
  const bool has_colors_;
  std::mutex mutex_;
  std::condition_variable wake_;
  RunView view_;
  TerminalFrame frame_;
  std::string above_;  // what the next frame prints above itself; at most kAboveMax and one event
  int64_t event_ms_ = 0, event_steady_ms_ = 0;    // of the last event, and when it arrived
  int64_t next_count_ms_ = 0;                     // when the tasks are counted again
  std::unique_ptr<CursorOnStop> cursor_on_stop_;  // null unless live
  bool closed_ = false;
  std::thread ticker_;  // last: uses the other members
};

/// A monotonic clock that also counts suspended time, as the state's clock does.
int64_t steady_ms();

}  // namespace flow::cli
