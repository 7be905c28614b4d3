// Redaction: the values of a task's secret variables are shown as `***` in all text that leaves the
// task. No other place redacts.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace flow {

/// In bytes. A shorter value is not redacted, because that would scramble unrelated text.
constexpr size_t kSecretMin = 4;

class Secrets {
 public:
  Secrets() = default;
  /// Output is read in lines, so each line of a value is a separate secret. A match inside one of
  /// the `exempt` texts (paths of the state, ids) is not redacted.
  explicit Secrets(const std::vector<std::string>& values, std::vector<std::string> exempt = {});
  bool empty() const { return values_.empty(); }
  /// `text` with each match replaced by `***`; overlapping matches are one.
  std::string hidden(std::string text) const;
  /// Redacts the part of `text` that no later text can change. Returns the unredacted rest, which
  /// the caller puts before the text that follows. The rest is at most twice as long as the longest
  /// value or exempt text.
  std::string hide_begun(std::string& text) const;

 private:
  struct Span {
    size_t begin, end;
    bool holds(const Span& other) const { return begin <= other.begin && other.end <= end; }
  };
  std::vector<Span> matches(std::string_view text) const;  // sorted by start
  std::vector<Span> exempt_spans(std::string_view text) const;
  /// Where the longest suffix of `text` begins that may be a prefix of a value or exempt text.
  size_t open_end(std::string_view text) const;

  std::vector<std::string> values_;
  std::vector<std::string> exempt_;
};

}  // namespace flow
