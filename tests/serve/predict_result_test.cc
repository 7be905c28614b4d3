// Results of predict: tensors by name, and the error of each other one.
#include "engine/serve/predict_result.hpp"

#include <catch2/catch.hpp>
#include <cmath>
#include <memory>

#include "engine/serve/oip_datatypes.hpp"

using namespace flow;

namespace {

Value number_tensor() {
  Tensor tensor;
  tensor.dtype = DType::u8;
  tensor.shape = {1};
  tensor.data = std::make_shared<const std::string>("\7");
  return tensor;
}

std::string refusal(const Value& result) {
  auto tensors = tensors_by_name(result, "web");
  if (tensors.ok()) return "accepted";
  CHECK(tensors.error().kind == ErrorKind::task);
  return tensors.error().message;
}

std::string error_of(const std::string& what) {
  return "`predict` of `web` returned " + what +
         ": it must return a table of tensors by name, such as { y = inputs.x * 2 }";
}

Value strings(std::vector<Value> items, std::vector<Value> shape) {
  Value::Table table;
  table.list = std::move(items);
  table.fields.emplace_back(Value("shape"), Value::list(std::move(shape)));
  return table;
}

/// As JSON, or the error.
std::string parameters_of(const Value& response, size_t requests) {
  auto read = response_parameters(response, requests, "web");
  if (!read.ok()) {
    CHECK(read.error().kind == ErrorKind::task);
    return read.error().message;
  }
  std::string text;
  for (const std::vector<Parameter>& each : *read) {
    std::vector<std::pair<Value, Value>> fields;
    for (const Parameter& parameter : each) {
      CHECK(parameter.place == Parameter::Place::request);
      CHECK(parameter.tensor.empty());
      fields.emplace_back(Value(parameter.name), parameter.value);
    }
    text += (text.empty() ? "" : " ") + to_json(Value::map(std::move(fields)));
  }
  return text;
}

/// `json` is the second result.
std::string parameters_in(const std::string& json, size_t requests = 1) {
  auto response = from_json(json);
  REQUIRE(response.ok());
  return parameters_of(*response, requests);
}

std::string parameter_error(const std::string& what) {
  return "`predict` of `web` returned a second result that " + what +
         ". It must be a table with the parameters of the response, such as { parameters = { model "
         "= \"v3\" } }";
}

}  // namespace

TEST_CASE("the second result of predict has the parameters of the responses") {
  CHECK(parameters_of(Value(), 2) == "");
  CHECK(parameters_in("{}", 2) == "[] []");
  CHECK(parameters_in(R"({"parameters":{"a":true,"b":7,"c":0.5,"d":"\u00e9"}})") ==
        R"({"a":true,"b":7,"c":0.5,"d":"é"})");
  // All responses have the common ones, after their own.
  CHECK(parameters_in(R"({"parameters":{"a":1,"b":2},"requests":[{"parameters":{"b":3}},{}]})",
                      3) == R"({"a":1,"b":3} {"a":1,"b":2} {"a":1,"b":2})");
  Value second = Value::map({{Value("parameters"), Value::map({{Value("a"), Value(1)}})}});
  CHECK(parameters_of(Value::map({{Value("requests"), Value::map({{Value(2), second}})}}), 2) ==
        R"([] {"a":1})");
  CHECK(parameters_of(Value::map({{Value("requests"), Value::list({Value(), second})}}), 2) ==
        R"([] {"a":1})");
}

TEST_CASE("the error of another second result says what it is and where") {
  CHECK(parameters_in("7") == parameter_error("is a number"));
  CHECK(parameters_in(R"(["a"])") == parameter_error("has the entry [1], which has no name"));
  CHECK(parameters_in(R"({"parameter":{}})") ==
        parameter_error("has the unknown entry `parameter`; it has: parameters, requests"));
  CHECK(parameters_in(R"({"parameters":"v3"})") ==
        parameter_error("has `parameters`, which is a string"));
  CHECK(parameters_in(R"({"parameters":["v3"]})") ==
        parameter_error("has `parameters[1]`, which has no name"));
  CHECK(parameters_in(R"({"parameters":{"top":{}}})") ==
        parameter_error("has `parameters.top`, which is a table: a parameter is a string, a number "
                        "or a boolean"));
  CHECK(parameters_in(R"({"parameters":{"binary_data_size":3}})") ==
        parameter_error("has `parameters.binary_data_size`, which has a name that the protocol "
                        "uses itself"));
  CHECK(parameters_in(R"({"requests":[{},{"id":"a"}]})", 2) ==
        parameter_error("has `requests[2]`, which has the unknown entry `id`; it has: parameters"));
  CHECK(parameters_in(R"({"requests":[{},{}]})", 1) ==
        parameter_error("has `requests[2]`, which is none of the 1 requests of the call"));
  CHECK(parameters_in(R"({"requests":[{"parameters":{"x":[1]}}]})", 1) ==
        parameter_error("has `requests[1].parameters.x`, which is a table: a parameter is a "
                        "string, a number or a boolean"));
  auto with = [](Value value) {
    return parameters_of(
        Value::map({{Value("parameters"), Value::map({{Value("x"), std::move(value)}})}}), 1);
  };
  CHECK(with(Value(HUGE_VAL)) ==
        parameter_error("has `parameters.x`, which is NaN or an infinity"));
  CHECK(with(Value("\xff")) == parameter_error("has `parameters.x`, which has bytes that are not "
                                               "UTF-8: return them as an output"));
  CHECK(with(number_tensor()) == parameter_error("has `parameters.x`, which is a tensor: a "
                                                 "parameter is a string, a number or a boolean"));
  CHECK(with(Value(std::string(64 * 1024, 'a'))) ==
        parameter_error("has `parameters`, which gives a response more than 65536 bytes of names "
                        "and texts: return long texts as an output of BYTES"));
  std::vector<std::pair<Value, Value>> many;
  for (int i = 0; i < 257; i++) many.emplace_back(Value("p" + std::to_string(i)), Value(i));
  CHECK(parameters_of(Value::map({{Value("parameters"), Value::map(std::move(many))}}), 1) ==
        parameter_error("has `parameters`, which gives a response more than 256 parameters"));
}

