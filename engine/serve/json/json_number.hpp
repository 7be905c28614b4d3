// Numbers of JSON text, read without a copy. Each function may read up to 8 bytes beyond the
// number: the text needs 8 bytes of padding.
#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace flow {

/// -?digits × 10^exponent.
struct JsonNumber {
  uint64_t digits = 0;
  int64_t exponent = 0;
  bool is_negative = false;
  bool is_whole = false;  // written without a fraction and an exponent
  bool is_long = false;   // more than 19 digits, which `digits` cannot hold
  const char* begin = nullptr;
  const char* end = nullptr;  // null: the text is not a number

  std::string_view text() const { return {begin, static_cast<size_t>(end - begin)}; }
};

constexpr bool is_json_digit(char c) { return static_cast<uint8_t>(c - '0') < 10; }
constexpr bool is_json_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }
/// Whether a number or a name such as `true` may end before `c`.
constexpr bool is_json_delimiter(char c) {
  return c == ',' || c == ']' || c == '}' || is_json_space(c);
}

namespace json_number {

constexpr uint64_t kPowers[] = {1,       10,        100,        1'000,      10'000,
                                100'000, 1'000'000, 10'000'000, 100'000'000};

/// Eight digits, the first in the lowest byte, each less '0'.
inline uint64_t value_of_digits(uint64_t digits) {
  digits = digits * 10 + (digits >> 8);
  return ((digits & 0x000000ff000000ff) * 0x000f424000000064 +
          ((digits >> 16) & 0x000000ff000000ff) * 0x0000271000000001) >>
         32;
}

/// Appends the digits at `at` to the number `digits`, without its overflow. Eight characters at a
/// time and without a branch for their number, which cannot be predicted. Precondition:
/// little-endian.
inline const char* read_digits(const char* at, uint64_t& digits) {
  for (;;) {
    uint64_t text;
    std::memcpy(&text, at, sizeof text);
    text ^= 0x3030303030303030;
    // The high bit of each byte up to the first that is not a digit; those after it do not matter.
    uint64_t others = ((text + 0x7676767676767676) | text) & 0x8080808080808080;
    unsigned count = others == 0 ? 8 : static_cast<unsigned>(std::countr_zero(others)) / 8;
    // Leading zeros instead of the characters behind the digits; in two steps, because a shift by
    // 64 is undefined.
    text = text << (32 - 4 * count) << (32 - 4 * count);
    digits = digits * kPowers[count] + value_of_digits(text);
    at += count;
    if (count < 8) return at;
  }
}

/// Whether the digits without leading zeros are more than 19. `begin` is the first digit.
bool has_many_digits(const char* begin, const char* end);

double parse_double(const JsonNumber& number);
float parse_float(const JsonNumber& number);

constexpr int64_t kExactMax = 22;  // the largest power of ten that a double holds exactly
constexpr double kExact[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                             1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};

inline bool is_simple(const JsonNumber& number) {
  return !number.is_long && number.exponent >= -kExactMax && number.exponent <= kExactMax;
}

/// Without the sign. Precondition: is_simple().
inline double scaled(const JsonNumber& number) {
  auto value = static_cast<double>(number.digits);
  return number.exponent < 0 ? value / kExact[-number.exponent] : value * kExact[number.exponent];
}

}  // namespace json_number

/// The nearest double; an infinity if it is too large, zero if it is too small.
inline double nearest_double(const JsonNumber& number) {
  // Both operands are exact, so that the result is rounded once.
  if (!json_number::is_simple(number) || number.digits > uint64_t{1} << 53)
    return json_number::parse_double(number);
  auto bits = std::bit_cast<uint64_t>(json_number::scaled(number));
  return std::bit_cast<double>(bits | uint64_t{number.is_negative} << 63);
}

/// The same in single precision, rounded once.
inline float nearest_float(const JsonNumber& number) {
  if (!json_number::is_simple(number)) return json_number::parse_float(number);
  // The double is at most 2 units wrong in its last place. That matters only next to the middle
  // between two floats. Numbers of this size are normal floats.
  double value = json_number::scaled(number);
  constexpr uint64_t kDropped = (uint64_t{1} << 29) - 1, kMiddle = uint64_t{1} << 28;
  uint64_t dropped = std::bit_cast<uint64_t>(value) & kDropped;
  if (dropped - (kMiddle - 4) <= 8) return json_number::parse_float(number);
  auto bits = std::bit_cast<uint32_t>(static_cast<float>(value));
  return std::bit_cast<float>(bits | uint32_t{number.is_negative} << 31);
}

/// Reads the number at `at`, as RFC 8259 defines it.
[[gnu::always_inline]] inline JsonNumber read_json_number(const char* at) {
  constexpr std::ptrdiff_t kDigitsMax = 19;  // that fit into 64 bits
  JsonNumber number;
  number.begin = at;
  number.is_negative = *at == '-';
  at += number.is_negative;
  const char* first = at;
  if (is_json_digit(*at) && !is_json_digit(at[1])) {  // of most fractions; a branch costs less
    number.digits = static_cast<uint64_t>(*at++ - '0');
  } else {
    at = json_number::read_digits(at, number.digits);
  }
  std::ptrdiff_t length = at - first;
  if (length == 0 || (length > 1 && *first == '0')) return number;
  number.is_whole = true;
  if (*at == '.') {
    const char* fraction = ++at;
    at = json_number::read_digits(at, number.digits);
    if (at == fraction) return number;
    number.is_whole = false;
    number.exponent = fraction - at;
    length += at - fraction;
  }
  if (length > kDigitsMax) number.is_long = json_number::has_many_digits(first, at);
  if (*at == 'e' || *at == 'E') {
    constexpr int64_t kExponentMax = 1'000'000'000;  // more says nothing else
    at++;
    bool is_minus = *at == '-';
    at += *at == '-' || *at == '+';
    if (!is_json_digit(*at)) return number;
    int64_t exponent = 0;
    for (; is_json_digit(*at); at++)
      if (exponent < kExponentMax) exponent = exponent * 10 + (*at - '0');
    number.exponent += is_minus ? -exponent : exponent;
    number.is_whole = false;
  }
  if (is_json_delimiter(*at)) number.end = at;
  return number;
}

/// Reads a number that fills the text up to `end` and is whole, of at most eight digits. False if
/// it is another one, or none.
inline bool read_short_integer(const char* at, const char* end, int64_t& value) {
  bool is_negative = *at == '-';
  at += is_negative;
  auto length = static_cast<uint64_t>(end - at);
  if (length - 1 >= sizeof(uint64_t)) return false;
  uint64_t text;
  std::memcpy(&text, at, sizeof text);
  // What is behind the digits leaves the word, and leading zeros come into it.
  text = (text ^ 0x3030303030303030) << (64 - 8 * length);
  bool has_others = (((text + 0x7676767676767676) | text) & 0x8080808080808080) != 0;
  if (has_others || (*at == '0' && length > 1)) return false;
  auto digits = static_cast<int64_t>(json_number::value_of_digits(text));
  value = is_negative ? -digits : digits;
  return true;
}

}  // namespace flow
