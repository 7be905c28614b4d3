// Numbers of requests beside those that std::from_chars reads: many at once, of each datatype, with
// texts that are next to where the reader takes another way.
#include <fmt/format.h>

#include <bit>
#include <catch2/catch.hpp>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "engine/serve/oip.hpp"

using namespace flow;

namespace {

std::string body_of(const std::string& datatype, size_t count, const std::string& data) {
  return fmt::format(R"({{"inputs":[{{"name":"x","shape":[{}],"datatype":"{}","data":{}}}]}})",
                     count, datatype, data);
}

template <typename T>
std::vector<T> read_all(const std::string& datatype, size_t count, const std::string& data) {
  auto request = parse_infer_request(body_of(datatype, count, data), {});
  INFO((request.ok() ? "" : request.error().message));
  REQUIRE(request.ok());
  const std::string_view bytes = *request->inputs.at("x").data;
  std::vector<T> values(count);
  REQUIRE(bytes.size() == count * sizeof(T));
  if (count > 0) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

std::string refusal(const std::string& datatype, size_t count, const std::string& data) {
  auto request = parse_infer_request(body_of(datatype, count, data), {});
  return request.ok() ? "accepted" : request.error().message;
}

/// An array of these texts: flat or in rows, with one of several spaces between them.
std::string array_of(const std::vector<std::string>& texts, std::mt19937_64& random) {
  static const char* const kSpaces[] = {"", " ", "\n    ", "\t", "  "};
  const std::string space = kSpaces[random() % std::size(kSpaces)];
  const std::string before = random() % 8 == 0 ? " " : "";
  const size_t row = random() % 3 == 0 ? random() % 9 + 1 : 0;
  std::string data = "[";
  for (size_t i = 0; i < texts.size(); i++) {
    if (i > 0) data += before + "," + space;
    if (row > 0 && i % row == 0) data += "[" + space;
    data += texts[i];
    if (row > 0 && (i % row == row - 1 || i + 1 == texts.size())) data += "]";
  }
  return data + space + "]";
}

/// Whole numbers of all lengths, and those around powers of 10 and 2 and around the limits.
int64_t any_whole(int64_t min, int64_t max, std::mt19937_64& random) {
  auto value = static_cast<int64_t>(random());
  if (random() % 4 == 0) {
    value = 1;
    for (uint64_t digits = random() % 19; digits > 0; digits--) value *= 10;
    value += static_cast<int64_t>(random() % 3) - 1;
    if (random() % 2 == 0) value = -value;
  } else {
    value >>= random() % 64;
  }
  if (random() % 16 == 0) return random() % 2 == 0 ? min : max;
  if (value >= min && value <= max) return value;
  auto span = static_cast<uint64_t>(max) - static_cast<uint64_t>(min) + 1;
  auto offset = static_cast<uint64_t>(value) % span;
  return static_cast<int64_t>(static_cast<uint64_t>(min) + offset);
}

template <typename T>
void check_integers(const std::string& datatype, int64_t min, int64_t max) {
  std::mt19937_64 random(static_cast<uint64_t>(max));
  for (int round = 0; round < 200; round++) {
    std::vector<std::string> texts;
    std::vector<T> values;
    for (size_t i = random() % 300 + 1; i > 0; i--) {
      int64_t value = any_whole(min, max, random);
      values.push_back(static_cast<T>(value));
      texts.push_back(value == 0 && min < 0 && random() % 2 == 0 ? "-0" : fmt::format("{}", value));
    }
    const std::string data = array_of(texts, random);
    INFO(datatype << " " << data);
    CHECK(read_all<T>(datatype, values.size(), data) == values);
  }
}

void check_doubles(const std::vector<std::string>& texts, std::mt19937_64& random) {
  std::vector<uint64_t> expected;
  for (const std::string& text : texts) {
    double value = 0;
    std::from_chars(text.data(), text.data() + text.size(), value);
    expected.push_back(std::bit_cast<uint64_t>(value));
  }
  auto read = read_all<uint64_t>("FP64", texts.size(), array_of(texts, random));
  for (size_t i = 0; i < texts.size(); i++) {
    INFO(texts[i]);
    CHECK(read[i] == expected[i]);
  }
}

}  // namespace

TEST_CASE("many integers of each datatype are read as they are written", "[numbers]") {
  check_integers<uint8_t>("UINT8", 0, UINT8_MAX);
  check_integers<int32_t>("INT8", INT8_MIN, INT8_MAX);
  check_integers<int32_t>("INT16", INT16_MIN, INT16_MAX);
  check_integers<int32_t>("UINT16", 0, UINT16_MAX);
  check_integers<int32_t>("INT32", INT32_MIN, INT32_MAX);
  check_integers<int64_t>("UINT32", 0, UINT32_MAX);
  check_integers<int64_t>("INT64", INT64_MIN, INT64_MAX);
}

TEST_CASE("a fault among many integers is named with its place, wherever it is", "[numbers]") {
  for (size_t place = 0; place < 150; place++) {
    std::string flat = "[", nested = "[";
    for (size_t i = 0; i < 150; i++) {
      const std::string text = i == place ? "256" : fmt::format("{}", i);
      flat += (i > 0 ? "," : "") + text;
      nested += (i == 0 ? "[" : i % 5 == 0 ? "], [" : ", ") + text;
    }
    CHECK(refusal("UINT8", 150, flat + "]") ==
          fmt::format("inputs[0].data[{}] of `x` is 256, but UINT8 holds whole numbers from 0 to "
                      "255",
                      place));
    CHECK(refusal("UINT8", 150, nested + "]]") ==
          fmt::format("inputs[0].data[{}][{}] of `x` is 256, but UINT8 holds whole numbers from 0 "
                      "to 255",
                      place / 5, place % 5));
  }
}

TEST_CASE("text that is no integer is none among many either", "[numbers]") {
  const std::string before = "1,22,333,4444,55555,666666,7777777,88888888,", after = before + "9";
  for (const char* text : {"01",
                           "-",
                           "--1",
                           "-01",
                           "1 2",
                           "+1",
                           "1_0",
                           "0x1",
                           "1a",
                           "a1",
                           ":1",
                           "/1",
                           "1;",
                           "",
                           "00000001",
                           "12345678901234567890",
                           "1e2",
                           "1.0",
                           "\"1\"",
                           "true",
                           "\xb1",
                           "1\x80",
                           "99999999999999999999999"}) {
    INFO(text);
    CHECK(refusal("INT32", 18, "[" + before + text + "," + after + "]") != "accepted");
  }
  CHECK(refusal("INT32", 17, "[" + before + after + "]") == "accepted");
}

TEST_CASE("a nested array may follow the numbers of a flat one", "[numbers]") {
  CHECK(read_all<int32_t>("INT32", 6, "[1,2,[3,4],5,[[6]]]") ==
        std::vector<int32_t>{1, 2, 3, 4, 5, 6});
  CHECK(refusal("INT8", 4, "[1,[2,3],[4,500]]").starts_with("inputs[0].data[2][1] of `x` is 500"));
}

TEST_CASE("many doubles are read as the nearest, also next to the middle of two", "[numbers]") {
  std::mt19937_64 random(3);
  for (int round = 0; round < 300; round++) {
    std::vector<std::string> texts;
    for (int i = 0; i < 20; i++) {
      texts.push_back(
          fmt::format("{}e{}", random() >> (random() % 64), -static_cast<int>(random() % 70)));
      const double value =
          std::ldexp(static_cast<double>(random() | 1), static_cast<int>(random() % 200) - 230);
      texts.push_back(fmt::format("{}", value));
      // 19 digits of the middle, and the numbers beside them.
      const double next = std::nextafter(value, std::numeric_limits<double>::infinity());
      const long double middle = (static_cast<long double>(value) + next) / 2;
      texts.push_back(fmt::format("-{:.18e}", middle));
      for (long double other : {std::nextafter(middle, 0.0L), std::nextafter(middle, 1e300L)})
        texts.push_back(fmt::format("{:.18e}", other));
    }
    check_doubles(texts, random);
  }
}

TEST_CASE("a double that is exactly the middle of two is rounded to the even one", "[numbers]") {
  std::mt19937_64 random(4);
  std::vector<std::string> texts;
  for (int i = 0; i < 300; i++) {
    // 54 bits with the lowest set, divided by 2, 4 or 8: times 5, 25 or 125 and a power of 10.
    uint64_t odd = (uint64_t{1} << 53) + (random() >> 12) * 2 + 1;
    texts.push_back(fmt::format("{}e-1", odd * 5));
    texts.push_back(fmt::format("{}e-2", odd * 25));
    texts.push_back(fmt::format("{}e-3", odd * 125));
    texts.push_back(fmt::format("{}.0", odd));
  }
  check_doubles(texts, random);
}
