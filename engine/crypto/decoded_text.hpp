// Texts with the escapes of a format undone, so that a value is found where JSON, a shell or a URL
// writes it with escapes. Pure.
#pragma once
#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace flow {

/// Maximum nesting of backslash escapes that is decoded, as of JSON in a string of JSON.
constexpr int kEscapeDepthMax = 3;

struct DecodedText {
  std::string text;
  /// Where each byte of `text` begins in the original, and where `text` ends there: before an
  /// escape that the original ends within. Empty for the original itself.
  std::vector<size_t> begins;

  bool is_original() const { return begins.empty(); }
  /// The place in the original where the byte at `at` begins; `at` may be the size of `text`.
  size_t begin_of(size_t at) const { return is_original() ? at : begins[at]; }
  /// The place in the original where the first `at` bytes of `text` end. `at` > 0.
  size_t end_of(size_t at) const;
  /// Where the escape begins that contains `place`, a place in the original; else `place`.
  size_t escape_begin(size_t place) const;
};

/// Calls `visit` with the text itself, and with what it is without the escapes of JSON (also of
/// Lua, Python and C), of shell words in single quotes, and of URLs, and without several of them.
/// One at a time, because each takes nine times the memory of the text.
void each_decoded_text(std::string_view text, const std::function<void(const DecodedText&)>& visit);

/// Whether one of these formats may write the value with escapes.
bool may_be_escaped(std::string_view value);

}  // namespace flow
