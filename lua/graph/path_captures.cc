#include "lua/graph/path_captures.hpp"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <climits>
#include <set>
#include <utility>

#include "engine/base/glob.hpp"

namespace flow::lua {

namespace {

constexpr size_t kCapturesMax = 16;
// Stands for capture i in a pattern whose braces are being expanded. No path has a byte 0.
constexpr char kMark = '\0';

bool is_name_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_decimal(char c) { return c >= '0' && c <= '9'; }

/// The name of the capture that begins at `pattern[at]`; "" if none does.
std::string_view capture_at(std::string_view pattern, size_t at) {
  if (pattern[at] != '{') return {};
  size_t end = at + 1;
  while (end < pattern.size() &&
         (is_name_letter(pattern[end]) || (end > at + 1 && is_decimal(pattern[end]))))
    end++;
  bool is_name = end > at + 1 && end < pattern.size() && pattern[end] == '}';
  return is_name ? pattern.substr(at + 1, end - at - 1) : std::string_view();
}

/// The end of the bracket expression that begins at `pattern[at]`; `at` if none does.
size_t bracket_end(std::string_view pattern, size_t at) {
  size_t end = at + 1;
  if (end < pattern.size() && (pattern[end] == '!' || pattern[end] == '^')) end++;
  if (end < pattern.size() && pattern[end] == ']') end++;
  while (end < pattern.size() && pattern[end] != ']') end += pattern[end] == '\\' ? 2 : 1;
  return end < pattern.size() ? end + 1 : at;
}

}  // namespace

Result<PathCaptures> PathCaptures::parse(std::string_view pattern) {
  if (pattern.size() > PATH_MAX)
    return user_error(
        fmt::format("a pattern has at most {} bytes, and this has {}", PATH_MAX, pattern.size()));
  PathCaptures captures;
  std::string marked;
  for (size_t at = 0; at < pattern.size(); at++) {
    if (pattern[at] == kMark) return user_error("a pattern has no byte 0");
    if (pattern[at] == '\\' && at + 1 < pattern.size()) {
      marked += pattern.substr(at, 2);
      captures.glob_ += pattern.substr(at, 2);
      at++;
      continue;
    }
    std::string_view name = capture_at(pattern, at);
    if (name.empty()) {
      marked += pattern[at];
      captures.glob_ += pattern[at];
      continue;
    }
    auto found = std::find(captures.names_.begin(), captures.names_.end(), name);
    marked += kMark;
    marked += static_cast<char>('a' + (found - captures.names_.begin()));
    captures.glob_ += '*';
    if (found == captures.names_.end()) captures.names_.emplace_back(name);
    if (captures.names_.size() > kCapturesMax)
      return user_error(fmt::format("`{}` has more than {} captures", pattern, kCapturesMax));
    at += name.size() + 1;
  }
  if (captures.names_.empty())
    return user_error(fmt::format(
        "`{}` has no capture: write {{name}} where the paths differ, or use flow.files", pattern));
  auto expanded = expand_braces(marked);
  FLOW_TRY(expanded);
  for (const std::string& alternative : *expanded)
    captures.alternatives_.push_back(tokens_of(alternative));
  return captures;
}

PathCaptures::Tokens PathCaptures::tokens_of(std::string_view pattern) {
  using Kind = Token::Kind;
  Tokens tokens;
  for (size_t at = 0; at < pattern.size(); at++) {
    char c = pattern[at];
    bool begins_component = at == 0 || pattern[at - 1] == '/';
    if (c == kMark) {
      tokens.push_back({Kind::capture, "", static_cast<size_t>(pattern[++at] - 'a')});
    } else if (begins_component && pattern.substr(at).starts_with("**/")) {
      tokens.push_back({Kind::folders, "", 0});
      at += 2;
    } else if (c == '*') {
      tokens.push_back({Kind::star, "", 0});
    } else if (c == '?') {
      tokens.push_back({Kind::any, "", 0});
    } else if (size_t end = c == '[' ? bracket_end(pattern, at) : at; end > at) {
      tokens.push_back({Kind::one_of, std::string(pattern.substr(at, end - at)), 0});
      at = end - 1;
    } else {
      if (c == '\\' && at + 1 < pattern.size()) c = pattern[++at];
      tokens.push_back({Kind::literal, std::string(1, c), 0});
    }
  }
  return tokens;
}

/// Backtracks over the lengths of captures and wildcards, and remembers where it failed, as long as
/// no capture occurs twice: then the time is at most the product of both lengths.
class PathCaptures::Matcher {
 public:
  Matcher(const Tokens& tokens, std::string_view path, size_t names)
      : tokens_(tokens), path_(path), texts_(names) {
    std::set<size_t> seen;
    for (const Token& token : tokens)
      if (token.kind == Token::Kind::capture && !seen.insert(token.capture).second)
        has_repeats_ = true;
  }

