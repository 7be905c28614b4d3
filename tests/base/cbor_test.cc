// Canonical bytes: the vectors of RFC 8949, equal bytes for equal values, and rejection of all
// other forms.
#include <catch2/catch.hpp>

#include <algorithm>
#include <random>

#include "engine/value/cbor.hpp"
#include "tests/base/random_value.hpp"

using namespace flow;

namespace {

std::string hex(std::string_view bytes) {
  std::string out;
  for (char c : bytes) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned char>(c));
    out += digits;
  }
  return out;
}

std::string unhex(std::string_view text) {
  std::string out;
  for (size_t i = 0; i + 1 < text.size(); i += 2)
    out.push_back(static_cast<char>(std::stoi(std::string(text.substr(i, 2)), nullptr, 16)));
  return out;
}

std::string encoded(const Value& value) { return hex(encode_value(value)); }

std::string refusal(std::string_view hex_bytes) {
  auto value = decode_value(unhex(hex_bytes));
  return value.ok() ? "accepted: " + to_json(*value) : value.error().message;
}

Value nested(int depth) {
  Value value;
  for (int i = 0; i < depth; i++) value = Value::list({value});
  return value;
}

bool has_tag(const Value& value) {
  auto kind = value.kind();
  if (kind == Value::Kind::tensor || kind == Value::Kind::file || kind == Value::Kind::ref)
    return true;
  if (kind != Value::Kind::table) return false;
  const Value::Table& table = value.as_table();
  return std::any_of(table.list.begin(), table.list.end(), has_tag) ||
         std::any_of(table.fields.begin(), table.fields.end(),
                     [](const auto& field) { return has_tag(field.second); });
}

using Fields = std::vector<std::pair<Value, Value>>;

}  // namespace

TEST_CASE("the vectors of RFC 8949, appendix A, are encoded and decoded") {
  struct {
    Value value;
    const char* bytes;
  } vectors[] = {
      {Value(0), "00"},
      {Value(1), "01"},
      {Value(10), "0a"},
      {Value(23), "17"},
      {Value(24), "1818"},
      {Value(100), "1864"},
      {Value(1000), "1903e8"},
      {Value(1000000), "1a000f4240"},
      {Value(int64_t{1000000000000}), "1b000000e8d4a51000"},
      {Value(-1), "20"},
      {Value(-10), "29"},
      {Value(-100), "3863"},
      {Value(-1000), "3903e7"},
      {Value(INT64_MAX), "1b7fffffffffffffff"},
      {Value(INT64_MIN), "3b7fffffffffffffff"},
      {Value(0.0), "f90000"},
      {Value(-0.0), "f98000"},
      {Value(1.0), "f93c00"},
      {Value(1.1), "fb3ff199999999999a"},
      {Value(1.5), "f93e00"},
      {Value(65504.0), "f97bff"},
      {Value(100000.0), "fa47c35000"},
      {Value(3.4028234663852886e+38), "fa7f7fffff"},
      {Value(1.0e+300), "fb7e37e43c8800759c"},
      {Value(5.960464477539063e-8), "f90001"},
      {Value(0.00006103515625), "f90400"},
      {Value(-4.0), "f9c400"},
      {Value(-4.1), "fbc010666666666666"},
      {Value(HUGE_VAL), "f97c00"},
      {Value(NAN), "f97e00"},
      {Value(-NAN), "f97e00"},
      {Value(-HUGE_VAL), "f9fc00"},
      {Value(false), "f4"},
      {Value(true), "f5"},
      {Value::null(), "f6"},
      {Value(), "f7"},
      {Value(""), "60"},
      {Value("a"), "6161"},
      {Value("IETF"), "6449455446"},
      {Value("\"\\"), "62225c"},
      {Value("\u00fc"), "62c3bc"},
      {Value("\u6c34"), "63e6b0b4"},
      {Value("\xff"), "41ff"},
      {Value::list({}), "80"},
      {Value::list({1, 2, 3}), "83010203"},
      {Value::list({1, Value::list({2, 3}), Value::list({4, 5})}), "8301820203820405"},
      {Value::map({{"a", 1}, {"b", Value::list({2, 3})}}), "a26161016162820203"},
      {Value::list({"a", Value::map({{"b", "c"}})}), "826161a161626163"},
  };
  for (const auto& [value, bytes] : vectors) {
    CHECK(encoded(value) == bytes);
    auto back = decode_value(unhex(bytes));
    REQUIRE(back.ok());
    CHECK(*back == value);
  }
}

