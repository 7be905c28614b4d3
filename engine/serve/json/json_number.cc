// The numbers of JSON that need more than one division.
#include "engine/serve/json/json_number.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <optional>

namespace flow {
namespace {

// Without leading zeros. The text may have a dot.
std::ptrdiff_t count_digits(const char* begin, const char* end) {
  while (begin < end && (*begin == '0' || *begin == '.')) begin++;
  std::ptrdiff_t count = 0;
  for (; begin < end; begin++) count += is_json_digit(*begin);
  return count;
}

// Whether a number that is not near 1 is above it.
bool is_large(const JsonNumber& number) {
  std::string_view text = number.text();
  size_t digits = std::min(text.find_first_of("eE"), text.size());
  return count_digits(text.data(), text.data() + digits) + number.exponent > 0;
}

template <typename T>
T parse(const JsonNumber& number) {
  T value = 0;
  auto [end, error] = std::from_chars(number.begin, number.end, value);
  if (error == std::errc::result_out_of_range) {
    value = is_large(number) ? std::numeric_limits<T>::infinity() : T{0};
    return number.is_negative ? -value : value;
  }
  return value;
}

__extension__ using Product = unsigned __int128;

constexpr int64_t kQuotientMax = 64;  // the exponent of the largest divisor

// 5^-exponent: between (m - 1) × 2^power and m × 2^power, where m = high × 2^64 + low has 128 bits.
struct Reciprocal {
  uint64_t high, low;
  int64_t power;
};

// 2^383 divided by 5 again and again. The quotients are exact but for a part below 1.
constexpr std::array<Reciprocal, kQuotientMax + 1> kReciprocals = [] {
  constexpr size_t kWords = 6, kBits = 64 * kWords;
  std::array<Reciprocal, kQuotientMax + 1> all{};
  std::array<uint64_t, kWords> words{};  // the highest first
  words[0] = uint64_t{1} << 63;
  for (Reciprocal& each : all) {
    size_t first = 0;
    while (words[first] == 0) first++;
    const int lead = std::countl_zero(words[first]);
    auto word = [&](size_t i) {
      return lead == 0 ? words[i] : words[i] << lead | words[i + 1] >> (64 - lead);
    };
    each.low = word(first + 1) + 1;
    each.high = word(first) + (each.low == 0 ? 1 : 0);
    auto dropped = static_cast<int64_t>(64 * (kWords - first - 2)) - lead;  // bits below the 128
    each.power = dropped - static_cast<int64_t>(kBits - 1);
    uint64_t rest = 0;
    for (uint64_t& digit : words) {
      auto dividend = static_cast<Product>(rest) << 64 | digit;
      digit = static_cast<uint64_t>(dividend / 5);
      rest = static_cast<uint64_t>(dividend % 5);
    }
  }
  return all;
}();

// digits × 10^exponent without its sign; nothing if it is next to the middle of two doubles.
// Precondition: digits > 0, and the exponent is from -kQuotientMax to -1.
std::optional<double> quotient(uint64_t digits, int64_t exponent) {
  const Reciprocal& factor = kReciprocals[static_cast<size_t>(-exponent)];
  const int lead = std::countl_zero(digits);
  digits <<= lead;
  Product low = static_cast<Product>(digits) * factor.low;
  Product high = static_cast<Product>(digits) * factor.high + static_cast<uint64_t>(low >> 64);
  // The product without its lowest 64 bits. The factor is too large by less than 1, hence the
  // product by less than 2^64, and this by at most 1.
  constexpr int kMantissaBits = 53, kBits = 128;
  const int dropped = kBits - kMantissaBits - ((high >> (kBits - 1)) != 0 ? 0 : 1);
  const Product middle = Product{1} << (dropped - 1);
  const Product rest = high & ((Product{1} << dropped) - 1);
  if (rest == middle) return std::nullopt;
  uint64_t mantissa = static_cast<uint64_t>(high >> dropped) + (rest > middle ? 1 : 0);
  const int64_t power = factor.power + exponent - lead + 64 + dropped;
  constexpr int64_t kBias = 1023 + kMantissaBits - 1;
  constexpr uint64_t kHidden = uint64_t{1} << (kMantissaBits - 1);
  // A carry out of the mantissa moves into the exponent, as it should.
  return std::bit_cast<double>((static_cast<uint64_t>(power + kBias) << (kMantissaBits - 1)) +
                               (mantissa - kHidden));
}

}  // namespace

namespace json_number {

bool has_many_digits(const char* begin, const char* end) { return count_digits(begin, end) > 19; }

double parse_double(const JsonNumber& number) {
  bool is_quotient = !number.is_long && number.digits > 0 && number.exponent < 0 &&
                     number.exponent >= -kQuotientMax;
  if (is_quotient)
    if (auto value = quotient(number.digits, number.exponent))
      return number.is_negative ? -*value : *value;
  return parse<double>(number);
}
float parse_float(const JsonNumber& number) { return parse<float>(number); }

}  // namespace json_number

}  // namespace flow
