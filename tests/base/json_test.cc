// JSON as defined in docs/reference-cli.md, written and read.
#include "engine/value/json.hpp"

#include <catch2/catch.hpp>

#include "tests/base/random_value.hpp"

using namespace flow;

namespace {

Value parsed(std::string_view text) {
  auto value = from_json(text);
  INFO("text " << text);
  if (!value.ok()) FAIL(value.error().message);
  return *value;
}

std::string refusal(std::string_view text) {
  auto value = from_json(text);
  return value.ok() ? "accepted: " + to_json(*value) : value.error().message;
}

// Whether the value survives JSON. Tensors, files, handles, nil, NaN and infinities do not.
bool is_plain(const Value& value) {
  switch (value.kind()) {
    case Value::Kind::nil:
    case Value::Kind::tensor:
    case Value::Kind::file:
    case Value::Kind::ref:
    case Value::Kind::missing:
      return false;
    case Value::Kind::number:
      return std::isfinite(value.as_number());
    case Value::Kind::table:
      for (const Value& item : value.as_table().list)
        if (!is_plain(item)) return false;
      for (const auto& [key, item] : value.as_table().fields)
        if (!is_plain(item)) return false;
      return true;
    default:
      return true;
  }
}

}  // namespace

TEST_CASE("scalars are written as JSON") {
  CHECK(to_json(Value()) == "null");
  CHECK(to_json(Value::null()) == "null");
  CHECK(to_json(Value(true)) == "true");
  CHECK(to_json(Value(INT64_MIN)) == "-9223372036854775808");
  CHECK(to_json(Value(1.0)) == "1.0");
  CHECK(to_json(Value(-0.0)) == "-0.0");
  CHECK(to_json(Value(0.1)) == "0.1");
  CHECK(to_json(Value(1e20)) == "1e+20");
  CHECK(to_json(Value(5e-324)) == "5e-324");
  CHECK(to_json(Value(123456.0)) == "123456.0");
  CHECK(to_json(Value(NAN)) == "\"NaN\"");
  CHECK(to_json(Value(HUGE_VAL)) == "\"Infinity\"");
  CHECK(to_json(Value(-HUGE_VAL)) == "\"-Infinity\"");
  CHECK(to_json(Value("a\"\\\n\x01é")) == "\"a\\\"\\\\\\n\\u0001é\"");
  CHECK(to_json(Value("\xff\x00z")) == "{\"$bytes\":\"/w==\"}");
}

TEST_CASE("tables are written as JSON") {
  CHECK(to_json(Value::list({})) == "[]");
  CHECK(to_json(Value::list({1, "x", Value::list({2.0})})) == "[1,\"x\",[2.0]]");
  CHECK(to_json(Value::map({{"b", 1}, {"a", Value::list({})}})) == "{\"a\":[],\"b\":1}");
  CHECK(to_json(Value::Table{{"x"}, {{"k", 1}}}) == "{\"$map\":[[1,\"x\"],[\"k\",1]]}");
  CHECK(to_json(Value::map({{true, 1}})) == "{\"$map\":[[true,1]]}");
  CHECK(to_json(Value::map({{"$map", 1}})) == "{\"$map\":[[\"$map\",1]]}");
  CHECK(to_json(Value::map({{"$a", 1}, {"b", 2}})) == "{\"$a\":1,\"b\":2}");
  CHECK(to_json(Value::map({{"\xff", 1}})) == "{\"$map\":[[{\"$bytes\":\"/w==\"},1]]}");
}

TEST_CASE("tensors, files and handles are written as JSON") {
  CHECK(to_json(Tensor{DType::f32, {2, 3}, Digest{}, nullptr}) ==
        "{\"$tensor\":{\"dtype\":\"f32\",\"shape\":[2,3],\"digest\":\"" + std::string(64, '0') +
            "\"}}");
  File file;
  file.name = "a.csv";
  file.size = 5;
  CHECK(to_json(file) ==
        "{\"$file\":{\"name\":\"a.csv\",\"size\":5,\"digest\":\"" + std::string(64, '0') + "\"}}");
  CHECK(to_json(Ref{3, {{false, "x"}, {true, "bam"}}}) ==
        "{\"$ref\":{\"node\":3,\"path\":[{\"key\":\"x\"},{\"each\":\"bam\"}]}}");
}

TEST_CASE("JSON is written with indentation") {
  Value value = Value::map({{"a", Value::list({1, 2})}, {"b", Value::list({})}});
  CHECK(to_json(value, 2) == "{\n  \"a\": [\n    1,\n    2\n  ],\n  \"b\": []\n}");
}

