// The encodings of the Open Inference Protocol v2: accepted and rejected requests, error texts, and
// responses.
#include <fmt/format.h>

#include <bit>
#include <catch2/catch.hpp>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "engine/serve/oip.hpp"
#include "engine/serve/oip_datatypes.hpp"
#include "engine/value/byte_elements.hpp"
#include "engine/value/utf8.hpp"

using Catch::Contains;
using namespace flow;

namespace {

template <typename T>
std::vector<T> items(const Tensor& tensor) {
  std::vector<T> all(tensor.data->size() / sizeof(T));
  std::memcpy(all.data(), tensor.data->data(), all.size() * sizeof(T));
  return all;
}

InferRequest parsed(const std::string& body, std::optional<uint64_t> json_bytes = {}) {
  auto request = parse_infer_request(body, json_bytes);
  INFO((request.ok() ? "" : request.error().message));
  REQUIRE(request.ok());
  return *request;
}

Tensors read(const std::string& body) { return parsed(body).inputs; }

std::string refusal(const std::string& body, std::optional<uint64_t> json_bytes = {}) {
  auto request = parse_infer_request(body, json_bytes);
  if (request.ok()) return "accepted";
  CHECK(request.error().kind == ErrorKind::user);
  CHECK(is_utf8(request.error().message));
  return request.error().message;
}

std::string one_input(const std::string& fields) { return "{\"inputs\":[{" + fields + "}]}"; }

template <typename T>
Tensor tensor_of(DType dtype, std::vector<int64_t> shape, const std::vector<T>& values) {
  std::string bytes(values.size() * sizeof(T), '\0');
  if (!values.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  Tensor tensor;
  tensor.dtype = dtype;
  tensor.shape = std::move(shape);
  tensor.data = std::make_shared<const std::string>(std::move(bytes));
  return tensor;
}

}  // namespace

TEST_CASE("data may be flat or nested") {
  auto flat = read(one_input(R"("name":"x","shape":[2,2],"datatype":"FP32","data":[1,2,3,4.5])"));
  auto nested =
      read(one_input(R"("name":"x","shape":[2,2],"datatype":"FP32","data":[[1,2],[3,4.5]])"));
  CHECK(items<float>(flat.at("x")) == std::vector<float>{1, 2, 3, 4.5});
  CHECK(*flat.at("x").data == *nested.at("x").data);
  CHECK(flat.at("x").shape == std::vector<int64_t>{2, 2});
}

TEST_CASE("every datatype is read up to its limits") {
  auto tensor = [](const std::string& type, const std::string& data) {
    return read(one_input(R"("name":"x","shape":[2],"datatype":")" + type + R"(","data":)" + data))
        .at("x");
  };
  using Whole = std::vector<int32_t>;
  using Long = std::vector<int64_t>;
  using Bits = std::vector<uint16_t>;
  CHECK(items<uint8_t>(tensor("BOOL", "[true,false]")) == std::vector<uint8_t>{1, 0});
  CHECK(items<uint8_t>(tensor("UINT8", "[0,255]")) == std::vector<uint8_t>{0, 255});
  CHECK(items<int32_t>(tensor("UINT16", "[0,65535]")) == Whole{0, 65535});
  CHECK(items<int64_t>(tensor("UINT32", "[0,4294967295]")) == Long{0, 4294967295});
  CHECK(items<int64_t>(tensor("UINT64", "[0,9223372036854775807]")) == Long{0, INT64_MAX});
  CHECK(items<int32_t>(tensor("INT8", "[-128,127]")) == Whole{-128, 127});
  CHECK(items<int32_t>(tensor("INT16", "[-32768,32767]")) == Whole{-32768, 32767});
  CHECK(items<int32_t>(tensor("INT32", "[2147483647,-2147483648]")) == Whole{INT32_MAX, INT32_MIN});
  CHECK(items<int64_t>(tensor("INT64", "[-9223372036854775808,9223372036854775807]")) ==
        Long{INT64_MIN, INT64_MAX});
  CHECK(items<uint16_t>(tensor("FP16", "[65504,-6e-8]")) == Bits{0x7bff, 0x8001});
  CHECK(items<uint16_t>(tensor("BF16", "[3.3895314e38,-1]")) == Bits{0x7f7f, 0xbf80});
  CHECK(items<float>(tensor("FP32", "[3.4028235e38,-3.4028235e38]")) ==
        std::vector<float>{3.4028235e38f, -3.4028235e38f});
  CHECK(items<double>(tensor("FP64", "[0.1,1.7976931348623157e308]")) ==
        std::vector<double>{0.1, 1.7976931348623157e308});
}

TEST_CASE("the tensor of a datatype that tensors lack is of the next one that holds its values") {
  auto dtype = [](const std::string& type) {
    return read(one_input(R"("name":"x","shape":[1],"data":[1],"datatype":")" + type + "\""))
        .at("x")
        .dtype;
  };
  CHECK(dtype("INT8") == DType::i32);
  CHECK(dtype("INT16") == DType::i32);
  CHECK(dtype("UINT16") == DType::i32);
  CHECK(dtype("UINT32") == DType::i64);
  CHECK(dtype("UINT64") == DType::i64);
  CHECK(dtype("FP16") == DType::f16);
  CHECK(dtype("BF16") == DType::bf16);
}

TEST_CASE("each single-precision number is read as the nearest float") {
  std::mt19937_64 random(1);
  auto check = [](const std::string& text) {
    float value = 0;
    std::from_chars(text.data(), text.data() + text.size(), value);
    auto read_value = items<float>(
        read(one_input(R"("name":"x","shape":[1],"datatype":"FP32","data":[)" + text + "]"))
            .at("x"))[0];
    INFO(text);
    CHECK(std::bit_cast<uint32_t>(read_value) == std::bit_cast<uint32_t>(value));
  };
  for (int i = 0; i < 3'000; i++) {
    auto value = std::bit_cast<float>(static_cast<uint32_t>(random()));
    if (!std::isfinite(value)) continue;
    check(fmt::format("{}", value));
    check(fmt::format("{}", static_cast<double>(value)));
    check(fmt::format("{:.25e}", value));
    check(fmt::format("{}e{}", random() >> (random() % 64), static_cast<int>(random() % 50) - 40));
  }
  // Halfway between two floats, just above it, and just below.
  for (const char* text : {"16777217", "16777217.000000001", "16777216.999999999", "16777219",
                           "33554434.0000", "-16777217", "0.1", "1e-45", "7e-46", "-0", "-0.0",
                           "123456789012345678901234567890", "0.00000000000000000000000000000001"})
    check(text);
}

