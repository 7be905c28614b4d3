// CRC-32C (Castagnoli, RFC 3720 appendix B.4) at the end of what the journal holds.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace flow {

/// Of `data`, or of what has the checksum `before` and then `data`.
uint32_t crc32c(std::string_view data, uint32_t before = 0);
/// Appends the checksum, little-endian.
void seal(std::string& bytes);
/// The content without its checksum; false where it does not match.
bool unseal(std::string_view bytes, std::string_view& content);

}  // namespace flow
