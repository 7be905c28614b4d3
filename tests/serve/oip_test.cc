// The JSON of the Open Inference Protocol v2: accepted and rejected requests, and error texts.
#include <catch2/catch.hpp>
#include <cstring>
#include <limits>

#include "engine/serve/model_server.hpp"

using namespace flow;

namespace {

template <typename T>
std::vector<T> items(const Tensor& tensor) {
  std::vector<T> all(tensor.data->size() / sizeof(T));
  std::memcpy(all.data(), tensor.data->data(), all.size() * sizeof(T));
  return all;
}

Tensors read(const std::string& body) {
  std::string id;
  auto inputs = parse_infer_request(body, id);
  INFO((inputs.ok() ? "" : inputs.error().message));
  REQUIRE(inputs.ok());
  return *inputs;
}

std::string refusal(const std::string& body) {
  std::string id;
  auto inputs = parse_infer_request(body, id);
  if (inputs.ok()) return "accepted";
  CHECK(inputs.error().kind == ErrorKind::user);
  return inputs.error().message;
}

std::string one_input(const std::string& fields) { return "{\"inputs\":[{" + fields + "}]}"; }

template <typename T>
Tensor tensor_of(DType dtype, std::vector<int64_t> shape, const std::vector<T>& values) {
  std::string bytes(values.size() * sizeof(T), '\0');
  if (!values.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  Tensor tensor;
  tensor.dtype = dtype;
  tensor.shape = std::move(shape);
  tensor.digest = sha256(bytes);
  tensor.data = std::make_shared<const std::string>(std::move(bytes));
  return tensor;
}

}  // namespace

TEST_CASE("data may be flat or nested") {
  auto flat = read(one_input(R"("name":"x","shape":[2,2],"datatype":"FP32","data":[1,2,3,4.5])"));
  auto nested =
      read(one_input(R"("name":"x","shape":[2,2],"datatype":"FP32","data":[[1,2],[3,4.5]])"));
  CHECK(items<float>(flat.at("x")) == std::vector<float>{1, 2, 3, 4.5});
  CHECK(flat.at("x").digest == nested.at("x").digest);
  CHECK(flat.at("x").shape == std::vector<int64_t>{2, 2});
}

TEST_CASE("every datatype is read up to its limits") {
  CHECK(items<double>(
            read(one_input(R"("name":"x","shape":[1],"datatype":"FP64","data":[0.1])")).at("x")) ==
        std::vector<double>{0.1});
  CHECK(items<int64_t>(
            read(one_input(
                     R"("name":"x","shape":[1],"datatype":"INT64","data":[-9223372036854775808])"))
                .at("x")) == std::vector<int64_t>{std::numeric_limits<int64_t>::min()});
  CHECK(
      items<int32_t>(
          read(one_input(
                   R"("name":"x","shape":[2],"datatype":"INT32","data":[2147483647,-2147483648])"))
              .at("x")) == std::vector<int32_t>{INT32_MAX, INT32_MIN});
  CHECK(
      items<uint8_t>(
          read(one_input(R"("name":"x","shape":[2],"datatype":"UINT8","data":[0,255])")).at("x")) ==
      std::vector<uint8_t>{0, 255});
  CHECK(items<uint8_t>(
            read(one_input(R"("name":"x","shape":[2],"datatype":"BOOL","data":[true,false])"))
                .at("x")) == std::vector<uint8_t>{1, 0});
}

TEST_CASE("the id and all inputs of a request are kept") {
  std::string id;
  auto inputs = parse_infer_request(
      R"({"id":"42","inputs":[{"name":"a","shape":[1],"datatype":"FP32","data":[1]},
                              {"name":"b","shape":[0],"datatype":"INT64","data":[]}],
          "outputs":[{"name":"y"}],"parameters":{}})",
      id);
  REQUIRE(inputs.ok());
  CHECK(id == "42");
  CHECK(inputs->size() == 2);
  CHECK(inputs->at("b").data->empty());
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
  CHECK_THAT(refusal(R"({"inputs":[7]})"), Contains("inputs[0].name"));
  CHECK_THAT(refusal(one_input(R"("name":7)")), Contains("name"));
  CHECK_THAT(refusal(one_input(R"("name":"x")")), Contains("datatype"));
  CHECK_THAT(refusal(one_input(R"("name":"x","datatype":"FP32","data":[])")), Contains("shape"));
  CHECK_THAT(refusal(one_input(R"("name":"x","datatype":"FP32","shape":[1])")), Contains("data"));
  CHECK_THAT(refusal(one_input(R"("name":"x","datatype":"fp32","shape":[1],"data":[1])")),
             Contains("FP32"));
  CHECK_THAT(refusal(one_input(R"("name":"x","datatype":"BYTES","shape":[1],"data":["a"])")),
             Contains("BYTES"));
  CHECK_THAT(refusal(one_input(R"("name":"x","datatype":"FP32","shape":[],"data":[])")),
             Contains("shape"));
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
  CHECK_THAT(refusal(one_input(
                 R"("name":"x","datatype":"FP32","shape":[0,67108864,67108864],"data":[1])")),
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
        "inputs[0].data[0] of `x` is \"NaN\", but FP32 holds numbers up to 3.4028235e38");
  CHECK(refused("FP64", "[\"Infinity\"]") ==
        "inputs[0].data[0] of `x` is \"Infinity\", but FP64 holds numbers");
  CHECK_THAT(refused("FP64", "[1e400]"), Catch::Contains("JSON"));
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
  CHECK_THAT(refused("INT8", "[1]"), Catch::StartsWith("inputs[0].datatype `INT8` is not one of"));

  CHECK(items<float>(read(one_input(R"("name":"x","shape":[2],"datatype":"FP32",)"
                                    R"("data":[3.4028235e38,-3.4028235e38])"))
                         .at("x")) == std::vector<float>{3.4028235e38f, -3.4028235e38f});
}