  bool run() { return match(0, 0); }
  std::vector<std::string> texts() const {
    std::vector<std::string> texts;
    for (const auto& text : texts_) texts.emplace_back(text.value_or(""));
    return texts;
  }

 private:
  bool match(size_t token, size_t at) {
    if (token == tokens_.size()) return at == path_.size();
    if (!has_repeats_ && failed_.contains({token, at})) return false;
    bool matches = match_token(token, at);
    if (!matches && ++steps_ < kStepsMax) failed_.insert({token, at});
    return matches;
  }

  bool match_token(size_t token, size_t at) {
    using Kind = Token::Kind;
    const Token& now = tokens_[token];
    if (steps_ >= kStepsMax) return false;
    switch (now.kind) {
      case Kind::literal:
        return at < path_.size() && path_[at] == now.text[0] && match(token + 1, at + 1);
      case Kind::any:
        return at < path_.size() && path_[at] != '/' && match(token + 1, at + 1);
      case Kind::one_of:
        return at < path_.size() && path_[at] != '/' &&
               ::fnmatch(now.text.c_str(), std::string(1, path_[at]).c_str(), 0) == 0 &&
               match(token + 1, at + 1);
      case Kind::folders:
        return match_folders(token, at);
      case Kind::star:
        return match_run(token, at, 0);
      case Kind::capture:
        return match_capture(token, at);
    }
    return false;
  }

  // Zero or more whole folders, with the slash after each.
  bool match_folders(size_t token, size_t at) {
    if (match(token + 1, at)) return true;
    for (size_t slash = path_.find('/', at); slash != path_.npos;
         slash = path_.find('/', slash + 1))
      if (match(token + 1, slash + 1)) return true;
    return false;
  }

  size_t name_end(size_t at) const { return std::min(path_.find('/', at), path_.size()); }

  bool match_run(size_t token, size_t at, size_t least) {
    for (size_t end = name_end(at); end + 1 > at + least; end--)
      if (match(token + 1, end)) return true;
    return false;
  }

  bool match_capture(size_t token, size_t at) {
    std::optional<std::string_view>& text = texts_[tokens_[token].capture];
    if (text) return path_.substr(at).starts_with(*text) && match(token + 1, at + text->size());
    for (size_t end = name_end(at); end > at; end--) {
      text = path_.substr(at, end - at);
      if (match(token + 1, end)) return true;
    }
    text.reset();
    return false;
  }

  static constexpr size_t kStepsMax = 1'000'000;
  const Tokens& tokens_;
  std::string_view path_;
  std::vector<std::optional<std::string_view>> texts_;
  std::set<std::pair<size_t, size_t>> failed_;
  size_t steps_ = 0;
  bool has_repeats_ = false;
};

std::optional<std::vector<std::string>> PathCaptures::match(std::string_view path) const {
  for (const Tokens& tokens : alternatives_) {
    Matcher matcher(tokens, path, names_.size());
    if (matcher.run()) return matcher.texts();
  }
  return std::nullopt;
}

}  // namespace flow::lua
