#define NCURSES_NOMACROS 1
#define NCURSES_WIDECHAR 1
#include "engine/cli/top/full_screen.hpp"

#include <curses.h>
#include <fcntl.h>
#include <langinfo.h>
#include <poll.h>
#include <unistd.h>

#include <clocale>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>

#include "engine/cli/display/common.hpp"
#include "engine/cli/display/screen.hpp"

namespace flow::cli {

namespace {

constexpr int kEscapeDelayMs = 25;  // a sequence of a key arrives at once, also through ssh

/// ncurses decodes and measures text by the locale of the process. The one of the user may not be
/// installed; C.UTF-8 always is.
void use_locale_of_terminal() {
  auto is_utf8 = [] { return std::strcmp(nl_langinfo(CODESET), "UTF-8") == 0; };
  std::setlocale(LC_CTYPE, "");
  if (has_unicode_locale() && !is_utf8()) std::setlocale(LC_CTYPE, "C.UTF-8");
  if (!has_unicode_locale() || !is_utf8()) use_ascii();
}

/// Text of scripts for a terminal that shows ASCII only.
std::string ascii_text(const std::string& text) {
  std::string out;
  for (char c : text) {
    bool is_ascii = static_cast<unsigned char>(c) < 0x80, is_start = (c & 0xc0) != 0x80;
    if (is_ascii || is_start) out += is_ascii ? c : '?';
  }
  return out;
}

constexpr Color kPairs[] = {Color::red, Color::green, Color::yellow, Color::cyan};

void begin_colors() {
  start_color();
  use_default_colors();
  const short colors[] = {COLOR_RED, COLOR_GREEN, COLOR_YELLOW, COLOR_CYAN};
  for (short i = 0; i < 4; i++) init_pair(static_cast<short>(i + 1), colors[i], -1);
}

attr_t attributes_of(Color color) {
  if (color == Color::bold) return A_BOLD;
  if (color == Color::dim) return A_DIM;
  for (int i = 0; i < 4; i++)
    if (kPairs[i] == color) return COLOR_PAIR(i + 1);
  return A_NORMAL;
}

uint32_t key_of(int code) {
  switch (code) {
    case KEY_UP:
      return kUp;
    case KEY_DOWN:
      return kDown;
    case KEY_LEFT:
    case KEY_BTAB:
      return kLeft;
    case KEY_RIGHT:
      return kRight;
    case KEY_PPAGE:
      return kPageUp;
    case KEY_NPAGE:
      return kPageDown;
    case KEY_HOME:
      return kHome;
    case KEY_END:
      return kEnd;
    case KEY_BACKSPACE:
      return kBackspace;
    case KEY_ENTER:
      return kEnter;
    default:
      return 0;
  }
}

}  // namespace

std::unique_ptr<FullScreen> FullScreen::open() {
  use_locale_of_terminal();
  if (newterm(nullptr, stdout, stdin) == nullptr) return nullptr;
  return std::unique_ptr<FullScreen>(new FullScreen());
}

FullScreen::FullScreen() : has_colors_(cli::has_colors(STDOUT_FILENO) && ::has_colors()) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) {
    endwin();
    fail_environment("cannot make a pipe: too many open files");
  }
  wake_read_ = ends[0];
  wake_write_ = ends[1];
  if (has_colors_) begin_colors();
  cbreak();
  noecho();
  nonl();
  keypad(stdscr, TRUE);
  nodelay(stdscr, TRUE);
  set_escdelay(kEscapeDelayMs);
  curs_set(0);
}

void FullScreen::end() {
  if (!std::exchange(is_ended_, true)) endwin();
}

FullScreen::~FullScreen() {
  end();
  close(wake_read_);
  close(wake_write_);
}

// The size is read here and not by a handler of SIGWINCH, which another thread may get.
TerminalSize FullScreen::size() {
  TerminalSize now = terminal_size();
  if (now != size_) {
    resizeterm(static_cast<int>(now.rows), static_cast<int>(now.columns));
    forget();
  }
  return size_ = now;
}

void FullScreen::draw(const TopFrame& frame) {
  werase(stdscr);
  for (size_t row = 0; row < std::min(frame.lines.size(), size_.rows); row++) {
    wmove(stdscr, static_cast<int>(row), 0);
    const bool is_highlighted = row == frame.highlighted;
    for (const Span& span : fitted(frame.lines[row], size_.columns)) {
      bool is_plain = !has_colors_ && span.color != Color::bold;
      attr_t attributes = is_plain ? A_NORMAL : attributes_of(span.color);
      wattrset(stdscr, static_cast<int>(is_highlighted ? A_REVERSE : attributes));
      std::string text = uses_ascii() ? ascii_text(span.text) : span.text;
      waddnstr(stdscr, text.c_str(), -1);
    }
    wattrset(stdscr, A_NORMAL);
  }
  wrefresh(stdscr);
}

void FullScreen::forget() { clearok(curscr, TRUE); }

void FullScreen::wait(int64_t within_ms) {
  pollfd polled[2] = {{STDIN_FILENO, POLLIN, 0}, {wake_read_, POLLIN, 0}};
  if (poll(polled, 2, static_cast<int>(within_ms)) <= 0) return;
  is_closed_ = is_closed_ || (polled[0].revents & (POLLHUP | POLLERR | POLLNVAL)) != 0;
  char bytes[64];
  while (read(wake_read_, bytes, sizeof bytes) > 0) {
  }
}

void FullScreen::wake() {
  char byte = 'w';
  [[maybe_unused]] ssize_t ignored = write(wake_write_, &byte, 1);  // full: it is awake
}

std::optional<uint32_t> FullScreen::key() {
  wint_t code = 0;
  int kind = wget_wch(stdscr, &code);
  if (kind == ERR) return std::nullopt;
  if (kind == KEY_CODE_YES) return key_of(static_cast<int>(code));
  constexpr wint_t kFormFeed = 12;
  if (code == kFormFeed) {
    forget();
    return kRedraw;
  }
  return code == '\r' ? uint32_t{kEnter} : static_cast<uint32_t>(code);
}

}  // namespace flow::cli
