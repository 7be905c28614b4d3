// Lines typed at a terminal, with editing and a history (libedit).
#pragma once
#include <memory>
#include <optional>
#include <string>

namespace flow {

/// Used by one thread. While it reads, the terminal is in the editor's mode; SIGTERM and SIGTSTP
/// restore the terminal first.
class LineEditor {
 public:
  struct Line {
    std::string text;           // without the newline
    bool is_cancelled = false;  // Ctrl-C was typed, and `text` is empty
  };
  /// Edits what is typed at the terminal `input`, a descriptor that it then owns, and shows it on
  /// the standard error. Null if this build has no libedit, or `input` cannot be used. The history
  /// is read from `history_path` and written after each line, with mode 0600; "": it is not kept.
  static std::unique_ptr<LineEditor> open(int input, const std::string& history_path);
  virtual ~LineEditor() = default;
  /// The next line; nullopt at Ctrl-D or when the terminal is closed.
  virtual std::optional<Line> read(const std::string& prompt) = 0;
};

/// $XDG_STATE_HOME/flow/repl_history, by default ~/.local/state/flow/repl_history. Makes its
/// folder;
/// "" if there is no such folder.
std::string repl_history_path();

}  // namespace flow
