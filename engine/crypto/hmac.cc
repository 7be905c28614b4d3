#include "engine/crypto/hmac.hpp"

#include <openssl/crypto.h>

#include <array>
#include <string>

namespace flow {

Digest hmac_sha256(std::string_view key, std::string_view data) {
  constexpr size_t kBlock = 64;
  std::string padded(key.size() > kBlock ? std::string(sha256(key).view()) : std::string(key));
  padded.resize(kBlock, '\0');
  std::string inner = padded, outer = padded;
  for (char& c : inner) c = static_cast<char>(c ^ 0x36);
  for (char& c : outer) c = static_cast<char>(c ^ 0x5c);
  Digest first = sha256(inner.append(data));
  return sha256(outer.append(first.view()));
}

bool equal_constant_time(std::string_view one, std::string_view other) {
  return one.size() == other.size() && CRYPTO_memcmp(one.data(), other.data(), one.size()) == 0;
}

}  // namespace flow
