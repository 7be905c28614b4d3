// The part of bash's grammar that decides whether a `{name}` in a command is inside quotes.
#include <fmt/format.h>

#include <algorithm>

#include "lua/graph/shell_template.hpp"

namespace flow::lua {

namespace {

constexpr int kNestMax = 100;  // $( ) within $( )

constexpr const char* kBuiltin[] = {"cpus",  "memory", "gpus",    "rank",
                                    "ranks", "seed",   "attempt", "outputs"};

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

bool is_command_word(const std::string& word) {  // a command follows it
  for (const char* known : {"then", "do", "else", "elif", "if", "while", "until", "!", "{", "time"})
    if (word == known) return true;
  return false;
}

class Parser {
 public:
  Parser(const ShellSpec& spec, const std::vector<std::string>& names)
      : spec_(spec), names_(names), text_(spec.command), end_(text_.size()) {}

  Result<std::vector<CommandPart>> run() {
    code(0);
    if (!error_.empty()) return user_error(error_);
    flush();
    return std::move(parts_);
  }

 private:
  struct HereDocument {
    std::string delimiter;
    bool strip_tabs = false, quoted = false;
  };

  bool done() const { return at_ >= end_ || !error_.empty(); }
  char peek(size_t ahead = 0) const { return at_ + ahead < end_ ? text_[at_ + ahead] : '\0'; }
  bool looking_at(std::string_view what) const {
    return at_ + what.size() <= end_ && text_.compare(at_, what.size(), what) == 0;
  }
  void keep(size_t count = 1) {
    count = std::min(count, end_ - at_);
    literal_.append(text_, at_, count);
    at_ += count;
  }
  void flush() {
    if (!literal_.empty()) parts_.push_back({false, false, std::move(literal_), {}});
    literal_.clear();
  }
  void fail(const std::string& message) {
    if (!error_.empty()) return;
    auto line =
        1 + std::count(text_.begin(), text_.begin() + static_cast<std::ptrdiff_t>(at_), '\n');
    error_ = fmt::format("line {} of the command: {}", line, message);
  }

  // ---- braces

  // The name in `{name}`, or "". `from` is the position of the brace.
  std::string name_at(size_t from) const {
    size_t i = from + 1;
    if (i >= end_ || !is_letter(text_[i])) return "";
    size_t start = i;
    for (; i < end_; i++) {
      if (is_letter(text_[i]) || is_digit(text_[i])) continue;
      bool field =
          text_[i] == '.' && i + 1 < end_ && (is_letter(text_[i + 1]) || is_digit(text_[i + 1]));
      if (!field) break;
    }
    return i < end_ && text_[i] == '}' ? text_.substr(start, i - start) : "";
  }

  static std::vector<std::string> split(const std::string& name) {
    std::vector<std::string> path;
    for (size_t start = 0; start <= name.size();) {
      size_t dot = std::min(name.find('.', start), name.size());
      path.push_back(name.substr(start, dot - start));
      start = dot + 1;
    }
    return path;
  }

  bool is_known(const std::string& name) const {
    std::string root = name.substr(0, name.find('.'));
    return is_reserved_argument(root) ||
           std::find(names_.begin(), names_.end(), root) != names_.end();
  }

  std::string nearest(const std::string& word, std::vector<std::string> known) const {
    std::string near = nearest_name(word, known);
    if (!near.empty()) return fmt::format("did you mean `{{{}}}`?", near);
    return known.empty() ? "the task has none"
                         : fmt::format("the names are: {}", fmt::join(known, ", "));
  }

  // `{{name}}` at the cursor: written as `{name}`.
  bool take_escape(bool known_only) {
    if (peek(1) != '{') return false;
    std::string name = name_at(at_ + 1);
    if (name.empty() || peek(name.size() + 3) != '}') return false;
    if (known_only && !is_known(name)) return false;
    literal_ += "{" + name + "}";
    at_ += name.size() + 4;
    return true;
  }

  // A brace outside quotes.
  void open_brace(bool in_arithmetic) {
    if (take_escape(false)) return;
    std::string name = name_at(at_);
    if (name.empty()) return keep();
    if (!check_placeholder(name)) return;
    flush();
    parts_.push_back({true, in_arithmetic, name, split(name)});
    at_ += name.size() + 2;
  }

  bool check_placeholder(const std::string& name) {
    std::vector<std::string> path = split(name);
    if (path[0] == "outputs") {
      std::vector<std::string> known;
      for (const auto& [output, pattern] : spec_.outputs) known.push_back("outputs." + output);
      bool found = std::find(known.begin(), known.end(), name) != known.end();
      if (!found)
        fail(fmt::format("`{{{}}}` names no output of this task: {}", name, nearest(name, known)));
      return found;
    }
    bool is_argument = std::find(names_.begin(), names_.end(), path[0]) != names_.end();
    if (is_argument) return true;
    if (is_reserved_argument(path[0])) {
      if (path.size() > 1) fail(fmt::format("`{{{}}}`: `{}` has no fields", name, path[0]));
      return path.size() == 1;
    }
    std::vector<std::string> known = names_;
    for (const char* builtin : kBuiltin)
      if (std::string_view(builtin) != "outputs") known.emplace_back(builtin);
    for (const auto& [output, pattern] : spec_.outputs) known.push_back("outputs." + output);
    fail(fmt::format(
        "`{{{}}}` is not an argument of this call: {}; to keep the braces write `{{{{{}}}}}`", name,
        nearest(name, known), name));
    return false;
  }

