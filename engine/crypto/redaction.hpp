// Redaction: the values of a task's secret variables are shown as `***` in all text that leaves the
// task. No other place redacts.
#pragma once
#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/crypto/decoded_text.hpp"

namespace flow {

/// In bytes. A shorter value is not redacted, because that would scramble unrelated text.
constexpr size_t kSecretMin = 4;

class Secrets {
 public:
  Secrets() = default;
  /// Output is read in lines, so each line of a value is a separate secret. A value matches as it
  /// is and as JSON, a shell or a URL writes it with escapes. A match inside one of the `exempt`
  /// texts (paths of the state, ids) is not redacted.
  explicit Secrets(const std::vector<std::string>& values, std::vector<std::string> exempt = {});
  bool empty() const { return values_.empty(); }
  /// `text` with each match replaced by `***`; overlapping matches are one. The beginning of a
  /// value also matches if `…` follows, which marks a cut text: a cut text shows no part of a
  /// secret.
  std::string hidden(std::string text) const;
  /// Redacts the part of `text` that no later text can change. Returns the unredacted rest, which
  /// the caller puts before the text that follows. The rest is at most twice as long as the longest
  /// value, in its longest escaped form, or exempt text.
  std::string hide_begun(std::string& text) const;

 private:
  struct Span {
    size_t begin, end;
    bool holds(const Span& other) const { return begin <= other.begin && other.end <= end; }
  };
  /// Calls `visit` with the text, and with the text without escapes if a value may have some.
  void each_text(std::string_view text, const std::function<void(const DecodedText&)>& visit) const;
  const std::vector<std::string>& values_in(const DecodedText& text) const;
  /// Sorted by start. `with_cut`: also beginnings of values before `…`.
  std::vector<Span> matches(std::string_view text, bool with_cut) const;
  void add_matches(const DecodedText& text, std::vector<Span>& found) const;
  void add_cut_values(const DecodedText& text, std::vector<Span>& found) const;
  void add_exempt(const DecodedText& text, std::vector<Span>& found) const;
  /// Where the longest suffix of `text` begins that may be a prefix of a value or exempt text.
  size_t open_end(std::string_view text) const;
  size_t open_end_in(const DecodedText& text) const;

  std::vector<std::string> values_;
  std::vector<std::string> escaped_;  // those of values_ that may be written with escapes
  std::vector<std::string> exempt_;
};

}  // namespace flow
