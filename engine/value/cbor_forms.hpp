// Shared by the writer and the reader of canonical CBOR: initial bytes of items, and which numbers
// are exact in how many bits. The table of forms is in cbor.hpp.
#pragma once
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace flow::cbor {

enum Major : uint8_t { kUnsigned, kNegative, kBytes, kText, kArray, kMap, kTag, kSimple };
inline constexpr uint8_t kFalse = 0xf4, kTrue = 0xf5, kNull = 0xf6, kUndefined = 0xf7;
inline constexpr uint8_t kMissing = 0xe0;
inline constexpr uint8_t kHalf = 0xf9, kSingle = 0xfa, kDouble = 0xfb;
inline constexpr uint64_t kTensorTag = 26220, kFileTag = 26221, kRefTag = 26222;
inline constexpr uint64_t kPlacesRefTag = 26223;
inline constexpr uint64_t kExecutable = 1, kFolder = 2, kAnonymous = 4;

/// The head of an item: its type, and the length of a string or the number of items of a list or
/// map.
struct Head {
  uint8_t major = 0;
  uint64_t argument = 0;
};
/// Reads the head at `at` and moves `at` behind it. False at the end, and if it is not valid.
inline bool take_head(std::string_view bytes, size_t& at, Head& head) {
  if (at >= bytes.size()) return false;
  auto first = static_cast<uint8_t>(bytes[at++]);
  uint8_t low = first & 31;
  head.major = first >> 5;
  head.argument = low;
  if (low < 24) return true;
  size_t size = size_t{1} << (low - 24);
  if (low > 27 || bytes.size() - at < size) return false;
  head.argument = 0;
  for (size_t end = at + size; at < end; at++)
    head.argument = head.argument << 8 | static_cast<uint8_t>(bytes[at]);
  return true;
}

// The half-precision bits of `value`; false if half precision cannot hold it exactly.
inline bool to_half(float value, uint16_t& out) {
  uint32_t bits = std::bit_cast<uint32_t>(value);
  auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000);
  int exponent = static_cast<int>((bits >> 23) & 0xff) - 127;
  uint32_t mantissa = bits & 0x7fffff;
  if ((bits & 0x7fffffff) == 0) {
    out = sign;
  } else if (exponent == 128) {
    if (mantissa != 0) return false;
    out = sign | 0x7c00;
  } else if (exponent >= -14 && exponent <= 15) {
    if ((mantissa & 0x1fff) != 0) return false;
    out = static_cast<uint16_t>(sign | (exponent + 15) << 10 | mantissa >> 13);
  } else if (exponent >= -24 && exponent < -14) {  // subnormal in half
    uint32_t full = mantissa | 0x800000;
    int shift = -exponent - 1;
    if ((full & ((1u << shift) - 1)) != 0) return false;
    out = static_cast<uint16_t>(sign | full >> shift);
  } else {
    return false;
  }
  return true;
}

// Whether 32 bits hold `value` exactly.
inline bool fits_single(double value) {
  if (std::isinf(value)) return true;
  return std::abs(value) <= 0x1.fffffep127 &&
         static_cast<double>(static_cast<float>(value)) == value;
}

}  // namespace flow::cbor
