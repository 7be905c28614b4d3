// Results of predict: tensors by name, and the error of each other one.
#include "engine/serve/predict_result.hpp"

#include <catch2/catch.hpp>
#include <memory>

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

}  // namespace

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
  CHECK(refusal(Value::map({{Value("y"), Value(Tensor())}})) ==
        error_of("a table whose entry `y` is a tensor without its data"));
  CHECK(
      refusal(Value::map({{Value(std::string(300, 'n')), Value(1)}})) ==
      error_of("a table whose entry `" + std::string(256, 'n') + "… (44 bytes more)` is a number"));
}