TEST_CASE("each double-precision number is read as the nearest double") {
  std::mt19937_64 random(2);
  for (int i = 0; i < 3'000; i++) {
    auto value = std::bit_cast<double>(random());
    if (!std::isfinite(value)) continue;
    for (const std::string& text : {fmt::format("{}", value), fmt::format("{:.30e}", value)}) {
      INFO(text);
      CHECK(items<double>(
                read(one_input(R"("name":"x","shape":[1],"datatype":"FP64","data":[)" + text + "]"))
                    .at("x")) == std::vector<double>{value});
    }
  }
}

TEST_CASE("a number that is too small is zero") {
  auto value = [](const std::string& type, const std::string& number) {
    return read(one_input(R"("name":"x","shape":[1],"datatype":")" + type + R"(","data":[)" +
                          number + "]"))
        .at("x");
  };
  for (const char* number : {"1e-400", "0.1e-999999999999999999999", "0e999999"}) {
    CHECK(items<double>(value("FP64", number)) == std::vector<double>{0});
    CHECK(items<float>(value("FP32", number)) == std::vector<float>{0});
  }
  CHECK(items<double>(value("FP64", "0." + std::string(700, '0') + "1e390")) ==
        std::vector<double>{1e-311});
  CHECK(items<double>(value("FP64", "0." + std::string(1000, '0') + "1e600")) ==
        std::vector<double>{0});
  CHECK(items<double>(value("FP64", "1" + std::string(1000, '0') + "e-1000")) ==
        std::vector<double>{1});
}

TEST_CASE("a scalar has one element and no dimension, an empty tensor none") {
  Tensor scalar = read(one_input(R"("name":"x","shape":[],"datatype":"INT64","data":[7])")).at("x");
  CHECK(scalar.shape.empty());
  CHECK(items<int64_t>(scalar) == std::vector<int64_t>{7});
  CHECK(refusal(one_input(R"("name":"x","shape":[],"datatype":"INT64","data":[])")) ==
        "inputs[0].data has 0 values, its shape needs 1");
  Tensor empty =
      read(one_input(R"("name":"x","shape":[67108864,2048,0],"datatype":"FP64","data":[[],[]])"))
          .at("x");
  CHECK(empty.shape == std::vector<int64_t>{67108864, 2048, 0});
  CHECK(empty.data->empty());
}

TEST_CASE("an empty tensor has no larger shape than a tensor of a script may have") {
  auto with = [](const std::string& datatype, const std::string& shape) {
    return refusal(
        one_input(R"("name":"x","data":[],"datatype":")" + datatype + R"(","shape":)" + shape));
  };
  CHECK(with("FP64", "[0,67108864,2049]") ==
        "inputs[0].shape is larger than that of an empty tensor may be (137438953472 elements, if "
        "each size 0 counts as 1)");
  CHECK(with("FP32", "[67108864,0,4096]") == "accepted");
  CHECK_THAT(with("FP32", "[67108864,0,4097]"), Catch::Contains("(274877906944 elements, "));
  // A tensor holds it in four bytes.
  CHECK_THAT(with("UINT16", "[67108864,4097,0]"), Catch::Contains("(274877906944 elements, "));
  CHECK_THAT(with("FP32", "[0,67108864,67108864]"), Catch::Contains(".shape is larger"));
}

TEST_CASE("the fields of a request may come in any order, with spaces and escapes") {
  auto request = parsed(
      "\n{ \"inputs\" : [ {\"d\\u0061ta\" : [ [ 1 ,\t2 ] ,\r\n[ 3 ,4 ] ] , \"datatype\":\"INT32\", "
      "\"shape\" :[ 2, 2 ],\"name\":\"\\u00e4\\ud83d\\ude00\"} ] , \"id\":\"\\n\" }  \n");
  CHECK(request.id == "\n");
  CHECK(items<int32_t>(request.inputs.at("\xc3\xa4\xf0\x9f\x98\x80")) ==
        std::vector<int32_t>{1, 2, 3, 4});
}

TEST_CASE("the id, all inputs and the wanted outputs of a request are kept") {
  auto request = parsed(
      R"({"id":"42","inputs":[{"name":"a","shape":[1],"datatype":"FP32","data":[1]},
                              {"name":"b","shape":[0],"datatype":"INT64","data":[]}],
          "outputs":[{"name":"y"},{"name":"z","parameters":{"binary_data":true}}],
          "parameters":{"priority":3,"deep":[[{}]],"binary_data_output":null},"other":[1,{"a":[]}]})");
  CHECK(request.id == "42");
  CHECK(request.inputs.size() == 2);
  CHECK(request.inputs.at("b").data->empty());
  REQUIRE(request.outputs.size() == 2);
  CHECK(request.outputs[0].name == "y");
  CHECK_FALSE(request.outputs[0].is_binary);
  CHECK(request.outputs[1].name == "z");
  CHECK(request.outputs[1].is_binary);
  CHECK_FALSE(request.are_outputs_binary);
}

TEST_CASE("a null is as good as no field") {
  auto request = parsed(
      R"({"id":null,"parameters":null,"outputs":null,"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":[1],"parameters":null}]})");
  CHECK(request.id.empty());
  CHECK(request.outputs.empty());
}

TEST_CASE("a request whose memory has no room behind it is read") {
  std::string body = one_input(R"("name":"x","shape":[3],"datatype":"FP32","data":[1,2,3])");
  body.shrink_to_fit();
  CHECK(items<float>(read(body).at("x")) == std::vector<float>{1, 2, 3});
}