TEST_CASE("floats use the narrowest width that keeps their value") {
  CHECK(encoded(Value(0x1p-24)) == "f90001");
  CHECK(encoded(Value(0x1p-25)) == "fa33000000");
  CHECK(encoded(Value(0x1.ff8p-15)) == "f903ff");  // the largest subnormal half
  CHECK(encoded(Value(0x1.ffcp-15)) == "fa387fe000");
  CHECK(encoded(Value(65505.0)) == "fa477fe100");
  CHECK(encoded(Value(65536.0)) == "fa47800000");
  CHECK(encoded(Value(0x1p-149)) == "fa00000001");
  CHECK(encoded(Value(0x1p-150)) == "fb3690000000000000");
  CHECK(encoded(Value(0x1p128)) == "fb47f0000000000000");
}

TEST_CASE("keys of a map are sorted by their bytes") {
  Value value = Value::map({{true, 1},
                            {"b", 1},
                            {"aa", 1},
                            {"\xff", 1},
                            {-1, 1},
                            {-2, 1},
                            {0, 1},
                            {1, 1},
                            {5, 1},
                            {false, 1}});
  CHECK(encoded(value) ==
        "aa000101010501200121014"
        "1ff01616201"
        "6261610"
        "1f401f501");
  auto back = decode_value(encode_value(value));
  REQUIRE(back.ok());
  CHECK(*back == value);
}

TEST_CASE("a map with more fields than are sorted on the stack is sorted") {
  Fields fields;
  for (int i = 0; i < 100; i++)
    fields.emplace_back(std::string(1 + i % 7, 'a') + std::to_string(i), i);
  Value value = Value::map(fields);
  auto back = decode_value(encode_value(value));
  REQUIRE(back.ok());
  CHECK(*back == value);
}

TEST_CASE("equal values have equal bytes, in any order of construction") {
  std::mt19937 random(7);
  Fields fields = {{"x", 1}, {"y", 2.5}, {3, "three"}, {1, "one"}, {2, "two"}, {true, false}};
  std::string bytes = encode_value(Value::map(fields));
  for (int i = 0; i < 50; i++) {
    std::shuffle(fields.begin(), fields.end(), random);
    CHECK(encode_value(Value::map(fields)) == bytes);
  }
  CHECK(encode_value(Value(1)) != encode_value(Value(1.0)));
  CHECK(encode_value(Value::map({{1, "a"}, {2, "b"}})) == encode_value(Value::list({"a", "b"})));
  CHECK(encode_value(Value::map({})) == encode_value(Value::list({})));
}

TEST_CASE("random values survive encoding and decoding, and tags in them are detected") {
  uint64_t seed = GENERATE(take(20, random(uint64_t{1}, uint64_t{1} << 60)));
  INFO("seed " << seed);
  test::RandomValue random(seed);
  for (int i = 0; i < 200; i++) {
    Value value = random.value();
    std::string bytes = encode_value(value);
    INFO("value " << i << ": " << to_json(value) << " as " << hex(bytes));
    auto back = decode_value(bytes);
    REQUIRE(back.ok());
    REQUIRE(*back == value);
    REQUIRE(encode_value(*back) == bytes);
    REQUIRE(holds_tag(bytes) == has_tag(value));
    for (size_t cut = 0; cut < bytes.size(); cut++)
      REQUIRE_FALSE(decode_value(std::string_view(bytes).substr(0, cut)).ok());
  }
}

