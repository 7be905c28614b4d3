// The numbers of JSON that need more than one division.
#include "engine/serve/json_number.hpp"

#include <algorithm>
#include <charconv>
#include <limits>

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

}  // namespace

namespace json_number {

bool has_many_digits(const char* begin, const char* end) { return count_digits(begin, end) > 19; }

double parse_double(const JsonNumber& number) { return parse<double>(number); }
float parse_float(const JsonNumber& number) { return parse<float>(number); }

}  // namespace json_number

}  // namespace flow