TEST_CASE("large requests are read one after another") {
  for (size_t count : {3'000'000u, 10u, 2'000'000u}) {
    std::string data = "[";
    for (size_t i = 0; i < count; i++) data += i == 0 ? "1" : ",1";
    Tensor tensor = read(one_input(R"("name":"x","datatype":"UINT8","shape":[)" +
                                   std::to_string(count) + R"(],"data":)" + data + "]"))
                        .at("x");
    CHECK(*tensor.data == std::string(count, 1));
  }
}

TEST_CASE("a malformed request is rejected with its fault") {
  using Catch::Contains;
  CHECK_THAT(refusal(""), Contains("JSON"));
  CHECK_THAT(refusal("{"), Contains("JSON"));
  CHECK_THAT(refusal("[1,2]"), Contains("inputs"));
  CHECK_THAT(refusal("3"), Contains("inputs"));
  CHECK_THAT(refusal("{}"), Contains("inputs"));
  CHECK_THAT(refusal(R"({"inputs":[]})"), Contains("inputs"));
  CHECK_THAT(refusal(R"({"inputs":{"x":1}})"), Contains("inputs"));
  CHECK_THAT(refusal(R"({"inputs":[7]})"), Contains("inputs[0] is not an object"));
  CHECK_THAT(refusal(one_input(R"("name":7)")), Contains("name"));
  CHECK_THAT(refusal(one_input(R"("name":"x")")), Contains("datatype"));
  CHECK_THAT(refusal(one_input(R"("name":"x","datatype":"FP32","data":[])")), Contains("shape"));
  CHECK_THAT(refusal(one_input(R"("name":"x","datatype":"FP32","shape":[1])")), Contains("data"));
  CHECK_THAT(refusal(one_input(R"("name":"x","datatype":"fp32","shape":[1],"data":[1])")),
             Contains("FP32"));
  CHECK_THAT(refusal(one_input(R"("name":"x","datatype":"FP32","shape":[-1],"data":[])")),
             Contains("shape"));
  CHECK_THAT(refusal(one_input(R"("name":"x","datatype":"FP32","shape":[1.5],"data":[1])")),
             Contains("shape"));
  CHECK_THAT(refusal(one_input(R"("name":"x","datatype":"FP32","shape":[2],"data":[1])")),
             Contains("its shape needs 2"));
  CHECK_THAT(refusal(one_input(R"("name":"x","datatype":"FP32","shape":[1],"data":["1"])")),
             Contains("data[0]"));
  CHECK_THAT(refusal(one_input(R"("name":"x","datatype":"FP32","shape":[1],"data":7)")),
             Contains("data"));
  CHECK_THAT(refusal(one_input(R"("name":"x","datatype":"UINT8","shape":[1],"data":[256])")),
             Contains("data[0]"));
  CHECK_THAT(refusal(one_input(R"("name":"x","datatype":"INT32","shape":[1],"data":[1.5])")),
             Contains("data[0]"));
  CHECK_THAT(refusal(one_input(R"("name":"x","datatype":"BOOL","shape":[1],"data":[1])")),
             Contains("data[0]"));
  CHECK_THAT(refusal(one_input(
                 R"("name":"x","datatype":"FP32","shape":[4294967296,4294967296],"data":[])")),
             Contains("shape"));
  CHECK_THAT(
      refusal(one_input(R"("name":"x","datatype":"FP32","shape":[0,67108864,64],"data":[1])")),
      Contains("data"));
  CHECK_THAT(
      refusal(
          R"({"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":[1]},{"name":"x","shape":[1],"datatype":"FP32","data":[1]}]})"),
      Contains("two inputs"));
  CHECK_THAT(refusal(std::string(100'000, '[')), Contains("JSON"));
}

TEST_CASE("a value that its datatype cannot hold is an error of the client that names it") {
  auto refused = [](const std::string& type, const std::string& data) {
    return refusal(
        one_input(R"("name":"x","shape":[1],"datatype":")" + type + R"(","data":)" + data));
  };
  CHECK(refused("FP32", "[1e300]") ==
        "inputs[0].data[0] of `x` is 1e+300, but FP32 holds numbers up to 3.4028235e38");
  CHECK(refused("FP32", "[[0.5],[3.41e38]]") ==
        "inputs[0].data[1][0] of `x` is 3.41e+38, but FP32 holds numbers up to 3.4028235e38");
  CHECK(refused("FP32", "[\"NaN\"]") ==
        "inputs[0].data[0] of `x` is \"NaN\", but each value of FP32 must be a number");
  CHECK(refused("FP32", "[null]") ==
        "inputs[0].data[0] of `x` is null, but each value of FP32 must be a number");
  CHECK(refused("FP64", "[\"Infinity\"]") ==
        "inputs[0].data[0] of `x` is \"Infinity\", but each value of FP64 must be a number");
  CHECK(refused("FP64", "[-1e400]") ==
        "inputs[0].data[0] of `x` is -1e400, but FP64 holds numbers up to 1.7976931348623157e308");
  CHECK_THAT(refused("FP64", "[NaN]"), Catch::Contains("JSON"));
  for (const char* number : {"9223372036854775808", "-9223372036854775809", "18446744073709551615",
                             "18446744073709551616", "1e300", "0.5"}) {
    CHECK_THAT(refused("INT64", std::string("[") + number + "]"),
               Catch::StartsWith("inputs[0].data[0] of `x` is ") &&
                   Catch::EndsWith("but INT64 holds whole numbers from -9223372036854775808 to "
                                   "9223372036854775807"));
  }
  for (const char* number : {"2147483648", "-2147483649", "1e10"})
    CHECK_THAT(refused("INT32", std::string("[") + number + "]"),
               Catch::Contains("but INT32 holds"));
  for (const char* number : {"256", "-1", "1.5"})
    CHECK_THAT(refused("UINT8", std::string("[") + number + "]"),
               Catch::EndsWith("but UINT8 holds whole numbers from 0 to 255"));
  CHECK_THAT(refused("BOOL", "[1]"), Catch::EndsWith("is 1, but BOOL holds true and false"));
  CHECK_THAT(refused("INT4", "[1]"), Catch::StartsWith("inputs[0].datatype `INT4` is not one of"));
  CHECK(refused("INT8", "[128]") ==
        "inputs[0].data[0] of `x` is 128, but INT8 holds whole numbers from -128 to 127");
  CHECK_THAT(refused("UINT32", "[4294967296]"), Catch::Contains("from 0 to 4294967295"));
  CHECK_THAT(refused("UINT64", "[-1]"), Catch::Contains("is -1, but UINT64 holds whole numbers"));
  CHECK_THAT(refused("UINT64", "[9223372036854775808]"),
             Catch::Contains("up to 9223372036854775807"));
  CHECK_THAT(refused("FP16", "[65520]"),
             Catch::EndsWith("is 65520, but FP16 holds numbers up to 65504"));
  CHECK_THAT(refused("BF16", "[3.4e38]"),
             Catch::EndsWith("but BF16 holds numbers up to 3.3895314e38"));
  for (const char* item : {"true", "null", "\"\\\"\""})
    CHECK_THAT(refused("INT32", std::string("[1,[") + item + "]]"),
               Catch::StartsWith(std::string("inputs[0].data[1][0] of `x` is ") + item +
                                 ", but each value of INT32 must be a whole number"));
  CHECK(refused("INT32", "[{\"a\":[1]}]") ==
        "inputs[0].data[0] of `x` is an object, but each value of INT32 must be a whole number");
  CHECK_THAT(refused("BOOL", "[null]"), Catch::EndsWith("is null, but BOOL holds true and false"));
  CHECK_THAT(refused("INT32", "[1.0]"), Catch::Contains("is 1, but INT32"));
}

TEST_CASE("an error is valid text, whatever was sent") {
  std::string umlauts = "\"a";
  for (int i = 0; i < 30; i++) umlauts += "\xc3\xa4";
  std::string message =
      refusal(one_input(R"("name":"x","shape":[1],"datatype":"INT32","data":[)" + umlauts + "\"]"));
  CHECK(to_json(Value(message)).starts_with('"'));
  CHECK(
      refusal(one_input(R"("name":{"$bytes":"/w=="},"shape":[1],"datatype":"INT32","data":[1])")) ==
      "inputs[0].name is not text");
}

TEST_CASE("the error of text that is not JSON says so once, and names a byte order mark") {
  CHECK(refusal("{\"a\": tru}") ==
        "the body is not JSON: line 1, column 10: syntax error while parsing value - invalid "
        "literal; last read: '\"a\": tru}'");
  CHECK(refusal("\xef\xbb\xbf" +
                one_input(R"("name":"x","shape":[1],"datatype":"FP32","data":[1])")) ==
        "the body is not JSON: it begins with a byte order mark (the bytes EF BB BF); send it "
        "without the mark");
}

TEST_CASE("text that is not JSON is rejected wherever it is") {
  auto whole = [](const std::string& data, const std::string& more = "") {
    return R"({"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":)" + data + "}]" + more +
           "}";
  };
  REQUIRE(refusal(whole("[1]")) == "accepted");
  for (const char* data :
       {"[01]",        "[1.]",  "[.5]",     "[+1]",      "[-]",    "[1e]",        "[1e+]",
        "[0x1]",       "[1 2]", "[1,]",     "[,1]",      "[1,,1]", "[1}",         "[[1]",
        "[1]]",        "[tru]", "[truee]",  "[NaN]",     "[nan]",  "[-Infinity]", "[1a]",
        "[1\\u0020]",  "[\"a]", "[\"\\x\"", "['1']",     "[1]1",   "[1],",        "[1/*a*/]",
        "[1\xc2\xa0]", "[1;2]", "[1:2]",    "[\"a\":1]", "[--1]",  "[1-]",        "[1e5.5]",
        "[00]",        "[-01]"})
    CHECK_THAT(refusal(whole(data)), Catch::StartsWith("the body is not JSON: "));
  for (const char* more : {",",
                           ",\"a\"",
                           ",\"a\":",
                           ",\"a\":01",
                           ",\"a\":nul",
                           ",\"a\":[1,]",
                           ",\"a\":{\"b\"}",
                           ",\"a\":{,}",
                           ",\"a\":\"\\x\"",
                           ",\"a\":\"\\ud800\"",
                           ",\"a\":1 2",
                           ",a:1",
                           ",\"\\q\":1",
                           ",\"a\":[}",
                           ",\"a\":\"\t\"",
                           ",\"a\":1,",
                           ",1:2",
                           ",\"a\":TRUE",
                           "}",
                           "]",
                           "{",
                           "\"",
                           ",\"a\":{\"b\":1]",
                           ",\"a\":\"\xff\"",
                           ",\"parameters\":{\"a\":tru}",
                           ",\"id\":\"\\u12\""})
    CHECK_THAT(refusal(whole("[1]", more)), Catch::StartsWith("the body is not JSON: "));
  for (const char* body : {"", " ", "not json", "nul", "tru", "01", "\"", "{", "[", "[1,2", "{} {}",
                           "{},", "]", "}", "{}}", "\xef\xbb\xbf{}", "\xff\xfe", "{\"a\":1]"}) {
    INFO(body);
    CHECK_THAT(refusal(body), Catch::StartsWith("the body is not JSON: "));
  }
  CHECK_THAT(refusal(whole("[1]") + std::string("\0more", 5)),
             Catch::StartsWith("the body is not JSON: "));
  CHECK_THAT(refusal(whole("[1]") + std::string(1, '\0')),
             Catch::StartsWith("the body is not JSON: "));
}

TEST_CASE("a fault of a long text is named with its line and column") {
  std::string many = "[";
  for (int i = 0; i < 50'000; i++) many += "1,";
  CHECK(refusal("{\n\"inputs\":[{\"name\":\"x\",\"shape\":[1],\"datatype\":\"FP32\",\n\"data\":" +
                many + "nan]}]}") ==
        "the body is not JSON: line 3, column 100009: this is not a value, a comma or the end of "
        "the array");
}

TEST_CASE("each field has the kind that the protocol says") {
  std::string input = R"({"name":"x","shape":[1],"datatype":"FP32","data":[1]})";
  auto with = [&](const std::string& more) {
    return refusal(R"({"inputs":[)" + input + "]," + more + "}");
  };
  CHECK(with(R"("id":7)") == "id is not text");
  CHECK(with(R"("id":")" + std::string(1025, 'a') + '"') == "id has more than 1024 bytes");
  CHECK(with(R"("outputs":{})") == "outputs is not an array");
  CHECK(with(R"("outputs":["y"])") == "outputs[0] is not an object");
  CHECK(with(R"("outputs":[{}])") == "outputs[0].name is missing");
  CHECK(with(R"("outputs":[{"name":1}])") == "outputs[0].name is not text");
  CHECK(with(R"("outputs":[{"name":"y","parameters":{"binary_data":1}}])") ==
        "outputs[0].parameters.binary_data is not true or false");
  CHECK_THAT(with(R"("outputs":[{"name":"y","parameters":{"classification":3}}])"),
             Catch::StartsWith("outputs[0].parameters.classification is not supported: "));
  CHECK(with(R"("outputs":[{"name":"y"},{"name":"y"}])") == "two outputs are named `y`");
  CHECK(with(R"("parameters":[])") == "parameters is not an object");
  CHECK(with(R"("parameters":{"binary_data_output":"yes"})") ==
        "parameters.binary_data_output is not true or false");
  CHECK_THAT(refusal(one_input(R"("name":"x","datatype":"FP32","shape":[2,-1],"data":[])")),
             Catch::Equals("inputs[0].shape[1] is not a whole number from 0 to 67108864"));
  CHECK(refusal(one_input(R"("name":"x","datatype":"FP32","shape":[2.0],"data":[1,2])")) ==
        "inputs[0].shape[0] is not a whole number from 0 to 67108864");
  CHECK(refusal(one_input(R"("name":"x","datatype":"FP32","shape":2,"data":[1,2])")) ==
        "inputs[0].shape is not an array");
  CHECK(refusal(one_input(R"("name":"x","datatype":"FP32","shape":[1],"data":{"a":1})")) ==
        "inputs[0].data is not an array");
}

TEST_CASE("a field that comes twice is an error, because servers would differ in their choice") {
  CHECK(refusal(R"({"inputs":[],"inputs":[]})") == "the body has two fields `inputs`");
  CHECK(refusal(
            one_input(R"("name":"x","shape":[1],"datatype":"FP32","data":[1],"d\u0061ta":[2])")) ==
        "inputs[0] has two fields `data`");
  CHECK(refusal(one_input(R"("name":"x","name":null,"shape":[1],"datatype":"FP32","data":[1])")) ==
        "inputs[0] has two fields `name`");
}

TEST_CASE("the counts of inputs, dimensions and levels are bounded") {
  std::string inputs;
  for (int i = 0; i < 65; i++)
    inputs += fmt::format(R"({}{{"name":"{}","shape":[1],"datatype":"FP32","data":[1]}})",
                          i > 0 ? "," : "", i);
  CHECK(refusal("{\"inputs\":[" + inputs + "]}") == "inputs has more than 64 items");
  CHECK(refusal(
            one_input(R"("name":"x","shape":[1,1,1,1,1,1,1,1,1],"datatype":"FP32","data":[1])")) ==
        "inputs[0].shape has more than 8 items");
  auto nested = [](size_t depth) {
    return std::string(depth, '[') + "1" + std::string(depth, ']');
  };
  CHECK(refusal(one_input(R"("name":"x","shape":[1],"datatype":"FP32","data":)" + nested(64))) ==
        "accepted");
  CHECK(refusal(one_input(R"("name":"x","shape":[1],"datatype":"FP32","data":)" + nested(65))) ==
        "inputs[0].data of `x` is nested deeper than 64");
  CHECK(refusal("{\"a\":" + nested(65) + "}") == "the JSON is nested deeper than 64");
}

TEST_CASE("a shape that its data cannot fill takes no memory") {
  for (int i = 0; i < 1000; i++)
    CHECK(refusal(one_input(R"("name":"x","shape":[67108864],"datatype":"FP64","data":[1,2])")) ==
          "inputs[0].data has 2 values, its shape needs 67108864");
}

namespace {

template <typename T>
std::string bytes_of(const std::vector<T>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

std::string binary_input(const std::string& name, const std::string& type, size_t count,
                         size_t bytes) {
  return fmt::format(
      R"({{"name":"{}","shape":[{}],"datatype":"{}","parameters":{{"binary_data_size":{}}}}})",
      name, count, type, bytes);
}

}  // namespace

TEST_CASE("binary tensors follow the JSON in the order of the inputs") {
  std::string json = "{\"inputs\":[" + binary_input("z", "FP32", 2, 8) +
                     R"(,{"name":"j","shape":[1],"datatype":"INT32","data":[5]},)" +
                     binary_input("a", "INT16", 3, 6) + "]}";
  auto request = parsed(json + bytes_of<float>({1.5f, std::numeric_limits<float>::infinity()}) +
                            bytes_of<int16_t>({-1, 2, -32768}),
                        json.size());
  CHECK(items<float>(request.inputs.at("z")) ==
        std::vector<float>{1.5f, std::numeric_limits<float>::infinity()});
  CHECK(items<int32_t>(request.inputs.at("j")) == std::vector<int32_t>{5});
  CHECK(items<int32_t>(request.inputs.at("a")) == std::vector<int32_t>{-1, 2, -32768});
}

TEST_CASE("binary data of every datatype is read") {
  auto tensor = [](const std::string& type, size_t count, const std::string& data) {
    std::string json = "{\"inputs\":[" + binary_input("x", type, count, data.size()) + "]}";
    return parsed(json + data, json.size()).inputs.at("x");
  };
  CHECK(items<uint8_t>(tensor("BOOL", 2, bytes_of<uint8_t>({1, 0}))) == std::vector<uint8_t>{1, 0});
  CHECK(items<uint8_t>(tensor("UINT8", 2, bytes_of<uint8_t>({255, 0}))) ==
        std::vector<uint8_t>{255, 0});
  CHECK(items<int32_t>(tensor("UINT16", 1, bytes_of<uint16_t>({65535}))) ==
        std::vector<int32_t>{65535});
  CHECK(items<int64_t>(tensor("UINT32", 1, bytes_of<uint32_t>({UINT32_MAX}))) ==
        std::vector<int64_t>{UINT32_MAX});
  CHECK(items<int64_t>(tensor("UINT64", 1, bytes_of<uint64_t>({INT64_MAX}))) ==
        std::vector<int64_t>{INT64_MAX});
  CHECK(items<int32_t>(tensor("INT8", 2, bytes_of<int8_t>({-128, 127}))) ==
        std::vector<int32_t>{-128, 127});
  CHECK(items<int32_t>(tensor("INT32", 1, bytes_of<int32_t>({-7}))) == std::vector<int32_t>{-7});
  CHECK(items<int64_t>(tensor("INT64", 1, bytes_of<int64_t>({-7}))) == std::vector<int64_t>{-7});
  CHECK(items<uint16_t>(tensor("FP16", 1, bytes_of<uint16_t>({0x3c00}))) ==
        std::vector<uint16_t>{0x3c00});
  CHECK(items<uint16_t>(tensor("BF16", 1, bytes_of<uint16_t>({0x7fc0}))) ==
        std::vector<uint16_t>{0x7fc0});
  CHECK(items<double>(tensor("FP64", 1, bytes_of<double>({0.1}))) == std::vector<double>{0.1});
  CHECK(tensor("FP32", 0, "").data->empty());
}

TEST_CASE("binary data that does not match the JSON is an error that says how") {
  auto body = [](const std::string& inputs) { return "{\"inputs\":[" + inputs + "]}"; };
  std::string json = body(binary_input("x", "FP32", 2, 8));
  std::string place = "inputs[0].parameters.binary_data_size";
  CHECK(refusal(json + "12345678") != "accepted");
  CHECK(refusal(json) == place + " needs the header field `Inference-Header-Content-Length`");
  CHECK(refusal(json + "1234567", json.size()) ==
        place + " is 8, but only 7 bytes of the body are left for it");
  CHECK(refusal(json + "123456789", json.size()) == "1 bytes follow the data of the last input");
  CHECK(refusal(json, json.size() + 1) ==
        fmt::format("the header field `Inference-Header-Content-Length` is {}, but the body has {} "
                    "bytes",
                    json.size() + 1, json.size()));
  CHECK_THAT(refusal(json + "12345678", json.size() - 1),
             Catch::StartsWith("the body is not JSON: "));
  CHECK_THAT(refusal(json + "12345678", 0), Catch::StartsWith("the body is not JSON: "));
  std::string seven = body(binary_input("x", "FP32", 2, 7));
  CHECK(refusal(seven + "1234567", seven.size()) ==
        place + " is 7, its shape and datatype need 8 bytes");
  std::string both = one_input(
      R"("name":"x","shape":[1],"datatype":"UINT8","data":[1],"parameters":{"binary_data_size":1})");
  CHECK(refusal(both + "1", both.size()) ==
        "inputs[0] has both `data` and `parameters.binary_data_size`");
  std::string flags = body(binary_input("x", "BOOL", 2, 2));
  CHECK(refusal(flags + "\x01\x02", flags.size()) ==
        "inputs[0].data[1] of `x` is 2, but BOOL holds true and false");
  std::string high = body(binary_input("x", "UINT64", 1, 8));
  CHECK_THAT(refusal(high + bytes_of<uint64_t>({UINT64_MAX}), high.size()),
             Catch::StartsWith("inputs[0].data[0] of `x` is 18446744073709551615, but UINT64"));
  CHECK_THAT(refusal(one_input(R"("name":"x","shape":[1],"datatype":"UINT8",)"
                               R"("parameters":{"binary_data_size":-1})")),
             Catch::StartsWith(place + " is not a whole number from 0 to "));
}

namespace {

std::string printed(const Tensors& outputs, const InferRequest& request = {}) {
  auto response = print_infer_response("m", request, outputs);
  INFO((response.ok() ? "" : response.error().message));
  REQUIRE(response.ok());
  CHECK(response->json_bytes == 0);
  return response->body;
}

// The text of one output's data.
template <typename T>
std::string printed_data(DType dtype, const std::vector<T>& values) {
  Tensors outputs{{"y", tensor_of<T>(dtype, {static_cast<int64_t>(values.size())}, values)}};
  std::string text = printed(outputs);
  size_t begin = text.find("\"data\":[") + 7;
  return text.substr(begin, text.rfind("}]}") - begin);
}

}  // namespace

TEST_CASE("a response is JSON with model, version, id, datatype and shape") {
  Tensors outputs;
  outputs["p"] = tensor_of<float>(DType::f32, {1, 2}, {0.5f, 0.25f});
  outputs["c"] = tensor_of<int64_t>(DType::i64, {}, {-7});
  outputs["ok"] = tensor_of<uint8_t>(DType::boolean, {2}, {1, 0});
  outputs["none"] = tensor_of<uint8_t>(DType::u8, {0, 3}, {});
  InferRequest request;
  request.id = "a\"b";
  auto response = print_infer_response("digits", request, outputs);
  REQUIRE(response.ok());
  CHECK(response->body == R"({"model_name":"digits","model_version":"1","id":"a\"b","outputs":[)"
                          R"({"name":"c","datatype":"INT64","shape":[],"data":[-7]},)"
                          R"({"name":"none","datatype":"UINT8","shape":[0,3],"data":[]},)"
                          R"({"name":"ok","datatype":"BOOL","shape":[2],"data":[true,false]},)"
                          R"({"name":"p","datatype":"FP32","shape":[1,2],"data":[0.5,0.25]}]})");
  CHECK(printed({}) == R"({"model_name":"m","model_version":"1","outputs":[]})");
}

TEST_CASE("numbers are printed as the shortest text that gives them again") {
  CHECK(printed_data<float>(DType::f32, {2, -0.0f, 0.1f, 1e-5f, 1e-4f, 1e16f, 3.4028235e38f, 1e15f,
                                         100000, -16777216}) ==
        "[2,-0,0.1,1e-05,0.0001,1e+16,3.4028235e+38,999999986991104,100000,-16777216]");
  CHECK(printed_data<double>(DType::f64, {1e300, 0.1, -5e-324, 123456789012, 1e15}) ==
        "[1e+300,0.1,-5e-324,123456789012,1000000000000000]");
  CHECK(printed_data<int32_t>(DType::i32, {INT32_MIN, INT32_MAX}) == "[-2147483648,2147483647]");
  CHECK(printed_data<int64_t>(DType::i64, {INT64_MIN, INT64_MAX}) ==
        "[-9223372036854775808,9223372036854775807]");
  CHECK(printed_data<uint8_t>(DType::u8, {0, 255}) == "[0,255]");
  CHECK(printed_data<uint16_t>(DType::f16, {0x3c00, 0x0001, 0xfbff}) == "[1,5.9604645e-08,-65504]");
  CHECK(printed_data<uint16_t>(DType::bf16, {0x3f80, 0xc000, 0x3dcd}) == "[1,-2,0.100097656]");
}

TEST_CASE("a printed tensor is read back unchanged") {
  std::mt19937_64 random(3);
  std::vector<float> floats;
  std::vector<double> doubles;
  std::vector<uint16_t> halves, bfloats;
  while (floats.size() < 1000) {
    auto single = std::bit_cast<float>(static_cast<uint32_t>(random()));
    auto twice = std::bit_cast<double>(random());
    if (std::isfinite(single)) floats.push_back(single);
    if (std::isfinite(twice)) doubles.push_back(twice);
  }
  for (uint32_t bits = 0; bits < 0x10000; bits++) {
    if ((bits & 0x7c00) != 0x7c00) halves.push_back(static_cast<uint16_t>(bits));
    if ((bits & 0x7f80) != 0x7f80) bfloats.push_back(static_cast<uint16_t>(bits));
  }
  auto again = [](const std::string& type, const std::string& data, size_t count) {
    return read(one_input(fmt::format(R"("name":"x","shape":[{}],"datatype":"{}","data":{})", count,
                                      type, data)))
        .at("x");
  };
  CHECK(items<float>(again("FP32", printed_data(DType::f32, floats), floats.size())) == floats);
  CHECK(items<double>(again("FP64", printed_data(DType::f64, doubles), doubles.size())) == doubles);
  CHECK(items<uint16_t>(again("FP16", printed_data(DType::f16, halves), halves.size())) == halves);
  CHECK(items<uint16_t>(again("BF16", printed_data(DType::bf16, bfloats), bfloats.size())) ==
        bfloats);
}

TEST_CASE("a request chooses the outputs and their order") {
  Tensors outputs{{"a", tensor_of<uint8_t>(DType::u8, {1}, {1})},
                  {"b", tensor_of<uint8_t>(DType::u8, {1}, {2})},
                  {"c", tensor_of<uint8_t>(DType::u8, {1}, {3})}};
  InferRequest request;
  request.outputs = {{"c", false}, {"a", false}};
  CHECK(printed(outputs, request) == R"({"model_name":"m","model_version":"1","outputs":[)"
                                     R"({"name":"c","datatype":"UINT8","shape":[1],"data":[3]},)"
                                     R"({"name":"a","datatype":"UINT8","shape":[1],"data":[1]}]})");
  request.outputs = {{"d", false}};
  auto response = print_infer_response("m", request, outputs);
  REQUIRE_FALSE(response.ok());
  CHECK(response.error().kind == ErrorKind::user);
  CHECK(response.error().message == "the model has no output `d`: it has `a`, `b`, `c`");
}

TEST_CASE("large binary outputs of one request are sent from their own memory") {
  Tensors outputs{{"a", tensor_of<float>(DType::f32, {5000}, std::vector<float>(5000, 1))},
                  {"b", tensor_of<uint8_t>(DType::u8, {1}, {2})}};
  InferRequest request;
  request.are_outputs_binary = true;
  auto copied = print_infer_response("m", request, outputs);
  REQUIRE(copied.ok());
  CHECK(copied->parts.empty());
  request.are_outputs_own = true;
  auto response = print_infer_response("m", request, outputs);
  REQUIRE(response.ok());
  CHECK(response->json_bytes == response->body.size());
  CHECK(response->json_bytes == copied->json_bytes);
  REQUIRE(response->parts.size() == 2);
  CHECK(response->parts[0]->data() == outputs.at("a").data->data());
  CHECK(response->body + std::string(*response->parts[0]) + std::string(*response->parts[1]) ==
        copied->body);
  outputs.erase("a");
  CHECK(print_infer_response("m", request, outputs)->parts.empty());
}

TEST_CASE("binary outputs follow the JSON, and may hold NaN") {
  float nan = std::numeric_limits<float>::quiet_NaN();
  Tensors outputs{{"a", tensor_of<float>(DType::f32, {2}, {nan, 1})},
                  {"b", tensor_of<uint8_t>(DType::u8, {1}, {2})},
                  {"c", tensor_of<int32_t>(DType::i32, {1}, {3})}};
  InferRequest request;
  request.outputs = {{"c", true}, {"b", false}, {"a", true}};
  auto response = print_infer_response("m", request, outputs);
  REQUIRE(response.ok());
  CHECK(response->body.substr(0, response->json_bytes) ==
        R"({"model_name":"m","model_version":"1","outputs":[)"
        R"({"name":"c","datatype":"INT32","shape":[1],"parameters":{"binary_data_size":4}},)"
        R"({"name":"b","datatype":"UINT8","shape":[1],"data":[2]},)"
        R"({"name":"a","datatype":"FP32","shape":[2],"parameters":{"binary_data_size":8}}]})");
  CHECK(response->body.substr(response->json_bytes) ==
        bytes_of<int32_t>({3}) + bytes_of<float>({nan, 1}));
}

TEST_CASE("the wish for binary outputs holds for all, and an output's own goes first") {
  auto request =
      parsed(R"({"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":[1]}],)"
             R"("outputs":[{"name":"a"},{"name":"b","parameters":{"binary_data":false}}],)"
             R"("parameters":{"binary_data_output":true}})");
  CHECK(request.are_outputs_binary);
  CHECK(request.outputs[0].is_binary);
  CHECK_FALSE(request.outputs[1].is_binary);
  request.outputs.clear();
  auto response =
      print_infer_response("m", request, {{"y", tensor_of<uint8_t>(DType::u8, {1}, {65})}});
  REQUIRE(response.ok());
  CHECK(response->json_bytes + 1 == response->body.size());
  CHECK(response->body.back() == 'A');
}

TEST_CASE("strings of JSON are elements of BYTES, and are printed again") {
  auto request = parsed(one_input(
      R"("name":"x","datatype":"BYTES","shape":[2,3],"data":[["","a\u0000\"\\\/\b\f\n\r\t"," \u00E9\u4e2d" ],)"
      R"([ "\ud83d\ude00","é中😀","\u007f"]])"));
  const InferTensor& x = request.inputs.at("x");
  REQUIRE(has_bytes(x));
  std::vector<std::string> elements;
  std::string_view rest = *x.data;
  while (auto element = take_element(rest)) elements.emplace_back(*element);
  CHECK(rest.empty());
  CHECK(elements == std::vector<std::string>{"", std::string("a\0\"\\/\b\f\n\r\t", 10), " é中", "😀",
                                             "é中😀", "\x7f"});
  CHECK(printed(request.inputs) ==
        R"({"model_name":"m","model_version":"1","outputs":[{"name":"x","datatype":"BYTES",)"
        R"("shape":[2,3],"data":["","a\u0000\"\\/\b\f\n\r\t"," é中","😀","é中😀",")"
        "\x7f\"]}]}");
}

TEST_CASE("a string that is not one, and a value that is none, are errors of the client") {
  auto of = [](const std::string& data) {
    return refusal(one_input(R"("name":"x","datatype":"BYTES","shape":[2],"data":)" + data));
  };
  CHECK(of(R"(["a"])") == "inputs[0].data has 1 values, its shape needs 2");
  CHECK(of(R"(["a","b","c"])") == "inputs[0].data has 3 values, its shape needs 2");
  CHECK(of(R"(["a",5])") ==
        "inputs[0].data[1] of `x` is 5, but each value of BYTES must be a string");
  for (const char* other : {"null", "true", "{}", "1.5"})
    CHECK_THAT(of(std::string(R"(["a",)") + other + "]"),
               Contains("but each value of BYTES must be a string"));
  for (const char* malformed : {R"(["a","\x41"])", R"(["a","\u12"])", R"(["a","\ud83d"])",
                                R"(["a","\ude00"])", R"(["a","\ud83d\u0041"])", R"(["a" "b"])",
                                R"(["a","b)", "[\"a\",\"\n\"]", "[\"a\",\"\xff\"]"})
    CHECK_THAT(of(malformed), Catch::StartsWith("the body is not JSON: "));
}

TEST_CASE("elements of BYTES in binary data have their lengths before them") {
  auto of = [](const std::string& data) {
    std::string json = fmt::format(
        R"({{"inputs":[{{"name":"x","datatype":"BYTES","shape":[2],"parameters":{{"binary_data_size":{}}}}}]}})",
        data.size());
    return std::make_pair(json + data, json.size());
  };
  const std::string elements("\2\0\0\0\xff\0\0\0\0\0", 10);
  auto [body, json_bytes] = of(elements);
  InferRequest request = parsed(body, json_bytes);
  CHECK(*request.inputs.at("x").data == elements);
  for (const std::string& other :
       {elements.substr(0, 9), elements.substr(0, 6), elements + std::string(4, '\0'),
        std::string("\xff\xff\xff\xff", 4), std::string()}) {
    auto [bad, bad_json] = of(other);
    CHECK_THAT(refusal(bad, bad_json), Contains("of inputs[0] that its shape needs"));
  }
  request.are_outputs_binary = true;
  auto binary = print_infer_response("m", request, request.inputs);
  REQUIRE(binary.ok());
  CHECK(binary->body.substr(binary->json_bytes) == elements);
  request.are_outputs_binary = false;
  auto text = print_infer_response("m", request, request.inputs);
  REQUIRE_FALSE(text.ok());
  CHECK(text.error().kind == ErrorKind::task);
  CHECK(text.error().message ==
        "output `x` holds bytes at index 0 that are not UTF-8, which JSON cannot represent: ask "
        "for it as binary data");
}

TEST_CASE("an output with a narrow datatype is printed and sent as that") {
  InferTensor tensor = tensor_of<int32_t>(DType::i32, {2}, {-3, 7});
  tensor.datatype = find_datatype("INT16");
  InferRequest request;
  CHECK(printed({{"y", tensor}}, request) ==
        R"({"model_name":"m","model_version":"1","outputs":[{"name":"y","datatype":"INT16",)"
        R"("shape":[2],"data":[-3,7]}]})");
  request.are_outputs_binary = true;
  auto binary = print_infer_response("m", request, {{"y", tensor}});
  REQUIRE(binary.ok());
  CHECK(binary->body.substr(binary->json_bytes) == bytes_of<int16_t>({-3, 7}));
}

TEST_CASE("NaN and infinities are errors that name the output, not silent nulls") {
  Tensors outputs;
  double inf = std::numeric_limits<double>::infinity();
  for (double odd : {inf, -inf, std::numeric_limits<double>::quiet_NaN()}) {
    outputs["y"] = tensor_of<float>(DType::f32, {2}, {1, static_cast<float>(odd)});
    auto single = print_infer_response("m", {}, outputs);
    outputs["y"] = tensor_of<double>(DType::f64, {2}, {1, odd});
    auto twice = print_infer_response("m", {}, outputs);
    for (const auto& response : {single, twice}) {
      REQUIRE_FALSE(response.ok());
      CHECK(response.error().kind == ErrorKind::task);
      CHECK_THAT(response.error().message,
                 Catch::Contains("output `y`") && Catch::Contains("index 1"));
    }
  }
  outputs["y"] = tensor_of<uint16_t>(DType::f16, {1}, {0xfc00});
  auto half = print_infer_response("m", {}, outputs);
  REQUIRE_FALSE(half.ok());
  CHECK(half.error().message == "output `y` holds -inf at index 0, which JSON cannot represent");
}
