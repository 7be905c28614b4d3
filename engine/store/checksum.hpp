// CRC-32C (Castagnoli, RFC 3720 appendix B.4), the checksum of journal entries.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace flow {

/// The checksum of `data`, or of earlier data with the checksum `before` followed by `data`.
uint32_t crc32c(std::string_view data, uint32_t before = 0);
/// Appends the checksum, little-endian.
void seal(std::string& bytes);
/// Verifies and strips the checksum. Returns false if it does not match.
bool unseal(std::string_view bytes, std::string_view& content);

}  // namespace flow
