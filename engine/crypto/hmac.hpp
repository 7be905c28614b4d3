// Message authentication: proof that the sender of `data` holds `key`. HMAC-SHA256 (RFC 2104).
#pragma once
#include <string_view>

#include "flow/digest.hpp"

namespace flow {

/// `key` may have any length.
Digest hmac_sha256(std::string_view key, std::string_view data);

/// Whether both are equal. The time depends only on the sizes.
bool equal_constant_time(std::string_view one, std::string_view other);

}  // namespace flow
