// Strings of JSON text, read without a document.
#pragma once
#include <string>
#include <string_view>

namespace flow {

/// Appends the string whose quote is at `at`, as UTF-8. Returns what follows its last quote; null
/// if the text is no string that ends before `end`. Precondition: the text is UTF-8 without control
/// characters in its strings, as simdjson has checked.
const char* read_json_text(const char* at, const char* end, std::string& out);

/// Appends the text with quotes. Precondition: it is UTF-8.
void append_json_text(std::string& out, std::string_view text);

}  // namespace flow
