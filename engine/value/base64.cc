// Base64 (RFC 4648): three bytes to four characters.
#include "engine/value/base64.hpp"

#include <cstdint>

namespace flow {
namespace {

constexpr char kAlphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

int digit(char c) {
  if (c >= 'A' && c <= 'Z') return c - 'A';
  if (c >= 'a' && c <= 'z') return c - 'a' + 26;
  if (c >= '0' && c <= '9') return c - '0' + 52;
  return c == '+' ? 62 : c == '/' ? 63 : -1;
}

}  // namespace

std::string base64_encode(std::string_view bytes) {
  std::string out;
  out.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t group = 0;
    size_t count = bytes.size() - i < 3 ? bytes.size() - i : 3;
    for (size_t j = 0; j < 3; j++)
      group = group << 8 | (j < count ? static_cast<uint8_t>(bytes[i + j]) : 0);
    for (size_t j = 0; j < 4; j++)
      out.push_back(j <= count ? kAlphabet[group >> (18 - 6 * j) & 63] : '=');
  }
  return out;
}

bool base64_decode(std::string_view text, std::string& out) {
  if (text.size() % 4 != 0) return false;
  std::string bytes;
  bytes.reserve(text.size() / 4 * 3);
  for (size_t i = 0; i < text.size(); i += 4) {
    bool last = i + 4 == text.size();
    size_t padding = !last || text[i + 3] != '=' ? 0 : text[i + 2] == '=' ? 2 : 1;
    uint32_t group = 0;
    for (size_t j = 0; j < 4; j++) {
      int value = j >= 4 - padding ? 0 : digit(text[i + j]);
      if (value < 0) return false;
      group = group << 6 | static_cast<uint32_t>(value);
    }
    for (size_t j = 0; j < 3 - padding; j++)
      bytes.push_back(static_cast<char>(group >> (16 - 8 * j)));
    if (padding > 0 && (group & (padding == 2 ? 0xffffu : 0xffu)) != 0) return false;
  }
  out = std::move(bytes);
  return true;
}

}  // namespace flow
