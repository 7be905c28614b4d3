// Lists of numbers by the processor's vector instructions, and text without its long lists.
#include "engine/serve/json/number_list.hpp"

#include <fmt/format.h>

#include <bit>
#include <catch2/catch.hpp>
#include <charconv>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "engine/serve/json/json_outline.hpp"
#include "tests/serve/oip_text.hpp"

using namespace flow;

namespace {

/// The list as the reader needs it: with text before and behind it.
std::string padded(const std::string& list) {
  return std::string(kNumberReach, ' ') + list + std::string(64, ' ');
}

/// What the reader takes of the list, and how much of the text that is.
template <typename T>
std::pair<std::vector<T>, std::string> taken(const std::string& list) {
  const std::string text = padded(list);
  std::vector<T> values(list.size());
  size_t count = 0;
  const char* at = text.data() + kNumberReach;
  const char* end = vector_reader<T>()(at, text.data() + text.size(),
                                       NumberList<T>{values.data(), values.size()}, count);
  values.resize(count);
  return {values, end == nullptr ? "" : std::string(at, end)};
}

template <typename T>
bool is_here() {
  if (vector_reader<T>() != nullptr) return true;
  WARN("this processor has no AVX2");
  return false;
}

/// A number as programs write it, or as nobody does.
std::string any_number(std::mt19937_64& random) {
  auto digits = [&](size_t most) {
    std::string text;
    for (size_t count = random() % most + 1; count > 0; count--)
      text += static_cast<char>('0' + random() % 10);
    return text;
  };
  auto without_zeros = [](std::string text) {
    size_t first = text.find_first_not_of('0');
    return first == std::string::npos ? std::string("0") : text.substr(first);
  };
  std::string text = random() % 2 == 0 ? "-" : "";
  switch (random() % 6) {
    case 0:
      return text + without_zeros(digits(20));
    case 1:
      return text + "0." + digits(20);
    case 2:
      return text + without_zeros(digits(10)) + "." + digits(12);
    case 3:
      return text + without_zeros(digits(25)) + "." + digits(25);
    case 4:
      return text + without_zeros(digits(3)) + "." + digits(17) +
             fmt::format("e-{}", random() % 40);
    default:
      return fmt::format("{}", std::bit_cast<float>(static_cast<uint32_t>(random() % 0x7f000000)));
  }
}

template <typename T>
void check_floats() {
  std::mt19937_64 random(6);
  for (int round = 0; round < 2'000; round++) {
    std::vector<std::string> texts;
    std::string list;
    for (size_t i = random() % 40 + 2; i > 0; i--) {
      texts.push_back(any_number(random));
      list += texts.back() + (i > 1 ? random() % 2 == 0 ? "," : ", " : "]");
    }
    auto [values, text] = taken<T>(list);
    INFO(list);
    REQUIRE(values.size() == texts.size());
    CHECK(text + "]" == list);
    for (size_t i = 0; i < texts.size(); i++) {
      T expected = 0;
      auto [end, error] =
          std::from_chars(texts[i].data(), texts[i].data() + texts[i].size(), expected);
      if (error == std::errc::result_out_of_range) expected = texts[i][0] == '-' ? -T{0} : T{0};
      INFO(texts[i]);
      CHECK(std::memcmp(&values[i], &expected, sizeof expected) == 0);
    }
  }
}

std::string long_list(size_t count) {
  std::string list = "[";
  for (size_t i = 0; i < count; i++) list += fmt::format("{}{}", i > 0 ? "," : "", i % 100);
  return list + "]";
}

}  // namespace

TEST_CASE("each number of a list is read as std::from_chars reads it", "[numbers]") {
  if (!is_here<float>()) return;
  check_floats<float>();
  check_floats<double>();
}

TEST_CASE("a list is read up to the first text that is no number that the type holds",
          "[numbers]") {
  if (!is_here<int32_t>()) return;
  using Values = std::vector<int32_t>;
  for (const char* other : {"2147483648", "1.5", "1e2", "x", "01", "-", "+1", "1 2", "[1]", "null",
                            "", "1.", ".5", "--1", "99999999999999999999", "\"1\""}) {
    INFO(other);
    auto [values, text] = taken<int32_t>(fmt::format("1, -22,{},3]", other));
    CHECK(values == Values{1, -22});
    CHECK(text == "1, -22");
  }
  CHECK(taken<int32_t>("]").first.empty());
  CHECK(taken<int32_t>("[1]").second.empty());
  CHECK(taken<int32_t>("7],[8]").second == "7");
  CHECK(taken<int64_t>("9223372036854775807,-9223372036854775807,123456789]").first ==
        std::vector<int64_t>{INT64_MAX, -INT64_MAX, 123456789});
}

