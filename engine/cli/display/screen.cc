// Events arrive on the calling thread; a ticker thread draws the terminal's frame.
#include "engine/cli/display/screen.hpp"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string_view>
#include <utility>

#include "engine/cli/display/common.hpp"

namespace flow::cli {

namespace {

constexpr auto kTick =
    std::chrono::milliseconds(100);  // interval of frames, or of flushes to a pipe
constexpr size_t kAboveMax = 1 << 20;
constexpr size_t kPipeColumns = 120;
// Counting the tasks takes time of the engine: at most a hundredth of it, if they are many.
constexpr int64_t kCountShare = 100;
constexpr int64_t kCountEveryMaxMs = 3000;

/// Each line of what a task wrote, after the task's name: "align[s3] | 12 reads".
std::string log_lines(const Event& event) {
  std::string label = tagged_name(event.task, event.tag);
  if (event.attempt > 1) label += "@" + std::to_string(event.attempt);
  if (event.rank > 0) label += " rank " + std::to_string(event.rank);
  std::string_view text = event.text;
  if (text.ends_with('\n')) text.remove_suffix(1);
  std::string lines;
  while (true) {
    size_t end = std::min(text.find('\n'), text.size());
    lines += label + " | " + std::string(text.substr(0, end)) + "\n";
    if (end == text.size()) return lines;
    text.remove_prefix(end + 1);
  }
}

}  // namespace

int64_t steady_ms() {
  timespec now{};
  clock_gettime(CLOCK_BOOTTIME, &now);
  return now.tv_sec * 1'000 + now.tv_nsec / 1'000'000;
}

TerminalSize terminal_size() {
  winsize size{};
  bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 && size.ws_row > 0;
  return known ? TerminalSize{size.ws_col, size.ws_row} : TerminalSize{};
}

bool is_terminal() {
  const char* term = std::getenv("TERM");
  return isatty(STDOUT_FILENO) == 1 && term != nullptr && std::strcmp(term, "dumb") != 0;
}

size_t output_columns() { return is_terminal() ? terminal_size().columns - 1 : kPipeColumns; }

Screen::Screen(Run run, ScreenStyle style, std::string title)
    : run_(std::move(run)),
      style_(style),
      has_colors_(has_colors(STDOUT_FILENO)),
      view_(std::move(title), style == ScreenStyle::live),
      cursor_on_stop_(style == ScreenStyle::live ? std::make_unique<CursorOnStop>() : nullptr),
      ticker_(begin_thread([this] { tick(); })) {}

void Screen::show(const Event& event) {
  std::lock_guard lock(mutex_);
  if (style_ == ScreenStyle::json) return print_line(event.json());
  if (event.type == "warning" || event.type == "print") {
    clear_frame();
    return event.type == "print" ? print_printed(event.text) : print_warning(event.text);
  }
  if (event.type == "log") return add_above(log_lines(event));
  // Events of a plan are stamped before the run begins.
  if (event.type != "plan") {
    event_ms_ = event.at_ms;
    event_steady_ms_ = steady_ms();
  }
  bool is_quiet = style_ == ScreenStyle::silent;
  if (is_quiet && event.type == "task" && !view_.has_services()) return;
  std::vector<std::string> lines = view_.on_event(event);
  if (!is_quiet) print(event, lines);
}

void Screen::print(const Event& event, const std::vector<std::string>& lines) {
  const Color color = has_colors_ ? RunView::color_of(event) : Color::none;
  for (const std::string& line : lines) add_above(painted(printable(line), color) + "\n");
  if (event.status != "failed") return;
  size_t columns = style_ == ScreenStyle::live ? output_columns() : kReasonColumnsMax;
  if (auto error = view_.failure(event, columns)) {
    clear_frame();
    print_error(*error);
  }
}

void Screen::line(const std::string& text) {
  std::lock_guard lock(mutex_);
  add_above(printable(text) + "\n");
}

void Screen::note(const std::string& line) {
  std::lock_guard lock(mutex_);
  clear_frame();
  std::fprintf(stderr, "%s\n", line.c_str());
}

bool Screen::serving() {
  std::lock_guard lock(mutex_);
  return view_.serving();
}

void Screen::close() {
  {
    std::lock_guard lock(mutex_);
    if (closed_) return;
    closed_ = true;
  }
  wake_.notify_all();
  ticker_.join();
  clear_frame();
  if (style_ != ScreenStyle::live) return;
  for (const Line& line : view_.last_frame(run_now_ms(), output_columns()))
    print_raw(rendered(line, output_columns(), has_colors_) + "\n");
  print_raw("\x1b[?25h");
  flush_output();
}

void Screen::tick() {
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, kTick, [this] { return closed_; })) {
    if (style_ == ScreenStyle::live) {
      count(lock);
      if (closed_) return;
      draw();
    }
    flush_output();
  }
}

// It may wait for the engine; events arrive meanwhile.
void Screen::count(std::unique_lock<std::mutex>& lock) {
  int64_t begin_ms = steady_ms();
  if (begin_ms < next_count_ms_) return;
  lock.unlock();
  std::vector<CountedTask> counts = run_.counts_by_task();
  lock.lock();
  int64_t end_ms = steady_ms();
  next_count_ms_ = end_ms + std::min((end_ms - begin_ms) * kCountShare, kCountEveryMaxMs);
  if (!closed_) view_.set_counts(counts);
}

bool Screen::has_terminal() {
  pid_t group = tcgetpgrp(STDOUT_FILENO);  // -1 if it isn't the terminal of this session
  bool is_in_foreground = group < 0 || group == getpgrp();
  bool was_stopped = cursor_on_stop_ && cursor_on_stop_->was_stopped();
  if (was_stopped || !is_in_foreground) frame_.forget();
  return is_in_foreground;
}

void Screen::draw() {
  if (!has_terminal()) return print_raw(std::exchange(above_, ""));
  TerminalSize size = terminal_size();
  constexpr size_t kFreeRows = 2;  // the cursor's, and one more: the frame never scrolls
  size_t height = size.rows > kFreeRows ? size.rows - kFreeRows : 1;
  size_t columns = size.columns > 1 ? size.columns - 1 : 1;
  std::vector<std::string> lines;
  for (const Line& line : view_.frame(run_now_ms(), columns, height))
    lines.push_back(rendered(line, columns, has_colors_));
  std::string out = frame_.draw(lines, size, std::exchange(above_, ""));
  if (!out.empty()) print_raw("\x1b[?25l" + out);
}

/// The current time on the clock that stamps the run's events, independent of this machine's wall
/// clock.
int64_t Screen::run_now_ms() const { return event_ms_ + steady_ms() - event_steady_ms_; }

void Screen::add_above(const std::string& text) {
  if (style_ != ScreenStyle::live) return print_raw(text);
  above_ += text;
  if (above_.size() > kAboveMax) clear_frame();
}

void Screen::clear_frame() {
  has_terminal();
  print_raw(frame_.erase(terminal_size()));
  print_raw(std::exchange(above_, ""));
  flush_output();
}

}  // namespace flow::cli
