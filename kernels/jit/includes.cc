// The includes of a source, as a preprocessor sees them: line splices joined, comments as spaces,
// literals as tokens. Compilers differ in trigraphs and raw strings: every interpretation of a
// source must be acceptable.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/jit/source.hpp"

namespace flow::jit {
namespace {

struct LexerRules {
  bool trigraphs, raw_strings;
};
constexpr LexerRules kReadings[] = {{false, true}, {false, false}, {true, true}, {true, false}};

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\f' || c == '\v' || c == '\r'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_word(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '$' ||
         static_cast<unsigned char>(c) >= 128;
}

// A source without line splices, and the original position of each character.
struct SplicedSource {
  std::string text;
  std::vector<uint32_t> from;
};

SplicedSource splice(std::string_view source, bool trigraphs) {
  SplicedSource spliced;
  spliced.text.reserve(source.size());
  spliced.from.reserve(source.size());
  for (size_t at = 0; at < source.size();) {
    std::string_view rest = source.substr(at);
    bool is_trigraph = trigraphs && (rest.starts_with("?\?/") || rest.starts_with("?\?="));
    size_t size = is_trigraph ? 3 : 1;
    char c = !is_trigraph ? rest[0] : rest[2] == '/' ? '\\' : '#';
    std::string_view next = rest.substr(size);
    size_t newline = next.starts_with('\n') ? 1 : next.starts_with("\r\n") ? 2 : 0;
    if (c == '\\' && newline > 0) {
      at += size + newline;
      continue;
    }
    spliced.text += c;
    spliced.from.push_back(static_cast<uint32_t>(at));
    at += size;
  }
  return spliced;
}

enum class TokenKind { end, newline, word, literal, mark };
struct CppToken {
  TokenKind kind = TokenKind::end;
  std::string_view text;
  size_t at = 0;

  bool is(std::string_view other) const { return text == other && kind != TokenKind::literal; }
};

class Lexer {
 public:
  Lexer(std::string_view source, LexerRules reading)
      : source_(source), reading_(reading), spliced_(splice(source, reading.trigraphs)) {}

  CppToken next() {
    skip();
    size_t start = at_;
    if (start == text().size()) return {TokenKind::end, "", start};
    TokenKind kind = pass();
    return {kind, text().substr(start, at_ - start), start};
  }

  // "cuda_fp16.h" of <cuda_fp16.h>; empty if no such name follows.
  std::string_view header() {
    skip();
    if (!text().substr(at_).starts_with('<')) return "";
    size_t end = text().find_first_of(">\n", at_);
    if (end == std::string_view::npos || text()[end] == '\n') return "";
    std::string_view name = text().substr(at_ + 1, end - at_ - 1);
    at_ = end + 1;
    return name;
  }

  size_t place(const CppToken& token) const { return spliced_.from[token.at]; }

 private:
  std::string_view text() const { return spliced_.text; }
  char peek(size_t ahead = 0) const {
    return at_ + ahead < text().size() ? text()[at_ + ahead] : '\0';
  }

  void skip() {  // blanks and comments
    for (;;) {
      if (is_blank(peek())) {
        at_++;
      } else if (text().substr(at_).starts_with("//")) {
        at_ = std::min(text().find('\n', at_), text().size());
      } else if (text().substr(at_).starts_with("/*")) {
        size_t end = text().find("*/", at_ + 2);
        at_ = end == std::string_view::npos ? text().size() : end + 2;
      } else {
        return;
      }
    }
  }

  TokenKind pass() {
    char c = peek();
    if (is_digit(c) || (c == '.' && is_digit(peek(1)))) return pass_number();
    if (is_word(c)) return pass_word();
    if (c == '"' || c == '\'') return pass_literal();
    at_ += text().substr(at_).starts_with("%:") ? 2 : 1;
    return c == '\n' ? TokenKind::newline : TokenKind::mark;
  }

  TokenKind pass_number() {  // the ' in 1'000 does not begin a literal
    while (is_word(peek()) || peek() == '.' || (peek() == '\'' && is_word(peek(1)))) at_++;
    return TokenKind::mark;
  }

