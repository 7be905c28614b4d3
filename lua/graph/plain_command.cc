#include "lua/graph/plain_command.hpp"

#include <fcntl.h>

#include <string_view>
#include <unordered_set>

namespace flow {

namespace {

bool is_builtin_command(const std::string& word) {
  static const std::unordered_set<std::string> kBuiltins = {
      ".",      ":",       "[",         "alias",    "bg",       "bind",    "break",    "builtin",
      "caller", "cd",      "command",   "compgen",  "complete", "compopt", "continue", "declare",
      "dirs",   "disown",  "echo",      "enable",   "eval",     "exec",    "exit",     "export",
      "false",  "fc",      "fg",        "getopts",  "hash",     "help",    "history",  "jobs",
      "kill",   "let",     "local",     "logout",   "mapfile",  "popd",    "printf",   "pushd",
      "pwd",    "read",    "readarray", "readonly", "return",   "set",     "shift",    "shopt",
      "source", "suspend", "test",      "times",    "trap",     "true",    "type",     "typeset",
      "ulimit", "umask",   "unalias",   "unset",    "wait"};
  return kBuiltins.contains(word);
}

bool is_blank(char c) { return c == ' ' || c == '\t'; }

/// Splits one line. Each method returns false if the command needs a shell.
class PlainParser {
 public:
  explicit PlainParser(std::string_view line) : line_(line) {}

  bool parse(PlainCommand& command) {
    for (skip_blanks(); at_ < line_.size(); skip_blanks()) {
      std::string word;
      bool is_quoted = false;
      if (!read_word(word, is_quoted)) return false;
      bool is_number = !is_quoted && word.size() == 1 && word[0] >= '0' && word[0] <= '2';
      bool redirects = is_at_redirection();
      if (redirects && (word.empty() || is_number) && !is_quoted) {
        if (!read_redirection(word, command)) return false;
        continue;
      }
      if (redirects && !is_quoted && is_digits(word)) return false;
      command.words.push_back(std::move(word));
    }
    return true;
  }

 private:
  static bool is_digits(std::string_view word) {
    return word.find_first_not_of("0123456789") == word.npos;
  }

  bool is_at_redirection() const {
    return at_ < line_.size() && (line_[at_] == '<' || line_[at_] == '>');
  }

  void skip_blanks() {
    while (at_ < line_.size() && is_blank(line_[at_])) at_++;
  }

  /// Reads up to a blank, a redirection or the end; the word may be empty.
  bool read_word(std::string& word, bool& is_quoted) {
    constexpr std::string_view kPlain =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_@%+,./:-";
    for (; at_ < line_.size() && !is_blank(line_[at_]); at_++) {
      char c = line_[at_];
      if (c == '<' || c == '>') break;
      if (c == '\'') {
        size_t close = line_.find('\'', at_ + 1);
        if (close == line_.npos) return false;
        word.append(line_, at_ + 1, close - at_ - 1);
        at_ = close;
        is_quoted = true;
      } else if (c == '\\' && at_ + 1 < line_.size() && line_[at_ + 1] == '\'') {
        word += '\'';
        at_++;
        is_quoted = true;
      } else if (kPlain.find(c) != kPlain.npos) {
        word += c;
      } else {
        return false;
      }
    }
    return true;
  }

  bool read_redirection(const std::string& number, PlainCommand& command) {
    bool is_input = line_[at_++] == '<';
    Redirection redirection;
    redirection.descriptor = is_input ? 0 : 1;
    if (!number.empty()) redirection.descriptor = number[0] - '0';
    bool appends = !is_input && accept('>');
    if (!is_input && !appends && accept('&')) {
      bool is_copy = at_ < line_.size() && (line_[at_] == '1' || line_[at_] == '2') &&
                     (at_ + 1 == line_.size() || is_blank(line_[at_ + 1]));
      if (!is_copy) return false;
      redirection.from = line_[at_++] - '0';
    } else {
      skip_blanks();
      bool is_quoted = false;
      if (!read_word(redirection.path, is_quoted) || redirection.path.empty()) return false;
      // In `> 2> err` a shell reads `2>` as an operator.
      bool is_number = !is_quoted && is_digits(redirection.path);
      if (is_number && is_at_redirection()) return false;
      bool is_device = redirection.path.starts_with("/dev/") && redirection.path != "/dev/null";
      if (is_device) return false;
      redirection.flags = is_input  ? O_RDONLY
                          : appends ? O_WRONLY | O_CREAT | O_APPEND
                                    : O_WRONLY | O_CREAT | O_TRUNC;
    }
    command.redirections.push_back(std::move(redirection));
    return true;
  }

  bool accept(char c) {
    bool is_next = at_ < line_.size() && line_[at_] == c;
    if (is_next) at_++;
    return is_next;
  }

  std::string_view line_;
  size_t at_ = 0;
};

}  // namespace

bool lua::is_shell_keyword(std::string_view word) {
  static const std::unordered_set<std::string_view> kKeywords = {
      "if",    "then",  "else", "elif", "fi", "case", "esac",   "for",     "select",
      "while", "until", "do",   "done", "in", "time", "coproc", "function"};
  return kKeywords.contains(word);
}

PlainCommand plain_command(const std::string& command) {
  size_t first = command.find_first_not_of(" \t\n");
  if (first == std::string::npos) return {};
  size_t last = command.find_last_not_of(" \t\n") + 1;
  PlainCommand plain;
  PlainParser parser(std::string_view(command).substr(first, last - first));
  if (!parser.parse(plain) || plain.words.empty()) return {};
  const std::string& program = plain.words[0];
  bool is_special = program.empty() || program[0] == '%' || lua::is_shell_keyword(program) ||
                    is_builtin_command(program);
  return is_special ? PlainCommand() : plain;
}

}  // namespace flow
