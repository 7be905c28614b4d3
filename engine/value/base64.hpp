// Base64 (RFC 4648, with padding): how JSON carries bytes that are no text.
#pragma once
#include <string>
#include <string_view>

namespace flow {

std::string base64_encode(std::string_view bytes);
/// False where `text` is not what base64_encode would write.
bool base64_decode(std::string_view text, std::string& out);

}  // namespace flow