TEST_CASE("a tag is detected next to strings that look like tags, and not in them") {
  std::string like_tags(70'000, '\xc6');  // its length takes three bytes
  for (size_t size :
       {size_t{0}, size_t{1}, size_t{23}, size_t{24}, size_t{255}, size_t{256}, like_tags.size()}) {
    INFO(size);
    Value text(like_tags.substr(0, size));
    CHECK_FALSE(holds_tag(encode_value(Value::list({text, Value(-0xc6), Value(0xd9c6), text}))));
    CHECK(holds_tag(encode_value(Value::list({text, Value(Ref{3, {}})}))));
  }
}

TEST_CASE("every form that the writer does not produce is rejected") {
  CHECK(refusal("") == "the bytes are not a canonical value: it ends early at byte 0");
  CHECK(refusal("0000") == "the bytes are not a canonical value: 1 bytes follow it");
  CHECK_THAT(refusal("1817"), Catch::Contains("wider than needed"));
  CHECK_THAT(refusal("1900ff"), Catch::Contains("wider than needed"));
  CHECK_THAT(refusal("1a0000ffff"), Catch::Contains("wider than needed"));
  CHECK_THAT(refusal("1b00000000ffffffff"), Catch::Contains("wider than needed"));
  CHECK_THAT(refusal("1b8000000000000000"), Catch::Contains("beyond 64 bits"));
  CHECK_THAT(refusal("3b8000000000000000"), Catch::Contains("beyond 64 bits"));
  CHECK_THAT(refusal("fa3fc00000"), Catch::Contains("wider than needed"));
  CHECK_THAT(refusal("fb3ff8000000000000"), Catch::Contains("wider than needed"));
  CHECK_THAT(refusal("f97e01"), Catch::Contains("NaN"));
  CHECK_THAT(refusal("fa7fc00000"), Catch::Contains("wider than needed"));
  CHECK_THAT(refusal("fb7ff8000000000000"), Catch::Contains("wider than needed"));
  CHECK_THAT(refusal("4161"), Catch::Contains("text as bytes"));
  CHECK_THAT(refusal("61ff"), Catch::Contains("text as bytes"));
  CHECK_THAT(refusal("5f4161ff"), Catch::Contains("indefinite"));
  CHECK_THAT(refusal("9f01ff"), Catch::Contains("indefinite"));
  CHECK_THAT(refusal("a0"), Catch::Contains("a list as a map"));
  CHECK_THAT(refusal("a10101"), Catch::Contains("a list as a map"));
  CHECK_THAT(refusal("a161 61f7"), Catch::Contains("bytes"));
  CHECK_THAT(refusal("a16161f7"), Catch::Contains("a key without a value"));
  CHECK_THAT(refusal("a2616201616101"), Catch::Contains("out of order"));
  CHECK_THAT(refusal("a2616101616101"), Catch::Contains("out of order"));
  CHECK_THAT(refusal("a1f93c0001"), Catch::Contains("a key that is not a string"));
  CHECK_THAT(refusal("a18001"), Catch::Contains("a key that is not a string"));
  CHECK_THAT(refusal("c11a514b67b0"), Catch::Contains("unknown tag"));
  CHECK_THAT(refusal("f0"), Catch::Contains("unknown simple value"));
  CHECK_THAT(refusal("f818"), Catch::Contains("unknown simple value"));
  CHECK_THAT(refusal("9bffffffffffffffff"), Catch::Contains("ends early"));
  CHECK_THAT(refusal("bb7fffffffffffffff"), Catch::Contains("ends early"));
}

TEST_CASE("a nesting depth of 1000 is accepted and a deeper one rejected") {
  CHECK(decode_value(encode_value(nested(1000))).ok());
  auto deeper = decode_value(encode_value(nested(1001)));
  REQUIRE_FALSE(deeper.ok());
  CHECK_THAT(deeper.error().message, Catch::Contains("deeper than 1000"));
}

TEST_CASE(
    "tensors and files are encoded by digest, and keys exclude origins and names of anonymous "
    "files") {
  Value tensor = Tensor{DType::f32, {2, 3}, sha256("t"), nullptr};
  CHECK(encoded(tensor) == "d9666c83636633328202035820" + sha256("t").hex());
  File file;
  file.name = "a.csv";
  file.anonymous = true;
  file.size = 3;
  file.digest = sha256("abc");
  file.origin = "/data/a.csv";
  File renamed = file;
  renamed.name = "b.csv";
  renamed.origin = "/elsewhere/b.csv";
  CHECK(encode_value(Value(file)) != encode_value(Value(renamed)));
  CHECK(encode_value_for_key(Value(file)) == encode_value_for_key(Value(renamed)));
  auto back = decode_value(encode_value(Value(file)));
  REQUIRE(back.ok());
  CHECK(back->as_file().origin == "/data/a.csv");
  file.anonymous = renamed.anonymous = false;
  CHECK(encode_value_for_key(Value(file)) != encode_value_for_key(Value(renamed)));
}

TEST_CASE("a tensor whose size overflows is rejected, an empty one is accepted") {
  Value huge = Tensor{DType::f64, {INT64_MAX, 2}, Digest{}, nullptr};
  CHECK_FALSE(decode_value(encode_value(huge)).ok());
  Value empty = Tensor{DType::f64, {INT64_MAX, INT64_MAX, 0}, Digest{}, nullptr};
  CHECK(decode_value(encode_value(empty)).ok());
}

TEST_CASE("consecutive values are decoded one by one") {
  std::string bytes;
  append_value(Value(1), bytes);
  append_value(Value("two"), bytes);
  std::string_view rest = bytes;
  auto first = take_value(rest);
  auto second = take_value(rest);
  REQUIRE((first.ok() && second.ok()));
  CHECK(*first == Value(1));
  CHECK(*second == Value("two"));
  CHECK(rest.empty());
}
