// Base64 by libsodium.
#include "engine/crypto/base64.hpp"

#include <sodium.h>

#include <algorithm>
#include <utility>

namespace flow {

namespace {

constexpr int kVariant = sodium_base64_VARIANT_ORIGINAL;

// libsodium 1.0.18 compares characters as signed numbers and accepts most bytes above 127 as
// digits.
bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

}  // namespace

std::string base64_encode(std::string_view bytes) {
  std::string text(sodium_base64_encoded_len(bytes.size(), kVariant), '\0');
  sodium_bin2base64(text.data(), text.size(), reinterpret_cast<const unsigned char*>(bytes.data()),
                    bytes.size(), kVariant);
  text.pop_back();  // the terminating zero
  return text;
}

bool base64_decode(std::string_view text, std::string& out) {
  if (text.size() % 4 != 0 || !is_ascii(text)) return false;
  std::string bytes(text.size() / 4 * 3, '\0');
  size_t size = 0;
  // Without a pointer for the end of what was read, anything after it is an error.
  if (sodium_base642bin(reinterpret_cast<unsigned char*>(bytes.data()), bytes.size(), text.data(),
                        text.size(), nullptr, &size, nullptr, kVariant) != 0)
    return false;
  bytes.resize(size);
  out = std::move(bytes);
  return true;
}

}  // namespace flow
