// Declared tensors: metadata, and checks of requests and results.
#include "engine/serve/declared_tensors.hpp"

#include <catch2/catch.hpp>
#include <memory>

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
  for (auto& [name, tensor] : request.inputs)
    if (given.contains(name)) tensor.datatype = find_datatype(given.at(name));
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
  Tensors none;
  CHECK(check_outputs({}, none).ok());
}

TEST_CASE("an output gets the declared datatype if its elements can have it") {
  std::vector<TensorSpec> declared = {{"y", "INT16", {-1}}};
  auto ints = [](std::vector<int32_t> values) {
    Tensor tensor = tensor_of(DType::i32, {static_cast<int64_t>(values.size())});
    tensor.data = std::make_shared<const std::string>(reinterpret_cast<const char*>(values.data()),
                                                      values.size() * sizeof(int32_t));
    return Tensors{{"y", tensor}};
  };
  Tensors good = ints({-32768, 32767});
  REQUIRE(check_outputs(declared, good).ok());
  CHECK(datatype_of(good.at("y")).name == "INT16");
  CHECK(*narrow(datatype_of(good.at("y")), good.at("y").data) ==
        std::string_view("\x00\x80\xff\x7f", 4));
  Tensors large = ints({1, 32768});
  CHECK(check_outputs(declared, large).error().message ==
        "`predict` returned something else than is declared: the output `y` holds 32768 at index "
        "1, but INT16 holds whole numbers from -32768 to 32767");
  Tensors floats = {{"y", tensor_of(DType::f32, {1})}};
  CHECK(check_outputs(declared, floats).error().message ==
        "`predict` returned something else than is declared: the output `y` is FP32, but INT16 is "
        "declared");
  Tensor wide = tensor_of(DType::i64, {1});
  wide.data = std::make_shared<const std::string>(8, '\xff');
  Tensors negative = {{"y", wide}};
  CHECK_FALSE(check_outputs({{"y", "UINT32", {-1}}}, negative).ok());
  for (const char* datatype : {"UINT64", "INT64"})
    CHECK(check_outputs({{"y", datatype, {-1}}}, negative).ok());
}

TEST_CASE("texts and numbers are not each other's datatype") {
  Tensors bytes = {{"y", tensor_of(DType::u8, {1})}};
  bytes.at("y").datatype = find_datatype("BYTES");
  CHECK(check_outputs({{"y", "BYTES", {1}}}, bytes).ok());
  CHECK_FALSE(check_outputs({{"y", "UINT8", {1}}}, bytes).ok());
  Tensors numbers = {{"y", tensor_of(DType::u8, {1})}};
  CHECK_FALSE(check_outputs({{"y", "BYTES", {1}}}, numbers).ok());
}

TEST_CASE("a result that is not as declared is an error of predict") {
  Tensors none;
  Status status = check_outputs({{"y", "FP32", {-1}}}, none);
  REQUIRE_FALSE(status.ok());
  CHECK(status.error().kind == ErrorKind::task);
  CHECK(status.error().message ==
        "`predict` returned something else than is declared: the output `y` is missing");
}
