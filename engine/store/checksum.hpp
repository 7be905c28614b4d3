// CRC-32C (Castagnoli, RFC 3720 appendix B.4), the checksum of journal entries.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace flow {

/// The checksum of `data`, or of earlier data with the checksum `before` followed by `data`.
uint32_t crc32c(std::string_view data, uint32_t before = 0);
constexpr size_t kChecksumBytes = 4;
/// Appends the checksum, little-endian: of `bytes`, or of earlier data with the checksum `before`
/// followed by `bytes`.
void seal(std::string& bytes, uint32_t before = 0);
/// Verifies and strips the checksum. Returns false if it does not match.
bool unseal(std::string_view bytes, std::string_view& content);

}  // namespace flow
