// Three tricks. The commas and brackets of 64 characters are found at once, as simdjson does
// (https://arxiv.org/abs/1902.08318), so that the beginning of a number does not depend on the end
// of the one before it. The 32 characters that end with a number are one vector: however long the
// number is, its last digit is in the last lane, and there is no loop and no branch for its length.
// Pairs of lanes are multiplied by 10 and 1 and added, then pairs of pairs by 100 and 1, and so on
// (http://0x80.pl/articles/simd-parsing-int-sequences.html), which makes 8 digits an integer in
// three steps.
#include "engine/serve/json/number_list.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <type_traits>

#include "engine/serve/json/json_number.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#define FLOW_AVX2 __attribute__((target("avx2,bmi,bmi2")))
#define FLOW_AVX2_INLINE FLOW_AVX2 [[gnu::always_inline]] inline

namespace flow {
namespace {

constexpr std::ptrdiff_t kBlock = 64;
constexpr int kLanes = 32;

FLOW_AVX2_INLINE __m256i load(const char* at) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
}

FLOW_AVX2_INLINE uint32_t bits_of(__m256i lanes) {
  return static_cast<uint32_t>(_mm256_movemask_epi8(lanes));
}

// A bit for each comma and bracket of the 64 characters: where a number may end.
FLOW_AVX2_INLINE uint64_t find_ends(const char* at) {
  const __m256i comma = _mm256_set1_epi8(','), bracket = _mm256_set1_epi8(']');
  const __m256i low = load(at), high = load(at + kLanes);
  const uint32_t first =
      bits_of(_mm256_or_si256(_mm256_cmpeq_epi8(low, comma), _mm256_cmpeq_epi8(low, bracket)));
  const uint32_t second =
      bits_of(_mm256_or_si256(_mm256_cmpeq_epi8(high, comma), _mm256_cmpeq_epi8(high, bracket)));
  return first | uint64_t{second} << kLanes;
}

// Lanes after this one.
FLOW_AVX2_INLINE __m256i lanes_after(int lane) {
  const __m256i lanes =
      _mm256_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21,
                       22, 23, 24, 25, 26, 27, 28, 29, 30, 31);
  return _mm256_cmpgt_epi8(lanes, _mm256_set1_epi8(static_cast<char>(lane)));
}

