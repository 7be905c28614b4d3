// Requests are joined along the first dimension, and their result is split again.
#include <catch2/catch.hpp>
#include <cstring>

#include "engine/serve/batch.hpp"

using namespace flow;

namespace {

Tensor floats(std::vector<int64_t> shape, const std::vector<float>& values) {
  Tensor tensor;
  tensor.shape = std::move(shape);
  std::string bytes(values.size() * sizeof(float), '\0');
  if (!values.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  tensor.digest = sha256(bytes);
  tensor.data = std::make_shared<const std::string>(std::move(bytes));
  return tensor;
}

}  // namespace

TEST_CASE("rows of two requests are joined in order") {
  Tensors a{{"x", floats({1, 2}, {1, 2})}}, b{{"x", floats({2, 2}, {3, 4, 5, 6})}};
  REQUIRE(can_join(a, b));
  Tensors joined = join_rows({&a, &b});
  CHECK(joined.at("x").shape == std::vector<int64_t>{3, 2});
  CHECK(joined.at("x").digest == floats({3, 2}, {1, 2, 3, 4, 5, 6}).digest);
}

TEST_CASE("requests are joined only if they differ only in rows") {
  Tensors a{{"x", floats({1, 2}, {1, 2})}};
  CHECK_FALSE(can_join(a, {{"y", floats({1, 2}, {1, 2})}}));
  CHECK_FALSE(can_join(a, {{"x", floats({1, 3}, {1, 2, 3})}}));
  CHECK_FALSE(can_join(a, {{"x", floats({2}, {1, 2})}}));
  Tensor other = floats({1, 2}, {1, 2});
  other.dtype = DType::i32;
  CHECK_FALSE(can_join(a, {{"x", other}}));
  // Inputs with different numbers of rows have no common first dimension.
  CHECK_FALSE(can_join({{"x", floats({1}, {1})}, {"y", floats({2}, {1, 2})}},
                       {{"x", floats({1}, {1})}, {"y", floats({2}, {1, 2})}}));
  // A request without rows would make the result one row too short.
  CHECK_FALSE(can_join(a, {{"x", floats({0, 2}, {})}}));
}

TEST_CASE("a result is split in the way its requests were joined") {
  auto parts = split_rows({{"y", floats({3, 1}, {7, 8, 9})}}, {1, 2});
  REQUIRE(parts.ok());
  CHECK((*parts)[0].at("y").shape == std::vector<int64_t>{1, 1});
  CHECK((*parts)[0].at("y").digest == floats({1, 1}, {7}).digest);
  CHECK((*parts)[1].at("y").digest == floats({2, 1}, {8, 9}).digest);
}

TEST_CASE("a result with another number of rows cannot be split") {
  auto parts = split_rows({{"y", floats({2}, {1, 2})}}, {1, 2});
  REQUIRE_FALSE(parts.ok());
  CHECK_THAT(parts.error().message, Catch::Contains("`y`"));
}
