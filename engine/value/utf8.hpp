// UTF-8 checks. They decide whether a string is text or bytes, in CBOR and in JSON.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace flow {

/// Well-formed UTF-8: no overlong forms, no surrogates, nothing above U+10FFFF.
bool is_utf8(std::string_view text);
/// The text with U+FFFD for every byte that is not part of a well-formed sequence.
std::string to_utf8(std::string_view text);
/// Output of another process as one printable line: to_utf8, with control characters as blanks.
std::string to_line(std::string_view text);
/// The start of the character that contains the byte at `at`. Returns `at` if it is beyond the end
/// or the text is not UTF-8 there.
size_t character_begin(std::string_view text, size_t at);
/// Cuts a text longer than `max` bytes between two characters and appends a note with the number of
/// omitted bytes. The note is not counted in `max`.
std::string cut_text(std::string text, size_t max);

}  // namespace flow
