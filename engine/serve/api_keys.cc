#include "engine/serve/api_keys.hpp"

#include <openssl/crypto.h>

#include "engine/serve/http/field_text.hpp"

namespace flow {

bool ApiKeys::permit(std::string_view authorization) const {
  size_t space = authorization.find(' ');
  if (space == std::string_view::npos || !equal_names(authorization.substr(0, space), "bearer"))
    return false;
  std::string_view key = authorization.substr(space);
  key.remove_prefix(std::min(key.find_first_not_of(' '), key.size()));
  bool is_permitted = false;
  for (const std::string& known : keys_) {
    bool is_equal =
        known.size() == key.size() && CRYPTO_memcmp(known.data(), key.data(), key.size()) == 0;
    is_permitted = is_permitted || is_equal;
  }
  return is_permitted;
}

}  // namespace flow
