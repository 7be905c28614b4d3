// Values of the Open Inference Protocol in JSON: each datatype up to its limits, and shapes.
#include <fmt/format.h>

#include <bit>
#include <catch2/catch.hpp>
#include <charconv>
#include <cmath>
#include <cstring>
#include <random>

#include "engine/serve/oip.hpp"
#include "tests/serve/oip_text.hpp"

using namespace flow;

TEST_CASE("data may be flat or nested", "[numbers]") {
  auto flat =
      parsed_inputs(one_input(R"("name":"x","shape":[2,2],"datatype":"FP32","data":[1,2,3,4.5])"));
  auto nested = parsed_inputs(
      one_input(R"("name":"x","shape":[2,2],"datatype":"FP32","data":[[1,2],[3,4.5]])"));
  CHECK(tensor_items<float>(flat.at("x")) == std::vector<float>{1, 2, 3, 4.5});
  CHECK(*flat.at("x").data == *nested.at("x").data);
  CHECK(flat.at("x").shape == std::vector<int64_t>{2, 2});
}

TEST_CASE("every datatype is read up to its limits", "[numbers]") {
  auto tensor = [](const std::string& type, const std::string& data) {
    return parsed_inputs(
               one_input(R"("name":"x","shape":[2],"datatype":")" + type + R"(","data":)" + data))
        .at("x");
  };
  using Whole = std::vector<int32_t>;
  using Long = std::vector<int64_t>;
  using Bits = std::vector<uint16_t>;
  CHECK(tensor_items<uint8_t>(tensor("BOOL", "[true,false]")) == std::vector<uint8_t>{1, 0});
  CHECK(tensor_items<uint8_t>(tensor("UINT8", "[0,255]")) == std::vector<uint8_t>{0, 255});
  CHECK(tensor_items<int32_t>(tensor("UINT16", "[0,65535]")) == Whole{0, 65535});
  CHECK(tensor_items<int64_t>(tensor("UINT32", "[0,4294967295]")) == Long{0, 4294967295});
  CHECK(tensor_items<uint64_t>(tensor("UINT64", "[-0,18446744073709551615]")) ==
        std::vector<uint64_t>{0, UINT64_MAX});
  CHECK(tensor_items<uint64_t>(tensor("UINT64", "[9223372036854775808,10000000000000000000]")) ==
        std::vector<uint64_t>{uint64_t{1} << 63, 10'000'000'000'000'000'000u});
  CHECK(tensor_items<int32_t>(tensor("INT8", "[-128,127]")) == Whole{-128, 127});
  CHECK(tensor_items<int32_t>(tensor("INT16", "[-32768,32767]")) == Whole{-32768, 32767});
  CHECK(tensor_items<int32_t>(tensor("INT32", "[2147483647,-2147483648]")) ==
        Whole{INT32_MAX, INT32_MIN});
  CHECK(tensor_items<int64_t>(tensor("INT64", "[-9223372036854775808,9223372036854775807]")) ==
        Long{INT64_MIN, INT64_MAX});
  CHECK(tensor_items<uint16_t>(tensor("FP16", "[65504,-6e-8]")) == Bits{0x7bff, 0x8001});
  CHECK(tensor_items<uint16_t>(tensor("BF16", "[3.3895314e38,-1]")) == Bits{0x7f7f, 0xbf80});
  CHECK(tensor_items<float>(tensor("FP32", "[3.4028235e38,-3.4028235e38]")) ==
        std::vector<float>{3.4028235e38f, -3.4028235e38f});
  CHECK(tensor_items<double>(tensor("FP64", "[0.1,1.7976931348623157e308]")) ==
        std::vector<double>{0.1, 1.7976931348623157e308});
}

