// Warns where a script seems to use a handle as a plain value: Lua has no hook for `if h`, `not h`,
// `and`, `or` and `h == 3`. A tokenizer and scopes; cases that the source does not show are not
// reported.
#include <fmt/format.h>

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "lua/state/script.hpp"

namespace flow {

namespace {

constexpr size_t kWarningsMax = 100;  // per file

struct LuaToken {
  enum class Kind : uint8_t { name, keyword, text, number, sign, end } kind = Kind::end;
  std::string_view text;
  uint32_t line = 0;
};

bool is_letter(char c) { return std::isalpha(static_cast<unsigned char>(c)) || c == '_'; }
bool is_digit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }

class Tokenizer {
 public:
  explicit Tokenizer(std::string_view text) : text_(text) {}

  std::vector<LuaToken> run() {
    std::vector<LuaToken> tokens;
    while (at_ < text_.size()) {
      char c = text_[at_];
      if (c == '\n') line_++;
      if (std::isspace(static_cast<unsigned char>(c))) {
        at_++;
      } else if (text_.substr(at_, 2) == "--") {
        comment();
      } else {
        uint32_t line = line_;
        size_t start = at_;
        LuaToken::Kind kind = token();
        tokens.push_back({kind, text_.substr(start, at_ - start), line});
      }
    }
    tokens.push_back({LuaToken::Kind::end, "", line_});
    return tokens;
  }

 private:
  char peek(size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0';
  }

  // The level of a `[==[` here, or -1.
  int long_bracket() const {
    if (peek() != '[') return -1;
    int level = 0;
    while (peek(1 + static_cast<size_t>(level)) == '=') level++;
    return peek(1 + static_cast<size_t>(level)) == '[' ? level : -1;
  }
  void skip_long(int level) {
    std::string close = "]" + std::string(static_cast<size_t>(level), '=') + "]";
    size_t stop = std::min(text_.find(close, at_), text_.size());
    for (size_t i = at_; i < stop; i++) line_ += text_[i] == '\n';
    at_ = std::min(stop + close.size(), text_.size());
  }
  void comment() {
    at_ += 2;
    int level = long_bracket();
    if (level >= 0) return skip_long(level);
    at_ = std::min(text_.find('\n', at_), text_.size());
  }

  LuaToken::Kind token() {
    char c = peek();
    if (is_letter(c)) {
      size_t start = at_;
      while (is_letter(peek()) || is_digit(peek())) at_++;
      return is_keyword(text_.substr(start, at_ - start)) ? LuaToken::Kind::keyword
                                                          : LuaToken::Kind::name;
    }
    if (is_digit(c) || (c == '.' && is_digit(peek(1)))) {
      while (is_letter(peek()) || is_digit(peek()) || peek() == '.' ||
             ((peek() == '+' || peek() == '-') &&
              std::string_view("eEpP").find(text_[at_ - 1]) != std::string_view::npos))
        at_++;
      return LuaToken::Kind::number;
    }
    if (c == '"' || c == '\'') {
      at_++;
      while (at_ < text_.size() && peek() != c && peek() != '\n') at_ += peek() == '\\' ? 2 : 1;
      at_ = std::min(at_ + 1, text_.size());
      return LuaToken::Kind::text;
    }
    int level = long_bracket();
    if (level >= 0) {
      skip_long(level);
      return LuaToken::Kind::text;
    }
    for (std::string_view sign : {"...", "..", "==", "~=", "<=", ">=", "//", "::", "<<", ">>"}) {
      if (text_.substr(at_, sign.size()) != sign) continue;
      at_ += sign.size();
      return LuaToken::Kind::sign;
    }
    at_++;
    return LuaToken::Kind::sign;
  }

  static bool is_keyword(std::string_view word) {
    static const std::set<std::string_view> kKeywords = {
        "and",      "break",  "do",   "else", "elseif", "end",  "false", "for",
        "function", "goto",   "if",   "in",   "local",  "nil",  "not",   "or",
        "repeat",   "return", "then", "true", "until",  "while"};
    return kKeywords.contains(word);
  }

  std::string_view text_;
  size_t at_ = 0;
  uint32_t line_ = 1;
};

class Linter {
 public:
  Linter(const std::string& path, std::vector<LuaToken> tokens)
      : path_(path), tokens_(std::move(tokens)) {}

  std::vector<std::string> run() {
    scopes_.emplace_back();
    while (kind() != LuaToken::Kind::end) step();
    return std::move(warnings_);
  }

 private:
  enum class NameKind : uint8_t { plain, task, handle };
  struct Name {
    std::string_view name;
    NameKind what;
  };
  struct Scope {
    std::vector<Name> names;
    std::string_view opener = "chunk";  // the keyword that opens it
    bool builds = false;                // within a pipeline's body, or a dynamic task
  };

  const LuaToken& token(size_t i) const { return tokens_[std::min(i, tokens_.size() - 1)]; }
  LuaToken::Kind kind() const { return token(at_).kind; }
  bool is(size_t i, std::string_view text) const {
    return token(i).text == text && token(i).kind != LuaToken::Kind::text;
  }
  bool builds() const { return scopes_.back().builds; }