TEST_CASE("an error is valid text, whatever was sent") {
  std::string umlauts = "\"a";
  for (int i = 0; i < 30; i++) umlauts += "\xc3\xa4";
  std::string message =
      refusal(one_input(R"("name":"x","shape":[1],"datatype":"INT32","data":[)" + umlauts + "\"]"));
  CHECK(to_json(Value(message)).starts_with('"'));
  CHECK(
      refusal(one_input(R"("name":{"$bytes":"/w=="},"shape":[1],"datatype":"INT32","data":[1])")) ==
      "inputs[0].name is missing");
}

TEST_CASE("a response is JSON with model, id, datatype and shape") {
  Tensors outputs;
  outputs["p"] = tensor_of<float>(DType::f32, {1, 2}, {0.5f, 0.25f});
  outputs["c"] = tensor_of<int64_t>(DType::i64, {1}, {-7});
  outputs["ok"] = tensor_of<uint8_t>(DType::boolean, {2}, {1, 0});
  auto text = print_infer_response("digits", "a\"b", outputs);
  REQUIRE(text.ok());
  auto value = from_json(*text);
  REQUIRE(value.ok());
  CHECK(value->find("model_name")->as_string() == "digits");
  CHECK(value->find("id")->as_string() == "a\"b");
  const auto& list = value->find("outputs")->as_table().list;
  REQUIRE(list.size() == 3);
  CHECK(list[0].find("name")->as_string() == "c");
  CHECK(list[0].find("data")->as_table().list[0].as_integer() == -7);
  CHECK(list[1].find("name")->as_string() == "ok");
  CHECK(list[1].find("data")->as_table().list[0].as_boolean());
  CHECK(list[2].find("datatype")->as_string() == "FP32");
  CHECK(list[2].find("shape")->as_table().list[1].as_integer() == 2);
  CHECK(list[2].find("data")->as_table().list[1].as_number() == 0.25);
}

TEST_CASE("NaN and infinities are errors that name the output, not silent nulls") {
  Tensors outputs;
  double inf = std::numeric_limits<double>::infinity();
  for (double odd : {inf, -inf, std::numeric_limits<double>::quiet_NaN()}) {
    outputs["y"] = tensor_of<float>(DType::f32, {2}, {1, static_cast<float>(odd)});
    auto single = print_infer_response("m", "", outputs);
    outputs["y"] = tensor_of<double>(DType::f64, {2}, {1, odd});
    auto twice = print_infer_response("m", "", outputs);
    for (const auto& text : {single, twice}) {
      REQUIRE_FALSE(text.ok());
      CHECK_THAT(text.error().message, Catch::Contains("output `y`") && Catch::Contains("index 1"));
    }
  }
}
