// Base64 (RFC 4648, with padding): how JSON carries bytes that are not text.
#pragma once
#include <string>
#include <string_view>

namespace flow {

/// Four characters for every three bytes, padded with `=`.
std::string base64_encode(std::string_view bytes);
/// Returns false, and leaves `out` as it is, unless `text` is exactly what base64_encode() writes.
bool base64_decode(std::string_view text, std::string& out);

}  // namespace flow