TEST_CASE("no more numbers are read than there is room for", "[numbers]") {
  if (!is_here<uint8_t>()) return;
  const std::string text = padded("1,2,3,4,5]");
  uint8_t values[4] = {9, 9, 9, 9};
  size_t count = 5;
  const char* at = text.data() + kNumberReach;
  const char* end = vector_reader<uint8_t>()(at, text.data() + text.size(), {values, 3}, count);
  CHECK(count == 8);
  CHECK(std::string(at, end) == "1,2,3");
  CHECK(std::vector<uint8_t>(values, values + 4) == std::vector<uint8_t>{1, 2, 3, 9});
}

TEST_CASE("an outline has all but the long lists of numbers of the fields `data`", "[numbers]") {
  const std::string numbers = long_list(200), rows = "[" + numbers + ", " + numbers + "]";
  const std::string texts = "[\"" + std::string(300, 'x') + "]\"]";
  const std::string json = R"({"data":[1,2],"a":{"data" : )" + rows + R"(},"b":{"data":)" + texts +
                           R"(},"c":)" + numbers + R"(,"data":)" + numbers + "}";
  JsonOutline outline = outline_json(json);
  CHECK(outline.text == R"({"data":[1,2],"a":{"data" : [0]},"b":{"data":)" + texts + R"(},"c":)" +
                            numbers + R"(,"data":[0]})");
  REQUIRE(outline.lists.size() == 2);
  CHECK(outline.lists[0].list == rows);
  CHECK(outline.lists[1].list == numbers);
  for (const JsonOutline::List& list : outline.lists)
    CHECK(outline.text.substr(list.at, 3) == "[0]");
}

TEST_CASE("a list without an end, or a name that is not one, is in the outline", "[numbers]") {
  const std::string numbers = long_list(200);
  for (const std::string& json :
       {R"({"data":)" + numbers.substr(0, numbers.size() - 1), R"({"data)" + numbers,
        R"({"data")" + numbers, R"({"data":{"x":)" + numbers + "}}", std::string(R"({"data":)")})
    CHECK(outline_json(json).lists.empty());
}

TEST_CASE("a large request is refused for the same reason, at the same place, as a small one",
          "[numbers]") {
  const std::string numbers = long_list(1000);
  auto refusal = [](const std::string& fields) { return body_refusal(one_input(fields)); };
  const std::string head = R"("name":"x","shape":[1000],"datatype":"UINT8","data":)";
  CHECK(refusal(head + numbers) == "accepted");
  CHECK(refusal(R"("name":"x","shape":[999],"datatype":"UINT8","data":)" + numbers) ==
        "inputs[0].data has 1000 values, its shape needs 999");
  std::string faulty = numbers;
  faulty.replace(faulty.rfind("99"), 2, "999");
  CHECK(refusal(head + faulty) ==
        "inputs[0].data[999] of `x` is 999, but UINT8 holds whole numbers from 0 to 255");
  CHECK(refusal(head + numbers + R"(,"data":[1])") == "inputs[0] has two fields `data`");
  CHECK(refusal(head + "[1],\"other\":{\"data\":" + numbers + "}") ==
        "inputs[0].data has 1 values, its shape needs 1000");
  CHECK(refusal(R"("name":"x","shape":[1],"datatype":"UINT8","data":[1],"other":{"data":)" +
                numbers + "}") == "accepted");
  std::string broken = numbers;
  broken.replace(broken.rfind(','), 1, ";");
  CHECK_THAT(refusal(R"("name":"x","shape":[1],"datatype":"UINT8","data":[1],"other":{"data":)" +
                     broken + "}"),
             Catch::StartsWith("the body is not JSON: "));
}

TEST_CASE("a large request has the tensors of its rows, in any order of its fields", "[numbers]") {
  std::string rows;
  std::vector<float> expected;
  for (int i = 0; i < 500; i++) {
    rows += fmt::format("{}[{}.5, -{}]", i > 0 ? ",\n" : "", i, i);
    expected.push_back(static_cast<float>(i) + 0.5f);
    expected.push_back(static_cast<float>(-i));
  }
  auto inputs = parsed_inputs(R"({"inputs":[{"data":[)" + rows +
                              R"(],"datatype":"FP32","shape":[500,2],"name":"x"},)" +
                              R"({"name":"y","shape":[2],"datatype":"INT64","data":[1,2]}]})");
  CHECK(tensor_items<float>(inputs.at("x")) == expected);
  CHECK(tensor_items<int64_t>(inputs.at("y")) == std::vector<int64_t>{1, 2});
}
