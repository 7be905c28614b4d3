// Lists of numbers: the first byte selects the type, the rest is the text. What the vector reader
// accepts are numbers of JSON with their commas, and each value is that of std::from_chars. A
// processor without its instructions has nothing to check.
#include <bit>
#include <charconv>
#include <string>
#include <vector>

#include "engine/serve/json/json_number.hpp"
#include "engine/serve/json/number_list.hpp"
#include "flow/result.hpp"

namespace {

template <typename T>
auto bits_of(T value) {
  if constexpr (std::is_same_v<T, float>) {
    return std::bit_cast<uint32_t>(value);
  } else if constexpr (std::is_same_v<T, double>) {
    return std::bit_cast<uint64_t>(value);
  } else {
    return value;
  }
}

// The only other way to read a number; "-0" is 0 for an integer, and what is too small is zero.
template <typename T>
T expected(const char* begin, const char* end) {
  T value = 0;
  auto [behind, error] = std::from_chars(begin, end, value);
  if (std::is_integral_v<T> && std::string_view(begin, end) == "-0") return 0;
  if (error == std::errc::result_out_of_range && std::is_floating_point_v<T>)
    return *begin == '-' ? -T{0} : T{0};
  FLOW_CHECK(error == std::errc() && behind == end);
  return value;
}

template <typename T>
void check(const std::string& text, const char* at, const char* list_end) {
  auto read = flow::vector_reader<T>();
  if (read == nullptr) return;
  std::vector<T> values(text.size());
  size_t count = 0;
  const char* end = read(at, text.data() + text.size(), {values.data(), values.size()}, count);
  FLOW_CHECK((end == nullptr) == (count == 0));
  for (size_t i = 0; i < count; i++) {
    flow::JsonNumber number = flow::read_json_number(at);
    FLOW_CHECK(number.end != nullptr && number.end <= end);
    FLOW_CHECK(bits_of(values[i]) == bits_of(expected<T>(at, number.end)));
    at = number.end;
    if (i + 1 == count) break;
    FLOW_CHECK(*at == ',');
    for (at++; flow::is_json_space(*at);) at++;
  }
  FLOW_CHECK(count == 0 || (at == end && end <= list_end));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  constexpr size_t kPadding = 64;
  std::string text(flow::kNumberReach, '[');
  text.append(reinterpret_cast<const char*>(data + 1), size - 1);
  text += ']';
  const size_t list_size = text.size();
  text.append(2 * kPadding, ' ');
  text += ']';
  const char *at = text.data() + flow::kNumberReach, *list_end = text.data() + list_size;
  switch (data[0] % 5) {
    case 0:
      check<uint8_t>(text, at, list_end);
      break;
    case 1:
      check<int32_t>(text, at, list_end);
      break;
    case 2:
      check<int64_t>(text, at, list_end);
      break;
    case 3:
      check<float>(text, at, list_end);
      break;
    default:
      check<double>(text, at, list_end);
  }
  return 0;
}
