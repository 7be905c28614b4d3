// Patterns of paths with captures: "reads/{sample}_R{n}.fastq.gz".
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "flow/result.hpp"

namespace flow::lua {

/// A capture `{name}` matches one or more characters but no `/`, and as many as possible, the first
/// one first. A capture that occurs twice has the same text in both places. Everything else is a
/// pattern of engine/base/glob.hpp.
class PathCaptures {
 public:
  /// Error if the pattern has no capture or more than 16, or too many alternatives.
  static Result<PathCaptures> parse(std::string_view pattern);

  /// In the order of their first occurrence.
  const std::vector<std::string>& names() const { return names_; }
  /// The pattern with `*` in place of each capture.
  const std::string& glob() const { return glob_; }
  /// The texts of the captures in `path`, in the order of names(); nullopt if the pattern does not
  /// match. Wildcards match whatever glob() has matched; hidden files are not treated apart.
  std::optional<std::vector<std::string>> match(std::string_view path) const;

 private:
  struct Token {
    enum class Kind { literal, any, star, folders, one_of, capture } kind;
    std::string text;    // literal: the character; one_of: the bracket expression
    size_t capture = 0;  // index in names_
  };
  using Tokens = std::vector<Token>;
  class Matcher;

  static Tokens tokens_of(std::string_view alternative);

  std::vector<std::string> names_;
  std::string glob_;
  std::vector<Tokens> alternatives_;
};

}  // namespace flow::lua
