// Parameters of requests: from JSON, within their limits, and to a script.
#include "engine/serve/request_parameters.hpp"

#include <catch2/catch.hpp>

#include "engine/serve/oip.hpp"

using namespace flow;

namespace {

using Place = Parameter::Place;

InferRequest request_of_json(const std::string& of_input, const std::string& rest) {
  auto request = parse_infer_request(
      R"({"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":[1],"parameters":)" +
          of_input + "}]," + rest + "}",
      {});
  INFO((request.ok() ? "" : request.error().message));
  REQUIRE(request.ok());
  return std::move(*request);
}

std::string refusal_of(const std::string& parameters) {
  auto request = parse_infer_request(
      R"({"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":[1]}],"parameters":)" +
          parameters + "}",
      {});
  if (request.ok()) return "accepted";
  CHECK(request.error().kind == ErrorKind::user);
  return request.error().message;
}

std::string tables_text(const std::vector<Parameter>& parameters) {
  ParameterTables tables = parameter_tables(parameters);
  return to_json(tables.request) + to_json(tables.inputs) + to_json(tables.outputs);
}

std::vector<Parameter> timeout(Value value) { return {{.name = "timeout", .value = value}}; }

}  // namespace

TEST_CASE("the parameters that the protocol does not use are kept, with their types") {
  InferRequest request = request_of_json(
      R"({"scale":2,"none":null})",
      R"("outputs":[{"name":"y","parameters":{"binary_data":true,"top":3}}],)"
      R"("parameters":{"binary_data_output":false,"text":"\u00e4","whole":-7,"number":0.5,"yes":true,)"
      R"("no":false,"large":9223372036854775808,"huge":18446744073709551616,"e":1e3})");
  CHECK(request.outputs[0].is_binary);
  CHECK(tables_text(request.parameters) ==
        "{\"e\":1000.0,\"huge\":18446744073709551616.0,\"large\":-9223372036854775808,\"no\":false,"
        "\"number\":0.5,\"text\":\"\xc3\xa4\",\"whole\":-7,\"yes\":true}"
        R"({"x":{"scale":2}}{"y":{"top":3}})");
}

TEST_CASE("the parameters of the protocol are left out wherever they stand") {
  InferRequest request =
      request_of_json(R"({"binary_data":true,"binary_data_output":true,"scale":1})",
                      R"("outputs":[{"name":"y","parameters":{"binary_data_size":4,"top":3}}],)"
                      R"("parameters":{"binary_data":true,"binary_data_size":16,"left":1})");
  CHECK(tables_text(request.parameters) == R"({"left":1}{"x":{"scale":1}}{"y":{"top":3}})");
}

TEST_CASE("a request without parameters has no tables of them") {
  InferRequest request = request_of_json(R"({"a":null})", R"("parameters":{})");
  CHECK(request.parameters.empty());
  ParameterTables tables = parameter_tables(request.parameters);
  CHECK((tables.request.is_nil() && tables.inputs.is_nil() && tables.outputs.is_nil()));
}

TEST_CASE("a parameter that is no scalar, and more of them than may be, are errors") {
  CHECK(refusal_of(R"({"a":{"b":1}})") == "parameters.a is not a text, a number, true or false");
  CHECK(refusal_of(R"({"a":[1]})") == "parameters.a is not a text, a number, true or false");
  CHECK(refusal_of(R"({"a":1e400})") == "parameters.a is too large a number");
  CHECK(refusal_of(R"({"a":1,"\u0061":2})") == "parameters has two fields `a`");
  CHECK(refusal_of(R"({"binary_data_output":true,"binary_data_output":true})") ==
        "parameters has two fields `binary_data_output`");
  CHECK_THAT(refusal_of(R"({"a":tru})"), Catch::StartsWith("the body is not JSON"));
  CHECK_THAT(refusal_of(R"({"a":01})"), Catch::StartsWith("the body is not JSON"));
  std::string many = "{\"a\":0";
  for (size_t i = 1; i < kParametersMax; i++) many += ",\"" + std::to_string(i) + "\":1";
  CHECK(refusal_of(many + "}") == "accepted");
  CHECK(refusal_of(many + ",\"b\":1}") == "parameters has more than 256 fields");
  CHECK(refusal_of("{\"a\":\"" + std::string(kParameterBytesMax - 1, 'a') + "\"}") == "accepted");
  CHECK(refusal_of("{\"a\":\"" + std::string(kParameterBytesMax, 'a') + "\"}") ==
        "the parameters of the request have more than 65536 bytes of names and texts: send long "
        "texts as inputs of BYTES");
}

TEST_CASE("the limits hold for all parameters of a request together") {
  std::vector<Parameter> parameters;
  for (size_t i = 0; i < kParametersMax; i++)
    CHECK(add_parameter(parameters, {Place::input, std::to_string(i), "a", Value(1)}, "").ok());
  CHECK(add_parameter(parameters, {Place::request, "", "a", Value(1)}, "").error().message ==
        "the request has more than 256 parameters");
  parameters.resize(1);
  CHECK(add_parameter(parameters, {Place::input, "0", "a", Value(2)}, "inputs[0].parameters.a")
            .error()
            .message == "inputs[0].parameters.a is there twice");
  CHECK(add_parameter(parameters, {Place::output, "0", "a", Value(2)}, "").ok());
  CHECK(bytes_of(parameters) == 2 * sizeof(Parameter) + 4);
}

TEST_CASE("the parameter timeout is a time in microseconds") {
  using std::chrono::microseconds;
  CHECK(*timeout_of({}) == std::nullopt);
  CHECK(*timeout_of(timeout(Value(0))) == std::nullopt);
  CHECK(*timeout_of(timeout(Value(1500))) == microseconds(1500));
  CHECK(*timeout_of({{Place::input, "x", "timeout", Value("soon")}}) == std::nullopt);
  auto longest = *timeout_of(timeout(Value(INT64_MAX)));
  CHECK(std::chrono::nanoseconds(*longest).count() > 0);
  for (const Value& wrong : {Value(-1), Value(0.5), Value("2s"), Value(true)})
    CHECK(timeout_of(timeout(wrong)).error().message ==
          "parameters.timeout is not a whole number of microseconds from 0 on");
}
