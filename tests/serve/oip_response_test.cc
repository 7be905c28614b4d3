// Responses of the Open Inference Protocol, in JSON and with binary data.
#include <fmt/format.h>

#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "engine/serve/oip.hpp"
#include "engine/serve/oip_datatypes.hpp"
#include "tests/serve/oip_text.hpp"

using namespace flow;

namespace {

// The text of one output's data.
template <typename T>
std::string printed_data(DType dtype, const std::vector<T>& values) {
  Tensors outputs{{"y", tensor_with<T>(dtype, {static_cast<int64_t>(values.size())}, values)}};
  std::string text = printed_response(outputs);
  size_t begin = text.find("\"data\":[") + 7;
  return text.substr(begin, text.rfind("}]}") - begin);
}

}  // namespace

TEST_CASE("a response is JSON with model, version, id, datatype and shape") {
  Tensors outputs;
  outputs["p"] = tensor_with<float>(DType::f32, {1, 2}, {0.5f, 0.25f});
  outputs["c"] = tensor_with<int64_t>(DType::i64, {}, {-7});
  outputs["ok"] = tensor_with<uint8_t>(DType::boolean, {2}, {1, 0});
  outputs["none"] = tensor_with<uint8_t>(DType::u8, {0, 3}, {});
  InferRequest request;
  request.id = "a\"b";
  auto response = print_infer_response("digits", request, outputs);
  REQUIRE(response.ok());
  CHECK(response->body == R"({"model_name":"digits","model_version":"1","id":"a\"b","outputs":[)"
                          R"({"name":"c","datatype":"INT64","shape":[],"data":[-7]},)"
                          R"({"name":"none","datatype":"UINT8","shape":[0,3],"data":[]},)"
                          R"({"name":"ok","datatype":"BOOL","shape":[2],"data":[true,false]},)"
                          R"({"name":"p","datatype":"FP32","shape":[1,2],"data":[0.5,0.25]}]})");
  CHECK(printed_response({}) == R"({"model_name":"m","model_version":"1","outputs":[]})");
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
    return parsed_inputs(
               one_input(fmt::format(R"("name":"x","shape":[{}],"datatype":"{}","data":{})", count,
                                     type, data)))
        .at("x");
  };
  CHECK(tensor_items<float>(again("FP32", printed_data(DType::f32, floats), floats.size())) ==
        floats);
  CHECK(tensor_items<double>(again("FP64", printed_data(DType::f64, doubles), doubles.size())) ==
        doubles);
  CHECK(tensor_items<uint16_t>(again("FP16", printed_data(DType::f16, halves), halves.size())) ==
        halves);
  CHECK(tensor_items<uint16_t>(again("BF16", printed_data(DType::bf16, bfloats), bfloats.size())) ==
        bfloats);
}

TEST_CASE("a request chooses the outputs and their order") {
  Tensors outputs{{"a", tensor_with<uint8_t>(DType::u8, {1}, {1})},
                  {"b", tensor_with<uint8_t>(DType::u8, {1}, {2})},
                  {"c", tensor_with<uint8_t>(DType::u8, {1}, {3})}};
  InferRequest request;
  request.outputs = {{"c", false}, {"a", false}};
  CHECK(printed_response(outputs, request) ==
        R"({"model_name":"m","model_version":"1","outputs":[)"
        R"({"name":"c","datatype":"UINT8","shape":[1],"data":[3]},)"
        R"({"name":"a","datatype":"UINT8","shape":[1],"data":[1]}]})");
  request.outputs = {{"d", false}};
  auto response = print_infer_response("m", request, outputs);
  REQUIRE_FALSE(response.ok());
  CHECK(response.error().kind == ErrorKind::user);
  CHECK(response.error().message == "the model has no output `d`: it has `a`, `b`, `c`");
}

TEST_CASE("a response has the parameters that predict has returned for it") {
  Tensors outputs{{"a", tensor_with<uint8_t>(DType::u8, {1}, {1})}};
  InferRequest request;
  request.id = "7";
  request.response_parameters = {{.name = "model \"3\"", .value = Value("\"é\n")},
                                 {.name = "n", .value = Value(INT64_MIN)},
                                 {.name = "half", .value = Value(0.5)},
                                 {.name = "whole", .value = Value(2.0)},
                                 {.name = "yes", .value = Value(true)}};
  CHECK(printed_response(outputs, request) ==
        R"({"model_name":"m","model_version":"1","id":"7","parameters":{"model \"3\"":"\"é\n",)"
        R"("n":-9223372036854775808,"half":0.5,"whole":2.0,"yes":true},"outputs":[)"
        R"({"name":"a","datatype":"UINT8","shape":[1],"data":[1]}]})");
}