  // A brace where placeholders are not filled in. `where` completes "… is inside".
  void quoted_brace(const char* where, const char* instead) {
    if (take_escape(true)) return;
    std::string name = name_at(at_);
    if (name.empty() || !is_known(name)) return keep();
    fail(fmt::format("`{{{0}}}` is inside {1}: {2}; to keep the braces write `{{{{{0}}}}}`", name,
                     where, instead));
  }
  void quoted_brace() {
    quoted_brace("quotes", "remove the quotes, because flow quotes the value");
  }

  // ---- words and quotes

  void single_quotes() {
    keep();
    while (!done() && peek() != '\'') peek() == '{' ? quoted_brace() : keep();
    keep();
  }

  void ansi_quotes() {  // $'…'
    keep(2);
    while (!done() && peek() != '\'') {
      if (peek() == '\\') {
        keep(2);
      } else {
        peek() == '{' ? quoted_brace() : keep();
      }
    }
    keep();
  }

  void double_quotes() {
    keep();
    while (!done() && peek() != '"') quoted_piece();
    keep();
  }

  // One character or expansion within double quotes.
  void quoted_piece() {
    switch (peek()) {
      case '\\': {
        char next = peek(1);
        bool escapes = next == '$' || next == '`' || next == '"' || next == '\\' || next == '\n';
        return keep(escapes ? 2 : 1);
      }
      case '$':
        return dollar(true);
      case '`':
        return backquotes();
      case '{':
        return quoted_brace();
      default:
        return keep();
    }
  }

  void backquotes() {
    keep();
    while (!done() && peek() != '`') {
      if (peek() == '\\') {
        keep(2);
      } else if (peek() == '{') {
        quoted_brace("backquotes", "write $( ) instead");
      } else {
        keep();
      }
    }
    keep();
  }

  void dollar(bool quoted) {
    if (looking_at("$((")) return arithmetic(3);
    if (looking_at("$(")) {
      keep(2);
      return nested();
    }
    if (looking_at("${")) return expansion();
    if (!quoted && looking_at("$'")) return ansi_quotes();
    keep();
  }

  void nested() {
    if (++nest_ > kNestMax) return fail("it is nested too deep");
    code(')');
    nest_--;
  }

  // ${…} is copied, except for $( ) within it.
  void expansion() {
    keep(2);
    if (++nest_ > kNestMax) return fail("it is nested too deep");
    while (!done() && peek() != '}') {
      switch (peek()) {
        case '\\':
          keep(2);
          break;
        case '\'':
          stay_until('\'');
          break;
        case '"':
          keep();
          while (!done() && peek() != '"') {
            if (peek() == '\\') {
              keep(2);
            } else {
              peek() == '$' ? dollar(true) : keep();
            }
          }
          keep();
          break;
        case '$':
          dollar(true);
          break;
        default:
          keep();
      }
    }
    keep();
    nest_--;
  }

  void stay_until(char quote) {
    keep();
    while (!done() && peek() != quote) keep();
    keep();
  }

  // $((…)) and ((…)): until the parentheses are balanced.
  void arithmetic(size_t opening) {
    keep(opening);
    for (int open = 2; !done() && open > 0;) {
      switch (peek()) {
        case '(':
          open++;
          keep();
          break;
        case ')':
          open--;
          keep();
          break;
        case '\\':
          keep(2);
          break;
        case '$':
          dollar(true);
          break;
        case '{':
          open_brace(true);
          break;
        case '"':
          double_quotes();
          break;
        default:
          keep();
      }
    }
  }

  // ---- here-documents

  HereDocument here_operator() {
    HereDocument document;
    keep(2);
    if (peek() == '-') {
      document.strip_tabs = true;
      keep();
    }
    while (peek() == ' ' || peek() == '\t') keep();
    while (!done() && std::string_view(" \t\n;&|()<>").find(peek()) == std::string_view::npos) {
      char c = peek();
      if (c == '\'' || c == '"') {
        document.quoted = true;
        keep();
        while (!done() && peek() != c) {
          document.delimiter += peek();
          keep();
        }
        keep();
        continue;
      }
      if (c == '\\') {
        document.quoted = true;
        keep();
        if (done()) break;
      }
      document.delimiter += peek();
      keep();
    }
    return document;
  }