TEST_CASE("the tensor of a datatype that tensors lack is of the next one that holds its values",
          "[numbers]") {
  auto dtype = [](const std::string& type) {
    return parsed_inputs(
               one_input(R"("name":"x","shape":[1],"data":[1],"datatype":")" + type + "\""))
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

TEST_CASE("each single-precision number is read as the nearest float", "[numbers]") {
  std::mt19937_64 random(1);
  auto check = [](const std::string& text) {
    float value = 0;
    std::from_chars(text.data(), text.data() + text.size(), value);
    auto read_value = tensor_items<float>(
        parsed_inputs(
            one_input(R"("name":"x","shape":[1],"datatype":"FP32","data":[)" + text + "]"))
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

TEST_CASE("each double-precision number is read as the nearest double", "[numbers]") {
  std::mt19937_64 random(2);
  for (int i = 0; i < 3'000; i++) {
    auto value = std::bit_cast<double>(random());
    if (!std::isfinite(value)) continue;
    for (const std::string& text : {fmt::format("{}", value), fmt::format("{:.30e}", value)}) {
      INFO(text);
      CHECK(tensor_items<double>(
                parsed_inputs(
                    one_input(R"("name":"x","shape":[1],"datatype":"FP64","data":[)" + text + "]"))
                    .at("x")) == std::vector<double>{value});
    }
  }
}

TEST_CASE("a number that is too small is zero", "[numbers]") {
  auto value = [](const std::string& type, const std::string& number) {
    return parsed_inputs(one_input(R"("name":"x","shape":[1],"datatype":")" + type +
                                   R"(","data":[)" + number + "]"))
        .at("x");
  };
  for (const char* number : {"1e-400", "0.1e-999999999999999999999", "0e999999"}) {
    CHECK(tensor_items<double>(value("FP64", number)) == std::vector<double>{0});
    CHECK(tensor_items<float>(value("FP32", number)) == std::vector<float>{0});
  }
  CHECK(tensor_items<double>(value("FP64", "0." + std::string(700, '0') + "1e390")) ==
        std::vector<double>{1e-311});
  CHECK(tensor_items<double>(value("FP64", "0." + std::string(1000, '0') + "1e600")) ==
        std::vector<double>{0});
  CHECK(tensor_items<double>(value("FP64", "1" + std::string(1000, '0') + "e-1000")) ==
        std::vector<double>{1});
}

TEST_CASE("a scalar has one element and no dimension, an empty tensor none", "[numbers]") {
  Tensor scalar =
      parsed_inputs(one_input(R"("name":"x","shape":[],"datatype":"INT64","data":[7])")).at("x");
  CHECK(scalar.shape.empty());
  CHECK(tensor_items<int64_t>(scalar) == std::vector<int64_t>{7});
  CHECK(body_refusal(one_input(R"("name":"x","shape":[],"datatype":"INT64","data":[])")) ==
        "inputs[0].data has 0 values, its shape needs 1");
  Tensor empty =
      parsed_inputs(
          one_input(R"("name":"x","shape":[67108864,2048,0],"datatype":"FP64","data":[[],[]])"))
          .at("x");
  CHECK(empty.shape == std::vector<int64_t>{67108864, 2048, 0});
  CHECK(empty.data->empty());
}

TEST_CASE("an empty tensor has no larger shape than a tensor of a script may have", "[numbers]") {
  auto with = [](const std::string& datatype, const std::string& shape) {
    return body_refusal(
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

TEST_CASE("a value that its datatype cannot hold is an error of the client that names it",
          "[numbers]") {
  auto refused = [](const std::string& type, const std::string& data) {
    return body_refusal(
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
  CHECK(refused("INT8", "[1.0]") ==
        "inputs[0].data[0] of `x` is 1.0, written with a fraction or an exponent, but INT8 holds "
        "whole numbers from -128 to 127");
  CHECK(refused("INT64", "[[1e2]]") ==
        "inputs[0].data[0][0] of `x` is 1e2, written with a fraction or an exponent, but INT64 "
        "holds whole numbers from -9223372036854775808 to 9223372036854775807");
  CHECK_THAT(refused("UINT32", "[4294967296]"), Catch::Contains("from 0 to 4294967295"));
  for (const char* number : {"18446744073709551616", "-1", "-10000000000000000000",
                             "100000000000000000000", "1.5", "1e3", "18446744073709551615.0"})
    CHECK_THAT(refused("UINT64", std::string("[7,") + number + "]"),
               Catch::StartsWith("inputs[0].data[1] of `x` is ") &&
                   Catch::EndsWith(", but UINT64 holds whole numbers from 0 to "
                                   "18446744073709551615"));
  for (const char* text : {"[01]", "[18446744073709551615x]", "[-]", "[1844674407370955161 5]"})
    CHECK_THAT(refused("UINT64", text), Catch::StartsWith("the body is not JSON: "));
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
  CHECK_THAT(refused("INT32", "[1.0]"),
             Catch::Contains("is 1.0, written with a fraction or an exponent, but INT32"));
}