TEST_CASE("strings become elements of BYTES, and these become strings") {
  std::string binary("\xff\0", 2);
  auto tensors = tensors_by_name(
      Value::map({{Value("y"), strings({Value("ab"), Value(binary)}, {Value(2), Value(1)})},
                  {Value("z"), Value::list({Value("")})},
                  {Value("none"), strings({}, {Value(0), Value(3)})}}),
      "web");
  REQUIRE(tensors.ok());
  const InferTensor& y = tensors->at("y");
  CHECK(datatype_of(y).name == "BYTES");
  CHECK(y.shape == std::vector<int64_t>{2, 1});
  CHECK(*y.data == std::string("\2\0\0\0ab\2\0\0\0\xff\0", 12));
  CHECK(tensors->at("z").shape == std::vector<int64_t>{1});
  CHECK(tensors->at("none").data->empty());
  Value inputs = predict_inputs(*tensors);
  CHECK(*inputs.find("y") == strings({Value("ab"), Value(binary)}, {Value(2), Value(1)}));
  CHECK(*inputs.find("none") == strings({}, {Value(0), Value(3)}));
  CHECK(predict_inputs({{"x", number_tensor().as_tensor()}}).find("x")->kind() ==
        Value::Kind::tensor);
}

TEST_CASE("a list that is no tensor of BYTES is an error that says what it lacks") {
  auto refused = [](const Value& value) { return refusal(Value::map({{Value("y"), value}})); };
  CHECK(refused(strings({Value("a")}, {Value(2), Value(1)})) ==
        error_of("a table whose entry `y` has 1 strings, and its `shape` needs 2"));
  CHECK(refused(Value::list({Value("a"), Value(7)})) ==
        error_of("a table whose entry `y` has the entry [2], which is not a string: a table in "
                 "place of a tensor is a list of strings, for the datatype BYTES"));
  CHECK_THAT(refused(strings({Value("a")}, {Value(-1)})),
             Catch::Contains("has a `shape` that is not a list of sizes such as { 2, 1 }"));
  CHECK_THAT(refused(strings({}, {Value(INT64_MAX), Value(INT64_MAX)})),
             Catch::Contains("needs more than a list may have"));
  Value::Table more = strings({Value("a")}, {Value(1)}).as_table();
  more.fields.emplace_back(Value("type"), Value("BYTES"));
  CHECK_THAT(refused(more), Catch::Contains("besides its strings and `shape`"));
}

TEST_CASE("the tensors of a result keep their names") {
  auto tensors = tensors_by_name(
      Value::map({{Value("y"), number_tensor()}, {Value("z"), number_tensor()}}), "web");
  REQUIRE(tensors.ok());
  CHECK(tensors->size() == 2);
  CHECK(*tensors->at("z").data == "\7");
}

TEST_CASE("the error of another result says what it is, and which entry is no tensor") {
  CHECK(refusal(Value()) == error_of("nil"));
  CHECK(refusal(Value(42)) == error_of("a number"));
  CHECK(refusal(Value(true)) == error_of("a boolean"));
  CHECK(refusal(Value("text")) == error_of("a string"));
  CHECK(refusal(number_tensor()) == error_of("a tensor without a name"));
  CHECK(refusal(Value::map({})) == error_of("an empty table"));
  CHECK(refusal(Value::list({number_tensor()})) ==
        error_of("a table whose entry [1], a tensor, has no name"));
  CHECK(refusal(Value::map({{Value(7), Value("text")}})) ==
        error_of("a table whose entry [7], a string, has no name"));
  CHECK(refusal(Value::map({{Value("x"), number_tensor()}, {Value("y"), Value("text")}})) ==
        error_of("a table whose entry `y` is a string"));
  CHECK(refusal(Value::map({{Value("\xff"), number_tensor()}})) ==
        error_of("a table with the name `\xEF\xBF\xBD`, which is not UTF-8"));
  CHECK(refusal(Value::map({{Value("y"), Value(Tensor())}})) ==
        error_of("a table whose entry `y` is a tensor without its data"));
  CHECK(
      refusal(Value::map({{Value(std::string(300, 'n')), Value(1)}})) ==
      error_of("a table whose entry `" + std::string(256, 'n') + "… (44 bytes more)` is a number"));
}
