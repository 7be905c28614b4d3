// A proof that its maker holds a key: HMAC-SHA256 (RFC 2104).
#pragma once
#include <string_view>

#include "flow/digest.hpp"

namespace flow {

Digest hmac_sha256(std::string_view key, std::string_view data);

/// In a time that does not tell where they differ.
bool equal_constant_time(std::string_view one, std::string_view other);

}  // namespace flow
