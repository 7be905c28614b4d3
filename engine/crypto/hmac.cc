#include "engine/crypto/hmac.hpp"

#include <sodium.h>

namespace flow {

namespace {

const uint8_t* octets(std::string_view text) {
  return reinterpret_cast<const uint8_t*>(text.data());
}

}  // namespace

Digest hmac_sha256(std::string_view key, std::string_view data) {
  Digest mac;
  static_assert(sizeof mac.bytes == crypto_auth_hmacsha256_BYTES);
  crypto_auth_hmacsha256_state state;
  crypto_auth_hmacsha256_init(&state, octets(key), key.size());
  crypto_auth_hmacsha256_update(&state, octets(data), data.size());
  crypto_auth_hmacsha256_final(&state, mac.bytes.data());
  sodium_memzero(&state, sizeof state);
  return mac;
}

bool equal_constant_time(std::string_view one, std::string_view other) {
  return one.size() == other.size() && sodium_memcmp(one.data(), other.data(), one.size()) == 0;
}

}  // namespace flow
