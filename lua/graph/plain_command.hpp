// Commands that need no shell: one program with its arguments and redirections.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace flow {

/// One redirection of a command, such as `> out.txt` or `2>&1`.
struct Redirection {
  int descriptor = 1;     // the one that is redirected: 0, 1 or 2
  int from = -1;          // `2>&1`: the descriptor that is copied; -1: `path` is opened
  std::string path = {};  // relative to the working folder of the command
  int flags = 0;          // of open(2)
};

struct PlainCommand {
  std::vector<std::string> words;         // the program and its arguments; empty: needs a shell
  std::vector<Redirection> redirections;  // in the order in which they take effect
};

/// Splits a filled command of a shell task if it is one line of plain words and of redirections
/// with
/// `<`, `>`, `>>`, `2>` and `2>&1`, and its program is not a builtin of bash. Every other command
/// needs a shell, also one that redirects to a file in /dev other than /dev/null: bash handles
/// names like /dev/tcp/… itself.
PlainCommand plain_command(const std::string& command);

}  // namespace flow

namespace flow::lua {

/// Whether bash reads the word as a keyword where it expects a command.
bool is_shell_keyword(std::string_view word);

}  // namespace flow::lua