  // The position of the document's last line; `at_` is the start of its first.
  size_t end_of(const HereDocument& document) const {
    for (size_t line = at_; line < end_;) {
      size_t stop = std::min(text_.find('\n', line), end_);
      size_t start = line;
      while (document.strip_tabs && start < stop && text_[start] == '\t') start++;
      if (text_.compare(start, stop - start, document.delimiter) == 0) return line;
      line = stop + 1;
    }
    return end_;
  }

  // Reads the documents opened on the line that ended; `first` is the first one of the innermost $(
  // ).
  void here_bodies(size_t first) {
    for (size_t i = first; i < documents_.size() && !done(); i++) {
      HereDocument document = documents_[i];
      size_t outer_end = end_;
      end_ = end_of(document);
      while (!done()) {
        bool escapes = peek() == '\\' && (peek(1) == '$' || peek(1) == '`' || peek(1) == '\\');
        if (peek() == '{') {
          quoted_brace("a here-document",
                       "write $(printf %s {name}) there, without the quotes of "
                       "its delimiter");
        } else if (document.quoted) {
          keep();
        } else if (escapes) {
          keep(2);
        } else if (peek() == '$') {
          dollar(true);
        } else if (peek() == '`') {
          backquotes();
        } else {
          keep();
        }
      }
      end_ = outer_end;
      size_t line_end = std::min(text_.find('\n', at_), end_);
      keep(line_end - at_ + 1);
    }
    documents_.resize(first);
  }

  // ---- commands

  // Text outside quotes, until `closer` or the end.
  void code(char closer) {
    size_t first_document = documents_.size();
    std::string word;
    bool word_start = true, command_start = true, after_for = false;
    int parentheses = 0, cases = 0;
    auto end_word = [&] {
      if (word.empty()) return;
      after_for = word == "for";
      if (command_start && word == "case") cases++;
      if (word == "esac" && cases > 0) cases--;
      bool assigns = word.find('=') != std::string::npos;
      command_start = is_command_word(word) || (command_start && assigns);
      word.clear();
    };
    while (!done()) {
      char c = peek();
      bool starts_word = word_start;
      word_start = false;
      switch (c) {
        case ' ':
        case '\t':
          end_word();
          word_start = true;
          keep();
          break;
        case '\n':
          end_word();
          word_start = command_start = true;
          keep();
          here_bodies(first_document);
          break;
        case ';':
        case '&':
        case '|':
          end_word();
          word_start = command_start = true;
          keep();
          break;
        case '<':
          end_word();
          word_start = true;
          if (looking_at("<<<")) {
            keep(3);
          } else if (looking_at("<<")) {
            documents_.push_back(here_operator());
          } else {
            keep();
          }
          break;
        case '>':
          end_word();
          word_start = true;
          keep();
          break;
        case '(':
          end_word();
          if (starts_word && looking_at("((") && (command_start || after_for)) {
            arithmetic(2);
            break;
          }
          word_start = command_start = true;
          parentheses++;
          keep();
          break;
        case ')':
          end_word();
          word_start = command_start = true;
          if (parentheses > 0) {
            parentheses--;
          } else if (cases == 0 && closer == ')') {
            return keep();
          }
          keep();
          break;
        case '#':
          if (starts_word) {
            while (!done() && peek() != '\n') keep();
          } else {
            word += c;
            keep();
          }
          break;
        case '\\':
          word += '\\';
          keep();
          if (peek() == '{') {
            quoted_brace("an escape", "remove the backslash");
          } else {
            keep();
          }
          break;
        case '\'':
          word += '\'';
          single_quotes();
          break;
        case '"':
          word += '"';
          double_quotes();
          break;
        case '`':
          word += '`';
          backquotes();
          break;
        case '$':
          word += '$';
          dollar(false);
          break;
        case '{':
          word += '{';
          open_brace(false);
          break;
        default:
          word += c;
          keep();
      }
    }
  }

  const ShellSpec& spec_;
  const std::vector<std::string>& names_;
  const std::string& text_;
  size_t at_ = 0, end_;
  int nest_ = 0;
  std::vector<HereDocument> documents_;  // whose bodies follow the line
  std::vector<CommandPart> parts_;
  std::string literal_, error_;
};

}  // namespace

bool is_reserved_argument(const std::string& name) {
  return std::find(std::begin(kBuiltin), std::end(kBuiltin), name) != std::end(kBuiltin);
}

std::string argument_name_problem(const std::string& name) {
  if (is_reserved_argument(name))
    return fmt::format(
        "`{}` is reserved: flow fills in `{{{}}}` itself; give the argument another "
        "name",
        name, name);
  bool good =
      !name.empty() && is_letter(name[0]) &&
      std::all_of(name.begin(), name.end(), [](char c) { return is_letter(c) || is_digit(c); });
  return good ? ""
              : fmt::format(
                    "`{}` is not a valid name of an argument: expected letters, digits and `_`",
                    name);
}

Result<std::vector<CommandPart>> parse_command(const ShellSpec& spec,
                                               const std::vector<std::string>& names) {
  return Parser(spec, names).run();
}

}  // namespace flow::lua
