// Declared tensors: metadata, and checks of requests and results.
#include "engine/serve/declared_tensors.hpp"

#include <catch2/catch.hpp>

#include "engine/serve/oip_datatypes.hpp"

using namespace flow;

namespace {

const std::vector<TensorSpec> kDeclared = {{"pixels", "FP32", {-1, 64}}, {"scale", "INT16", {1}}};

Tensor tensor_of(DType dtype, std::vector<int64_t> shape) {
  Tensor tensor;
  tensor.dtype = dtype;
  tensor.shape = std::move(shape);
  return tensor;
}

// Each tensor has the datatype of a response, unless `given` says otherwise.
InferRequest request_of(const Tensors& inputs, const std::map<std::string, std::string>& given) {
  InferRequest request;
  request.inputs = inputs;
  for (const auto& [name, tensor] : inputs)
    request.datatypes[name] =
        given.contains(name) ? find_datatype(given.at(name)) : &datatype_of(tensor.dtype);
  return request;
}

std::string problem_of(const Tensors& inputs,
                       const std::map<std::string, std::string>& given = {{"scale", "INT16"}}) {
  Status status = check_inputs(kDeclared, request_of(inputs, given));
  if (status.ok()) return "";
  CHECK(status.error().kind == ErrorKind::user);
  return status.error().message;
}

}  // namespace

TEST_CASE("metadata lists declared tensors") {
  CHECK(tensors_json({}) == "[]");
  CHECK(tensors_json(kDeclared) == R"([{"name":"pixels","datatype":"FP32","shape":[-1,64]},)"
                                   R"({"name":"scale","datatype":"INT16","shape":[1]}])");
}

TEST_CASE("inputs must be those that are declared") {
  Tensor pixels = tensor_of(DType::f32, {3, 64}), scale = tensor_of(DType::i32, {1});
  CHECK(problem_of({{"pixels", pixels}, {"scale", scale}}) == "");
  CHECK(problem_of({{"pixels", pixels}}) == "the input `scale` is missing");
  CHECK(problem_of({{"pixels", tensor_of(DType::f64, {3, 64})}, {"scale", scale}}) ==
        "the input `pixels` is FP64, but FP32 is declared");
  for (std::vector<int64_t> shape : {std::vector<int64_t>{3, 65}, {64}, {1, 3, 64}, {}})
    CHECK_THAT(problem_of({{"pixels", tensor_of(DType::f32, shape)}, {"scale", scale}}),
               Catch::Matchers::EndsWith("but [-1,64] is declared"));
  CHECK(problem_of({{"more", scale}, {"pixels", pixels}, {"scale", scale}}) ==
        "the input `more` is not declared");
}

TEST_CASE("an input must have the declared datatype even if tensors hold another in the same way") {
  Tensors inputs = {{"pixels", tensor_of(DType::f32, {3, 64})},
                    {"scale", tensor_of(DType::i32, {1})}};
  CHECK(problem_of(inputs, {{"scale", "INT16"}}) == "");
  for (const char* other : {"INT32", "UINT16", "INT8"})
    CHECK(problem_of(inputs, {{"scale", other}}) ==
          std::string("the input `scale` is ") + other + ", but INT16 is declared");
  inputs["scale"] = tensor_of(DType::i64, {1});
  CHECK(problem_of(inputs, {{"scale", "UINT32"}}) ==
        "the input `scale` is UINT32, but INT16 is declared");
}

TEST_CASE("without a declaration all tensors are good") {
  CHECK(check_inputs({}, request_of({{"x", tensor_of(DType::f32, {1})}}, {})).ok());
  CHECK(check_outputs({}, {}).ok());
}

TEST_CASE("a result that is not as declared is an error of predict") {
  Status status = check_outputs({{"y", "FP32", {-1}}}, {});
  REQUIRE_FALSE(status.ok());
  CHECK(status.error().kind == ErrorKind::task);
  CHECK(status.error().message ==
        "`predict` returned something else than is declared: the output `y` is missing");
}
