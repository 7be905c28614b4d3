// Where the commas of JSON text are. A reader of numbers that knows them need not wait for the end
// of one number to begin the next, so that the processor reads several at once.
#pragma once
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace flow {

class JsonCommas {
 public:
  /// Of a text that ends there.
  explicit JsonCommas(const char* end) : end_(end) {}

  /// The first comma from `at` on; null if it is far away or not known. `at` must not be before the
  /// `at` of an earlier call.
  const char* next(const char* at) {
    while (commas_ != 0) {
      const char* comma = begin_ + std::countr_zero(commas_);
      commas_ &= commas_ - 1;
      if (comma >= at) return comma;
    }
    if (end_ - at < kBlock) return nullptr;
    begin_ = at;
    commas_ = find(at);
    if (commas_ == 0) return nullptr;
    const char* comma = begin_ + std::countr_zero(commas_);
    commas_ &= commas_ - 1;
    return comma;
  }

 private:
  static constexpr std::ptrdiff_t kBlock = 64;

  /// A bit for each of the characters.
  static uint64_t find(const char* at);

  const char* const end_;
  const char* begin_ = nullptr;
  uint64_t commas_ = 0;  // from begin_ on
};

inline uint64_t JsonCommas::find(const char* at) {
#if defined(__SSE2__)
  const __m128i wanted = _mm_set1_epi8(',');
  uint64_t commas = 0;
  for (int i = 0; i < 4; i++) {
    __m128i text = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at + 16 * i));
    auto found = static_cast<uint32_t>(_mm_movemask_epi8(_mm_cmpeq_epi8(text, wanted)));
    commas |= uint64_t{found} << (16 * i);
  }
  return commas;
#else
  constexpr uint64_t kCommas = 0x2c2c2c2c2c2c2c2c, kLow = 0x7f7f7f7f7f7f7f7f;
  uint64_t commas = 0;
  for (int i = 0; i < 8; i++) {
    uint64_t text;
    std::memcpy(&text, at + 8 * i, sizeof text);
    text ^= kCommas;
    // 0x80 for each byte that is now 0; the product collects these bits in its highest byte.
    uint64_t found = ~(((text & kLow) + kLow) | text | kLow);
    commas |= ((found >> 7) * 0x0102040810204080 >> 56) << (8 * i);
  }
  return commas;
#endif
}

}  // namespace flow