// The number whose decimal digits are the lanes. False if it may have more than 64 bits.
FLOW_AVX2_INLINE bool join_digits(__m256i digits, uint64_t& joined) {
  const __m256i pairs = _mm256_maddubs_epi16(digits, _mm256_set1_epi16(0x010a));
  const __m256i fours = _mm256_madd_epi16(pairs, _mm256_set1_epi32(0x0001'0064));
  const __m256i eights =
      _mm256_madd_epi16(_mm256_packus_epi32(fours, fours), _mm256_set1_epi32(0x0001'2710));
  // Two integers of eight digits each, the first in the lower half.
  auto high = static_cast<uint64_t>(_mm_cvtsi128_si64(_mm256_castsi256_si128(eights)));
  auto low = static_cast<uint64_t>(_mm_cvtsi128_si64(_mm256_extracti128_si256(eights, 1)));
  constexpr uint64_t kEight = 100'000'000;
  constexpr uint64_t kHighMax = std::numeric_limits<uint64_t>::max() / (kEight * kEight) - 1;
  joined = ((high >> 32) * kEight + static_cast<uint32_t>(low)) * kEight + (low >> 32);
  return static_cast<uint32_t>(high) == 0 && high >> 32 <= kHighMax;
}

// A number such as `-12` or `0.25`; false if it is another one, or may be long.
FLOW_AVX2_INLINE bool read_plain(const char* at, const char* end, JsonNumber& number) {
  number.begin = at;
  number.end = end;
  number.is_negative = *at == '-';
  at += number.is_negative;
  const std::ptrdiff_t length = end - at;
  if (length < 1 || length >= kLanes || (*at == '0' && is_json_digit(at[1]))) return false;
  const int before = kLanes - 1 - static_cast<int>(length);  // the last lane before the number
  const __m256i zero = _mm256_set1_epi8('0');
  __m256i digits = _mm256_sub_epi8(load(end - kLanes), zero), own = lanes_after(before);
  const __m256i ten = _mm256_set1_epi8(10);
  const uint32_t others =
      bits_of(_mm256_and_si256(own, _mm256_cmpeq_epi8(_mm256_max_epu8(digits, ten), digits)));
  number.exponent = 0;
  number.is_whole = others == 0;
  if (!number.is_whole) {
    const int dot = std::countr_zero(others);
    const bool is_plain = (others & (others - 1)) == 0 && end[dot - kLanes] == '.' &&
                          dot != before + 1 && dot != kLanes - 1;
    if (!is_plain) return false;
    // The digits before the dot move to the next lane, by a second load: lanes of a register do
    // not move from one of its halves to the other.
    const __m256i moved = _mm256_sub_epi8(load(end - kLanes - 1), zero);
    digits = _mm256_blendv_epi8(moved, digits, lanes_after(dot));
    own = lanes_after(before + 1);
    number.exponent = dot - (kLanes - 1);
  }
  return join_digits(_mm256_and_si256(digits, own), number.digits);
}

// The number that fills the text up to `end`; false if it is none.
FLOW_AVX2_INLINE bool read_number(const char* at, const char* end, JsonNumber& number) {
  if (read_plain(at, end, number)) return true;
  number = read_json_number(at);
  return number.end == end;
}

template <typename T>
FLOW_AVX2_INLINE bool read_integer(const char* at, const char* end, const NumberList<T>& list,
                                   T& value) {
  int64_t whole = 0;
  if (!read_short_integer(at, end, whole)) {
    JsonNumber number;
    constexpr uint64_t kMost = std::numeric_limits<int64_t>::max();
    if (!read_number(at, end, number) || !number.is_whole) return false;
    if (number.is_long || number.digits > kMost) return false;
    whole = static_cast<int64_t>(number.digits);
    if (number.is_negative) whole = -whole;
  }
  value = static_cast<T>(whole);
  return whole >= list.min && whole <= list.max;
}

template <typename T>
FLOW_AVX2_INLINE bool read_fraction(const char* at, const char* end, T& value) {
  JsonNumber number;
  if (!read_number(at, end, number)) return false;
  if constexpr (std::is_same_v<T, float>) {
    value = nearest_float(number);
  } else {
    value = nearest_double(number);
  }
  return std::isfinite(value);
}

template <typename T>
FLOW_AVX2_INLINE bool read_value(const char* at, const char* end, const NumberList<T>& list,
                                 T& value) {
  if constexpr (std::is_floating_point_v<T>) {
    return read_fraction(at, end, value);
  } else {
    return read_integer(at, end, list, value);
  }
}

template <typename T>
FLOW_AVX2 const char* read_numbers(const char* at, const char* end, const NumberList<T>& list,
                                   size_t& count) {
  const char* last = nullptr;
  T* out = list.out;
  T* const out_end = out + list.room;
  bool goes_on = true;
  while (goes_on && end - at >= kBlock) {
    const char* const block = at;
    uint64_t ends = find_ends(block);
    goes_on = ends != 0;
    for (; ends != 0; ends &= ends - 1) {
      const char* number_end = block + std::countr_zero(ends);
      goes_on = number_end > at && out < out_end && read_value(at, number_end, list, *out);
      if (!goes_on) break;
      out++;
      last = number_end;
      goes_on = *number_end == ',';
      if (!goes_on) break;
      at = number_end + 1;
      while (is_json_space(*at)) at++;
    }
  }
  count += static_cast<size_t>(out - list.out);
  return last;
}

// The variable is that of the kernels (kernels/cpu/loops.hpp), so that tests reach the other way.
bool has_avx2() {
  const char* level = std::getenv("FLOW_CPU_LEVEL");
  const bool is_base = level != nullptr && std::strcmp(level, "base") == 0;
  return !is_base && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") &&
         __builtin_cpu_supports("bmi2");
}

}  // namespace

template <typename T>
ReadNumbers<T> vector_reader() {
  static const bool is_there = has_avx2();
  return is_there ? &read_numbers<T> : nullptr;
}

}  // namespace flow

#else

namespace flow {

template <typename T>
ReadNumbers<T> vector_reader() {
  return nullptr;
}

}  // namespace flow

#endif

namespace flow {

template ReadNumbers<uint8_t> vector_reader();
template ReadNumbers<int32_t> vector_reader();
template ReadNumbers<int64_t> vector_reader();
template ReadNumbers<float> vector_reader();
template ReadNumbers<double> vector_reader();

}  // namespace flow
