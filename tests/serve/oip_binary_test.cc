// Tensors of the Open Inference Protocol in binary data, and strings.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <limits>

#include "engine/serve/oip.hpp"
#include "engine/serve/oip_datatypes.hpp"
#include "engine/value/byte_elements.hpp"
#include "tests/serve/oip_text.hpp"

using Catch::Contains;
using namespace flow;

TEST_CASE("binary tensors follow the JSON in the order of the inputs") {
  std::string json = "{\"inputs\":[" + binary_input("z", "FP32", 2, 8) +
                     R"(,{"name":"j","shape":[1],"datatype":"INT32","data":[5]},)" +
                     binary_input("a", "INT16", 3, 6) + "]}";
  auto request =
      parsed_request(json + raw_bytes<float>({1.5f, std::numeric_limits<float>::infinity()}) +
                         raw_bytes<int16_t>({-1, 2, -32768}),
                     json.size());
  CHECK(tensor_items<float>(request.inputs.at("z")) ==
        std::vector<float>{1.5f, std::numeric_limits<float>::infinity()});
  CHECK(tensor_items<int32_t>(request.inputs.at("j")) == std::vector<int32_t>{5});
  CHECK(tensor_items<int32_t>(request.inputs.at("a")) == std::vector<int32_t>{-1, 2, -32768});
}

TEST_CASE("binary data of every datatype is read") {
  auto tensor = [](const std::string& type, size_t count, const std::string& data) {
    std::string json = "{\"inputs\":[" + binary_input("x", type, count, data.size()) + "]}";
    return parsed_request(json + data, json.size()).inputs.at("x");
  };
  CHECK(tensor_items<uint8_t>(tensor("BOOL", 2, raw_bytes<uint8_t>({1, 0}))) ==
        std::vector<uint8_t>{1, 0});
  CHECK(tensor_items<uint8_t>(tensor("UINT8", 2, raw_bytes<uint8_t>({255, 0}))) ==
        std::vector<uint8_t>{255, 0});
  CHECK(tensor_items<int32_t>(tensor("UINT16", 1, raw_bytes<uint16_t>({65535}))) ==
        std::vector<int32_t>{65535});
  CHECK(tensor_items<int64_t>(tensor("UINT32", 1, raw_bytes<uint32_t>({UINT32_MAX}))) ==
        std::vector<int64_t>{UINT32_MAX});
  CHECK(tensor_items<uint64_t>(tensor("UINT64", 2, raw_bytes<uint64_t>({INT64_MAX, UINT64_MAX}))) ==
        std::vector<uint64_t>{INT64_MAX, UINT64_MAX});
  CHECK(tensor_items<int32_t>(tensor("INT8", 2, raw_bytes<int8_t>({-128, 127}))) ==
        std::vector<int32_t>{-128, 127});
  CHECK(tensor_items<int32_t>(tensor("INT32", 1, raw_bytes<int32_t>({-7}))) ==
        std::vector<int32_t>{-7});
  CHECK(tensor_items<int64_t>(tensor("INT64", 1, raw_bytes<int64_t>({-7}))) ==
        std::vector<int64_t>{-7});
  CHECK(tensor_items<uint16_t>(tensor("FP16", 1, raw_bytes<uint16_t>({0x3c00}))) ==
        std::vector<uint16_t>{0x3c00});
  CHECK(tensor_items<uint16_t>(tensor("BF16", 1, raw_bytes<uint16_t>({0x7fc0}))) ==
        std::vector<uint16_t>{0x7fc0});
  CHECK(tensor_items<double>(tensor("FP64", 1, raw_bytes<double>({0.1}))) ==
        std::vector<double>{0.1});
  CHECK(tensor("FP32", 0, "").data->empty());
}

TEST_CASE("binary data that does not match the JSON is an error that says how") {
  auto body = [](const std::string& inputs) { return "{\"inputs\":[" + inputs + "]}"; };
  std::string json = body(binary_input("x", "FP32", 2, 8));
  std::string place = "inputs[0].parameters.binary_data_size";
  CHECK(body_refusal(json + "12345678") != "accepted");
  CHECK(body_refusal(json) == place + " needs the header field `Inference-Header-Content-Length`");
  CHECK(body_refusal(json + "1234567", json.size()) ==
        place + " is 8, but only 7 bytes of the body are left for it");
  CHECK(body_refusal(json + "123456789", json.size()) ==
        "1 bytes follow the data of the last input");
  CHECK(body_refusal(json, json.size() + 1) ==
        fmt::format("the header field `Inference-Header-Content-Length` is {}, but the body has {} "
                    "bytes",
                    json.size() + 1, json.size()));
  CHECK_THAT(body_refusal(json + "12345678", json.size() - 1),
             Catch::StartsWith("the body is not JSON: "));
  CHECK_THAT(body_refusal(json + "12345678", 0), Catch::StartsWith("the body is not JSON: "));
  std::string seven = body(binary_input("x", "FP32", 2, 7));
  CHECK(body_refusal(seven + "1234567", seven.size()) ==
        place + " is 7, its shape and datatype need 8 bytes");
  std::string both = one_input(
      R"("name":"x","shape":[1],"datatype":"UINT8","data":[1],"parameters":{"binary_data_size":1})");
  CHECK(body_refusal(both + "1", both.size()) ==
        "inputs[0] has both `data` and `parameters.binary_data_size`");
  std::string flags = body(binary_input("x", "BOOL", 2, 2));
  CHECK(body_refusal(flags + "\x01\x02", flags.size()) ==
        "inputs[0].data[1] of `x` is 2, but BOOL holds true and false");
  CHECK_THAT(body_refusal(one_input(R"("name":"x","shape":[1],"datatype":"UINT8",)"
                                    R"("parameters":{"binary_data_size":-1})")),
             Catch::StartsWith(place + " is not a whole number from 0 to "));
}

TEST_CASE("strings of JSON are elements of BYTES, and are printed again") {
  auto request = parsed_request(one_input(
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
  CHECK(printed_response(request.inputs) ==
        R"({"model_name":"m","model_version":"1","outputs":[{"name":"x","datatype":"BYTES",)"
        R"("shape":[2,3],"data":["","a\u0000\"\\/\b\f\n\r\t"," é中","😀","é中😀",")"
        "\x7f\"]}]}");
}

TEST_CASE("a string that is not one, and a value that is none, are errors of the client") {
  auto of = [](const std::string& data) {
    return body_refusal(one_input(R"("name":"x","datatype":"BYTES","shape":[2],"data":)" + data));
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
  InferRequest request = parsed_request(body, json_bytes);
  CHECK(*request.inputs.at("x").data == elements);
  for (const std::string& other :
       {elements.substr(0, 9), elements.substr(0, 6), elements + std::string(4, '\0'),
        std::string("\xff\xff\xff\xff", 4), std::string()}) {
    auto [bad, bad_json] = of(other);
    CHECK_THAT(body_refusal(bad, bad_json), Contains("of inputs[0] that its shape needs"));
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