TEST_CASE("JSON text is read as values") {
  CHECK(parsed("null") == Value::null());
  CHECK(parsed(" [1, 2.0, \"x\", {}] ") == Value::list({1, 2.0, "x", Value::list({})}));
  CHECK(parsed("9223372036854775807") == Value(INT64_MAX));
  CHECK(parsed("-9223372036854775808") == Value(INT64_MIN));
  CHECK(parsed("9223372036854775808") == Value(0x1p63));
  CHECK(parsed("18446744073709551616") == Value(0x1p64));
  CHECK(parsed("1e3") == Value(1000.0));
  CHECK(parsed("{\"a\":1,\"a\":2}") == Value::map({{"a", 2}}));
  CHECK(parsed("{\"a\":null}") == Value::map({{"a", Value::null()}}));
  CHECK(parsed("{\"1\":2}") == Value::map({{"1", 2}}));
  CHECK(parsed("{\"$map\":[[1,\"x\"],[true,2]]}") == Value::map({{1, "x"}, {true, 2}}));
  CHECK(parsed("{\"$bytes\":\"/w==\"}") == Value("\xff"));
  CHECK(parsed("{\"$tensor\":{}}") == Value::map({{"$tensor", Value::list({})}}));
  CHECK(parsed("\"\\u00e9\\ud83d\\ude00\"") == Value("é😀"));
}

TEST_CASE("invalid JSON is an error with its position") {
  CHECK(refusal("") ==
        "this is not JSON: line 1, column 1: syntax error while parsing value - unexpected end of "
        "input; expected '[', '{', or a literal");
  CHECK_THAT(refusal("{\n  \"a\": tru\n}"), Catch::StartsWith("this is not JSON: line 2, column "));
  CHECK_THAT(refusal("[1,]"), Catch::Contains("line 1, column 4"));
  CHECK_THAT(refusal("[1] 2"), Catch::Contains("line 1, column 5"));
  CHECK_THAT(refusal("NaN"), Catch::StartsWith("this is not JSON"));
  CHECK_THAT(refusal("1e999"), Catch::StartsWith("this is not JSON"));
  CHECK_THAT(refusal("\"\xff\""), Catch::StartsWith("this is not JSON"));
  CHECK(refusal(std::string("{\"a\":1}\0garbage", 15)) ==
        "this is not JSON: line 1, column 8: a NUL byte");
  CHECK(refusal(std::string("[\n\"\0\"]", 6)) == "this is not JSON: line 2, column 2: a NUL byte");
}

TEST_CASE("an object that flow would not have written is read as an ordinary object") {
  auto is_object = [](const char* text, const char* name, const Value& value) {
    Value read = parsed(text);
    CHECK(read == Value::map({{name, value}}));
    CHECK(parsed(to_json(read)) == read);
    CHECK(parsed(to_plain_json(read)) == read);
  };
  is_object("{\"$map\":5}", "$map", Value(5));
  is_object("{\"$map\":[]}", "$map", Value::list({}));
  is_object("{\"$map\":[[1.5,2]]}", "$map", Value::list({Value::list({1.5, 2})}));
  is_object("{\"$map\":[[\"a\",1]]}", "$map", Value::list({Value::list({"a", 1})}));
  is_object("{\"$bytes\":12}", "$bytes", Value(12));
  is_object("{\"$bytes\":\"/w=\"}", "$bytes", Value("/w="));
  is_object("{\"$bytes\":\"aGVsbG8=\"}", "$bytes", Value("aGVsbG8="));
  is_object("{\"$ref\":\"#/x\"}", "$ref", Value("#/x"));
  CHECK(to_json(parsed("{\"$ref\":\"#/x\"}")) == "{\"$map\":[[\"$ref\",\"#/x\"]]}");
  CHECK(to_plain_json(parsed("{\"$ref\":\"#/x\"}")) == "{\"$ref\":\"#/x\"}");
  CHECK(to_plain_json(parsed("{\"$bytes\":1}")) == "{\"$map\":[[\"$bytes\",1]]}");
}

TEST_CASE("an integer beyond 64 bits becomes a number if that is exact, else its digits") {
  CHECK(parsed("12345678901234567890") == Value("12345678901234567890"));
  CHECK(parsed("-9223372036854775809") == Value("-9223372036854775809"));
  CHECK(parsed("100000000000000000000000000000000000001") ==
        Value("100000000000000000000000000000000000001"));
  CHECK(parsed("100000000000000000000") == Value(1e20));
  CHECK(parsed("123456789012345680000") ==
        Value(123456789012345680000.0));  // as JavaScript prints it
  CHECK(parsed("12345678901234567890.0") == Value(12345678901234567890.0));
}

TEST_CASE("JSON is read up to depth 200 and no deeper") {
  CHECK(from_json(std::string(200, '[') + std::string(200, ']')).ok());
  CHECK_THAT(refusal(std::string(201, '[') + std::string(201, ']')),
             Catch::Contains("deeper than 200"));
  CHECK_FALSE(from_json(std::string(1'000'000, '[')).ok());
}

TEST_CASE("random plain values survive JSON") {
  uint64_t seed = GENERATE(take(20, random(uint64_t{1}, uint64_t{1} << 60)));
  INFO("seed " << seed);
  test::RandomValue random(seed);
  for (int i = 0; i < 200; i++) {
    Value value = random.value();
    if (!is_plain(value)) continue;
    for (int indent : {-1, 2}) {
      std::string text = to_json(value, indent);
      INFO("value " << i << ": " << text);
      auto back = from_json(text);
      REQUIRE(back.ok());
      REQUIRE(*back == value);
    }
  }
}