  NameKind find(std::string_view name) const {
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope)
      for (auto known = scope->names.rbegin(); known != scope->names.rend(); ++known)
        if (known->name == name) return known->what;
    return NameKind::plain;
  }
  void declare(std::string_view name, NameKind what) {
    scopes_.back().names.push_back({name, what});
  }
  void assign(std::string_view name, NameKind what) {
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope)
      for (auto known = scope->names.rbegin(); known != scope->names.rend(); ++known)
        if (known->name == name) {
          known->what = what;
          return;
        }
  }

  void open(std::string_view opener, bool builds) {
    scopes_.emplace_back();
    scopes_.back().opener = opener;
    scopes_.back().builds = builds;
  }
  void close() {
    if (scopes_.size() > 1) scopes_.pop_back();
  }

  // ---- expressions

  // The position after the bracket that closes the one at `i`.
  size_t after_bracket(size_t i) const {
    int open = 0;
    for (; token(i).kind != LuaToken::Kind::end; i++) {
      if (token(i).kind != LuaToken::Kind::sign) continue;
      char c = token(i).text[0];
      if (token(i).text.size() > 1) continue;
      if (c == '(' || c == '[' || c == '{') open++;
      if ((c == ')' || c == ']' || c == '}') && --open == 0) return i + 1;
    }
    return i;
  }

  // The position after the arguments of a call at `i`, or `i` if there are none.
  size_t after_arguments(size_t i) const {
    if (is(i, "(") || is(i, "{")) return after_bracket(i);
    return token(i).kind == LuaToken::Kind::text ? i + 1 : i;
  }

  // The position after the handle expression at `i`: h, h.part, task(…), flow.map(…); `i` if there
  // is none.
  size_t after_handle(size_t i) const {
    if (token(i).kind != LuaToken::Kind::name) return i;
    bool is_field = i > 0 && (is(i - 1, ".") || is(i - 1, ":"));
    if (is_field) return i;
    size_t end = i;
    bool map = token(i).text == "flow" && is(i + 1, ".") && is(i + 2, "map") && is(i + 3, "(") &&
               find("flow") == NameKind::plain;
    NameKind what = find(token(i).text);
    if (map) {
      end = after_bracket(i + 3);
    } else if (what == NameKind::handle) {
      end = i + 1;
    } else if (what == NameKind::task) {
      end = after_arguments(i + 1);
      if (end == i + 1) return i;
    } else {
      return i;
    }
    return after_parts(end);
  }

  size_t after_parts(size_t i) const {
    for (;;) {
      if (is(i, ".") && token(i + 1).kind == LuaToken::Kind::name) {
        i += 2;
      } else if (is(i, "[")) {
        i = after_bracket(i);
      } else if (is(i, ":")) {
        size_t end = after_arguments(i + 2);
        if (end == i + 2) return i;
        i = end;
      } else {
        return i;
      }
    }
  }

  void warn(size_t i, size_t end, const std::string& how) {
    if (warnings_.size() >= kWarningsMax) return;
    std::string shown;
    for (size_t j = i; j < end && shown.size() < 40; j++) shown += token(j).text;
    warnings_.push_back(fmt::format(
        "{}:{}: {} `{}` does not test a result, which does not exist while the graph is built: a "
        "handle is always true and equals nothing else; decide with flow.when(handle, f, g), or in "
        "a task",
        path_, token(i).line, how, shown));
  }

  // Checks the context of the handle in [i, end).
  void check_use(size_t i, size_t end) {
    if (i == 0) return;
    if (is(i - 1, "not")) return warn(i, end, "`not`");
    for (size_t near : {i - 1, end}) {
      if (is(near, "==") || is(near, "~=")) {
        return warn(i, end, fmt::format("`{}`", token(near).text));
      }
    }
    bool decides = is(end, "then") || (is(end, "do") && condition_begins(i));
    if (decides) return warn(i, end, is(end, "then") ? "`if`" : "`while`");
    if (is(i - 1, "until")) return warn(i, end, "`until`");
    // `c and h or other` is fine: there h is the selected value.
    if (is(end, "and")) return warn(i, end, "`and`");
    if (is(end, "or") && !is(i - 1, "and")) return warn(i, end, "`or`");
  }

  // `while … h do`, but not `for … in h do`.
  bool condition_begins(size_t i) const {
    for (size_t back = i; back > 0; back--) {
      if (token(back - 1).kind != LuaToken::Kind::keyword) continue;
      std::string_view word = token(back - 1).text;
      if (word == "while") return true;
      if (word != "and" && word != "or" && word != "not") return false;
    }
    return false;
  }

  // ---- statements

  void step() {
    const LuaToken& here = token(at_);
    if (here.kind == LuaToken::Kind::keyword) return keyword(here.text);
    if (here.kind == LuaToken::Kind::name && is(at_ + 1, "=") && begins_statement(at_)) {
      std::string_view name = here.text;
      size_t value = at_ + 2;
      at_ = value;
      assign(name, value_at(value, 1, 0));
      return;
    }
    if (builds()) {
      size_t end = after_handle(at_);
      if (end != at_) check_use(at_, end);
    }
    at_++;
  }

  bool begins_statement(size_t i) const {
    if (i == 0) return true;
    const LuaToken& before = token(i - 1);
    if (before.kind == LuaToken::Kind::keyword)
      return before.text == "do" || before.text == "then" || before.text == "else" ||
             before.text == "end" || before.text == "repeat";
    if (before.kind == LuaToken::Kind::sign)
      return before.text == ")" || before.text == ";" || before.text == "]" || before.text == "}";
    return before.kind != LuaToken::Kind::end;
  }

  // The kind of the value that the expression at `i` gives to the name at `position` of `names`.
  NameKind value_at(size_t i, size_t names, size_t position) const {
    if (names != 1 || position != 0) return NameKind::plain;
    if (token(i).text == "flow" && is(i + 1, ".")) {
      std::string_view function = token(i + 2).text;
      if (function == "task" || function == "shell" || function == "dynamic" ||
          function == "native")
        return NameKind::task;
    }
    if (!builds()) return NameKind::plain;
    size_t end = after_handle(i);
    if (end == i) return NameKind::plain;
    const LuaToken& next = token(end);
    bool ends = next.kind == LuaToken::Kind::end || next.kind == LuaToken::Kind::name ||
                next.text == ";" || next.text == "," ||
                (next.kind == LuaToken::Kind::keyword && next.text != "and" && next.text != "or");
    return ends ? NameKind::handle : NameKind::plain;
  }

  void keyword(std::string_view word) {
    if (word == "local") return local_statement();
    if (word == "function") return function_head();
    if (word == "for") return for_head();
    if (word == "do" || word == "then" || word == "repeat" || word == "else") {
      if (word == "else") close();
      open(word, builds());
    } else if (word == "elseif" || word == "end") {
      close();
    } else if (word == "until") {
      at_++;
      size_t end = after_handle(at_);
      if (builds() && end != at_) check_use(at_, end);
      at_ = end;
      close();
      return;
    }
    at_++;
  }

  void local_statement() {
    at_++;
    if (is(at_, "function")) {
      declare(token(at_ + 1).text, NameKind::plain);
      return function_head();
    }
    std::vector<std::string_view> names;
    while (token(at_).kind == LuaToken::Kind::name) {
      names.push_back(token(at_).text);
      at_++;
      if (is(at_, "<")) at_ += 3;
      if (!is(at_, ",")) break;
      at_++;
    }
    bool has_value = is(at_, "=");
    if (has_value) at_++;
    for (size_t i = 0; i < names.size(); i++)
      declare(names[i], has_value ? value_at(at_, names.size(), i) : NameKind::plain);
  }

  // `for a, b in` or `for i =`: its names are visible in the block of its `do`.
  void for_head() {
    at_++;
    open("for", builds());
    while (token(at_).kind == LuaToken::Kind::name) {
      declare(token(at_).text, NameKind::plain);
      at_++;
      if (!is(at_, ",")) break;
      at_++;
    }
    // The `do` of this loop opens no scope of its own.
    int nested = 0;
    for (; kind() != LuaToken::Kind::end; at_++) {
      if (is(at_, "function")) nested++;
      if (is(at_, "end") && nested > 0) nested--;
      if (is(at_, "do") && nested == 0) break;
      if (builds() && nested == 0) {
        size_t end = after_handle(at_);
        if (end != at_) check_use(at_, end);
      }
    }
    at_++;
  }

  void function_head() {
    bool body = is_body(at_);
    at_++;
    while (token(at_).kind == LuaToken::Kind::name || is(at_, ".") || is(at_, ":")) at_++;
    open("function", body || builds());
    if (is(at_, "(")) at_++;
    while (kind() != LuaToken::Kind::end && !is(at_, ")")) {
      if (token(at_).kind == LuaToken::Kind::name) declare(token(at_).text, NameKind::plain);
      at_++;
    }
    at_++;
  }

  // Whether the `function` at `i` is the last argument of flow.pipeline( or flow.dynamic(.
  bool is_body(size_t i) const {
    int closed = 0;
    for (size_t back = i; back > 0; back--) {
      const LuaToken& before = token(back - 1);
      if (before.kind == LuaToken::Kind::keyword && closed == 0) return false;
      if (before.kind != LuaToken::Kind::sign) continue;
      if (before.text == ")" || before.text == "}" || before.text == "]") closed++;
      bool opens = before.text == "(" || before.text == "{" || before.text == "[";
      if (!opens) continue;
      if (closed-- > 0) continue;
      return before.text == "(" && back >= 4 && is(back - 3, ".") && is(back - 4, "flow") &&
             (is(back - 2, "pipeline") || is(back - 2, "dynamic"));
    }
    return false;
  }

  const std::string& path_;
  std::vector<LuaToken> tokens_;
  size_t at_ = 0;
  std::vector<Scope> scopes_;
  std::vector<std::string> warnings_;
};

}  // namespace

std::vector<std::string> lint_source(const std::string& path, const std::string& text) {
  return Linter(path, Tokenizer(text).run()).run();
}

}  // namespace flow
