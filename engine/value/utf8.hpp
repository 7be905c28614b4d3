// Is this text UTF-8? Decides whether a string is text or bytes, in CBOR and in JSON.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace flow {

/// Well-formed UTF-8: no overlong forms, no surrogates, nothing above U+10FFFF.
bool is_utf8(std::string_view text);
/// The text with U+FFFD for every byte that belongs to no well-formed sequence.
std::string to_utf8(std::string_view text);
/// What another process wrote, as one line for people: to_utf8, and blanks for what steers.
std::string to_line(std::string_view text);
/// Where the character begins that the byte at `at` is part of; `at` itself beyond the end, and in
/// what is not UTF-8.
size_t character_begin(std::string_view text, size_t at);
/// At most about `max` bytes of the text: a longer one is cut between two characters, and a note
/// says how many bytes were left out.
std::string cut_text(std::string text, size_t max);

}  // namespace flow
