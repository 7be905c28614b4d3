// Blocks of 64 characters of JSON text, as the bits of a word.
#pragma once
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace flow {

constexpr std::ptrdiff_t kJsonBlock = 64;

/// A bit for each of the 64 characters from `at` on that is `wanted`; the first is the lowest.
inline uint64_t find_in_block(const char* at, char wanted) {
  uint64_t found = 0;
#if defined(__SSE2__)
  const __m128i all = _mm_set1_epi8(wanted);
  for (int i = 0; i < 4; i++) {
    __m128i text = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at + 16 * i));
    auto here = static_cast<uint32_t>(_mm_movemask_epi8(_mm_cmpeq_epi8(text, all)));
    found |= uint64_t{here} << (16 * i);
  }
#else
  constexpr uint64_t kEach = 0x0101010101010101, kLow = 0x7f7f7f7f7f7f7f7f;
  for (int i = 0; i < 8; i++) {
    uint64_t text;
    std::memcpy(&text, at + 8 * i, sizeof text);
    text ^= kEach * static_cast<uint8_t>(wanted);
    // 0x80 for each byte that is now 0; the product collects these bits in its highest byte.
    uint64_t here = ~(((text & kLow) + kLow) | text | kLow);
    found |= ((here >> 7) * 0x0102040810204080 >> 56) << (8 * i);
  }
#endif
  return found;
}

/// Whether one of the 64 characters is one of `wanted`.
inline bool has_any_in_block(const char* at, const char (&wanted)[3]) {
#if defined(__SSE2__)
  const __m128i first = _mm_set1_epi8(wanted[0]), second = _mm_set1_epi8(wanted[1]);
  const __m128i third = _mm_set1_epi8(wanted[2]);
  __m128i found = _mm_setzero_si128();
  for (int i = 0; i < 4; i++) {
    __m128i text = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at + 16 * i));
    __m128i one = _mm_or_si128(_mm_cmpeq_epi8(text, first), _mm_cmpeq_epi8(text, second));
    found = _mm_or_si128(found, _mm_or_si128(one, _mm_cmpeq_epi8(text, third)));
  }
  return _mm_movemask_epi8(found) != 0;
#else
  return (find_in_block(at, wanted[0]) | find_in_block(at, wanted[1]) |
          find_in_block(at, wanted[2])) != 0;
#endif
}

}  // namespace flow