  TokenKind pass_word() {
    size_t start = at_;
    while (is_word(peek())) at_++;
    std::string_view word = text().substr(start, at_ - start);
    bool is_raw = word == "R" || word == "LR" || word == "uR" || word == "UR" || word == "u8R";
    if (is_raw && peek() == '"' && reading_.raw_strings) return pass_raw();
    return TokenKind::word;
  }

  TokenKind pass_literal() {  // to its end, or to the end of the line
    char quote = peek();
    for (at_++; at_ < text().size() && peek() != '\n'; at_++) {
      if (peek() == quote) {
        at_++;
        break;
      }
      if (peek() == '\\' && peek(1) != '\n') at_++;
    }
    at_ = std::min(at_, text().size());
    return TokenKind::literal;
  }

  TokenKind pass_raw() {  // no splices in a raw string
    size_t start = spliced_.from[at_] + 1, open = source_.find('(', start);
    constexpr size_t kDelimiterMax = 16;
    if (open == std::string_view::npos || open - start > kDelimiterMax) return pass_literal();
    std::string end = fmt::format("){}\"", source_.substr(start, open - start));
    size_t close = source_.find(end, open);
    size_t after = close == std::string_view::npos ? source_.size() : close + end.size();
    auto found = std::lower_bound(spliced_.from.begin(), spliced_.from.end(), after);
    at_ = static_cast<size_t>(found - spliced_.from.begin());
    return TokenKind::literal;
  }

  std::string_view source_;
  LexerRules reading_;
  SplicedSource spliced_;
  size_t at_ = 0;
};

bool is_own(std::string_view header) {
  return !header.empty() && !header.starts_with('/') && header.find("..") == std::string_view::npos;
}

bool asks_for_file(const CppToken& token) {
  return token.is("__has_include") || token.is("__has_include_next") || token.is("__has_embed");
}

// Continues after the word behind a "#"; false if the directive names a file that is not the
// compiler's.
bool check_directive(Lexer& lexer, const CppToken& word) {
  if (word.is("include")) return is_own(lexer.header());
  return !word.is("include_next") && !word.is("import") && !word.is("embed");
}

// Whether `defined`, `#ifdef` or similar precedes a name, which is then not expanded.
bool is_named(const CppToken& before, const CppToken& last) {
  for (const char* word : {"defined", "ifdef", "ifndef", "elifdef", "elifndef"})
    if (last.is(word)) return true;
  return last.is("(") && before.is("defined");
}

// Position at which the source names a file that is not the compiler's; npos if it names none.
size_t foreign_file(std::string_view source, LexerRules reading) {
  Lexer lexer(source, reading);
  CppToken before, last{TokenKind::newline, "", 0};
  for (CppToken token = lexer.next(); token.kind != TokenKind::end; token = lexer.next()) {
    bool starts_line = last.kind == TokenKind::newline;
    bool is_good = true;
    size_t place = lexer.place(token);
    if (starts_line && (token.is("#") || token.is("%:"))) {
      before = token;
      token = lexer.next();
      is_good = check_directive(lexer, token);
      if (token.kind == TokenKind::end) break;
    } else if (asks_for_file(token) && !is_named(before, last)) {
      bool is_next = !token.is("__has_include");
      before = token;
      token = lexer.next();
      is_good = !is_next && token.is("(") && is_own(lexer.header());
    } else {
      before = last;
    }
    if (!is_good) return place;
    last = token;
  }
  return std::string_view::npos;
}

}  // namespace

Status check_includes(std::string_view text) {
  for (const LexerRules& reading : kReadings) {
    size_t place = foreign_file(text, reading);
    if (place == std::string_view::npos) continue;
    std::string_view before = text.substr(0, place);
    size_t start = before.rfind('\n') + 1;
    return user_error(
        fmt::format("line {} of its source, `{}`, reads a file that is not part of its key: put "
                    "the text into the source; only the compiler's headers, <…>, are included",
                    1 + std::count(before.begin(), before.end(), '\n'),
                    text.substr(start, text.find('\n', start) - start)));
  }
  return {};
}

}  // namespace flow::jit