TEST_CASE("large binary outputs of one request are sent from their own memory") {
  Tensors outputs{{"a", tensor_with<float>(DType::f32, {5000}, std::vector<float>(5000, 1))},
                  {"b", tensor_with<uint8_t>(DType::u8, {1}, {2})}};
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
  Tensors outputs{{"a", tensor_with<float>(DType::f32, {2}, {nan, 1})},
                  {"b", tensor_with<uint8_t>(DType::u8, {1}, {2})},
                  {"c", tensor_with<int32_t>(DType::i32, {1}, {3})}};
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
        raw_bytes<int32_t>({3}) + raw_bytes<float>({nan, 1}));
}

TEST_CASE("the wish for binary outputs holds for all, and an output's own goes first") {
  auto request =
      parsed_request(R"({"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":[1]}],)"
                     R"("outputs":[{"name":"a"},{"name":"b","parameters":{"binary_data":false}}],)"
                     R"("parameters":{"binary_data_output":true}})");
  CHECK(request.are_outputs_binary);
  CHECK(request.outputs[0].is_binary);
  CHECK_FALSE(request.outputs[1].is_binary);
  request.outputs.clear();
  auto response =
      print_infer_response("m", request, {{"y", tensor_with<uint8_t>(DType::u8, {1}, {65})}});
  REQUIRE(response.ok());
  CHECK(response->json_bytes + 1 == response->body.size());
  CHECK(response->body.back() == 'A');
}

TEST_CASE("an output with a narrow datatype is printed and sent as that") {
  InferTensor tensor = tensor_with<int32_t>(DType::i32, {2}, {-3, 7});
  tensor.datatype = find_datatype("INT16");
  InferRequest request;
  CHECK(printed_response({{"y", tensor}}, request) ==
        R"({"model_name":"m","model_version":"1","outputs":[{"name":"y","datatype":"INT16",)"
        R"("shape":[2],"data":[-3,7]}]})");
  request.are_outputs_binary = true;
  auto binary = print_infer_response("m", request, {{"y", tensor}});
  REQUIRE(binary.ok());
  CHECK(binary->body.substr(binary->json_bytes) == raw_bytes<int16_t>({-3, 7}));
}

TEST_CASE("an output of UINT64 has all its values") {
  InferTensor tensor = tensor_with<int64_t>(DType::i64, {3}, {-1, INT64_MIN, 7});
  tensor.datatype = find_datatype("UINT64");
  InferRequest request;
  CHECK(printed_response({{"y", tensor}}, request) ==
        R"({"model_name":"m","model_version":"1","outputs":[{"name":"y","datatype":"UINT64",)"
        R"("shape":[3],"data":[18446744073709551615,9223372036854775808,7]}]})");
  request.are_outputs_binary = true;
  auto binary = print_infer_response("m", request, {{"y", tensor}});
  REQUIRE(binary.ok());
  CHECK(binary->body.substr(binary->json_bytes) ==
        raw_bytes<uint64_t>({UINT64_MAX, uint64_t{1} << 63, 7}));
}

TEST_CASE("NaN and infinities are errors that name the output, not silent nulls") {
  Tensors outputs;
  double inf = std::numeric_limits<double>::infinity();
  for (double odd : {inf, -inf, std::numeric_limits<double>::quiet_NaN()}) {
    outputs["y"] = tensor_with<float>(DType::f32, {2}, {1, static_cast<float>(odd)});
    auto single = print_infer_response("m", {}, outputs);
    outputs["y"] = tensor_with<double>(DType::f64, {2}, {1, odd});
    auto twice = print_infer_response("m", {}, outputs);
    for (const auto& response : {single, twice}) {
      REQUIRE_FALSE(response.ok());
      CHECK(response.error().kind == ErrorKind::task);
      CHECK_THAT(response.error().message,
                 Catch::Contains("output `y`") && Catch::Contains("index 1"));
    }
  }
  outputs["y"] = tensor_with<uint16_t>(DType::f16, {1}, {0xfc00});
  auto half = print_infer_response("m", {}, outputs);
  REQUIRE_FALSE(half.ok());
  CHECK(half.error().message == "output `y` holds -inf at index 0, which JSON cannot represent");
}
