// Requests are joined along the first dimension, and their result is split again.
#include <catch2/catch.hpp>
#include <cstring>
#include <random>

#include "engine/serve/batch.hpp"
#include "engine/serve/oip_datatypes.hpp"
#include "engine/value/byte_elements.hpp"

using namespace flow;

namespace {

Tensor floats(std::vector<int64_t> shape, const std::vector<float>& values) {
  Tensor tensor;
  tensor.shape = std::move(shape);
  std::string bytes(values.size() * sizeof(float), '\0');
  if (!values.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  tensor.data = std::make_shared<const std::string>(std::move(bytes));
  return tensor;
}

bool can_join(const Tensors& a, const Tensors& b) {
  std::string signature = batch_signature(a);
  return !signature.empty() && signature == batch_signature(b);
}

std::vector<float> items(const Tensor& tensor) {
  std::vector<float> all(tensor.data->size() / sizeof(float));
  if (!all.empty()) std::memcpy(all.data(), tensor.data->data(), tensor.data->size());
  return all;
}

}  // namespace

TEST_CASE("rows of two requests are joined in order") {
  Tensors a{{"x", floats({1, 2}, {1, 2})}}, b{{"x", floats({2, 2}, {3, 4, 5, 6})}};
  REQUIRE(can_join(a, b));
  Tensors joined = join_rows({&a, &b});
  CHECK(joined.at("x").shape == std::vector<int64_t>{3, 2});
  CHECK(items(joined.at("x")) == std::vector<float>{1, 2, 3, 4, 5, 6});
}

TEST_CASE("a batch of one request shares its memory") {
  Tensors a{{"x", floats({1, 20}, std::vector<float>(20))}};
  CHECK(join_rows({&a}).at("x").data->data() == a.at("x").data->data());
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
  CHECK(batch_signature({{"x", floats({0, 2}, {})}}).empty());
  CHECK(batch_signature({{"x", floats({}, {1})}}).empty());
}

TEST_CASE("no name of an input looks like another input") {
  Tensors two{{"x", floats({1}, {1})}, {"y", floats({1}, {2})}};
  for (const char* name : {"xf32;1:y", "x", "1:x", "xf32"})
    CHECK_FALSE(can_join(two, {{name, floats({1}, {1})}}));
}

TEST_CASE("a result is split in the way its requests were joined") {
  auto parts = split_rows({{"y", floats({3, 1}, {7, 8, 9})}}, {1, 2});
  REQUIRE(parts.ok());
  CHECK((*parts)[0].at("y").shape == std::vector<int64_t>{1, 1});
  CHECK(items((*parts)[0].at("y")) == std::vector<float>{7});
  CHECK((*parts)[1].at("y").shape == std::vector<int64_t>{2, 1});
  CHECK(items((*parts)[1].at("y")) == std::vector<float>{8, 9});
}

TEST_CASE("the parts of a result share its memory, also after it") {
  std::vector<Tensors> parts;
  const char* memory = nullptr;
  {
    Tensors whole{{"y", floats({3, 2}, {1, 2, 3, 4, 5, 6})}};
    memory = whole.at("y").data->data();
    auto split = split_rows(whole, {1, 2});
    REQUIRE(split.ok());
    parts = std::move(*split);
  }
  CHECK(parts[0].at("y").data->data() == memory);
  CHECK(parts[1].at("y").data->data() == memory + 2 * sizeof(float));
  CHECK(items(parts[1].at("y")) == std::vector<float>{3, 4, 5, 6});
}

TEST_CASE("joined requests of any shape are split into what they were") {
  std::mt19937 random(1);
  auto below = [&](int n) { return static_cast<int64_t>(random() % static_cast<unsigned>(n)); };
  for (int round = 0; round < 200; round++) {
    std::vector<int64_t> rest;
    for (int64_t i = below(3); i > 0; i--) rest.push_back(1 + below(3));
    std::vector<Tensors> requests(static_cast<size_t>(1 + below(6)));
    std::vector<const Tensors*> parts;
    std::vector<int64_t> rows;
    for (Tensors& request : requests) {
      rows.push_back(1 + below(5));
      for (const char* name : {"a", "b"}) {
        std::vector<int64_t> shape{rows.back()};
        shape.insert(shape.end(), rest.begin(), rest.end());
        int64_t count = 1;
        for (int64_t extent : shape) count *= extent;
        std::vector<float> values(static_cast<size_t>(count));
        for (float& value : values) value = static_cast<float>(random());
        request[name] = floats(shape, values);
      }
      parts.push_back(&request);
      REQUIRE(can_join(requests[0], request));
    }
    auto split = split_rows(join_rows(parts), rows);
    REQUIRE(split.ok());
    for (size_t i = 0; i < requests.size(); i++)
      for (const char* name : {"a", "b"}) {
        CHECK((*split)[i].at(name).shape == requests[i].at(name).shape);
        CHECK(items((*split)[i].at(name)) == items(requests[i].at(name)));
      }
  }
}

TEST_CASE("a result with another number of rows cannot be split") {
  auto parts = split_rows({{"y", floats({2}, {1, 2})}}, {1, 2});
  REQUIRE_FALSE(parts.ok());
  CHECK_THAT(parts.error().message, Catch::Contains("`y`"));
}

namespace {

InferTensor texts(std::vector<int64_t> shape, const std::vector<std::string>& values) {
  InferTensor tensor;
  REQUIRE(set_element_type(tensor, "BYTES"));
  tensor.shape = std::move(shape);
  std::string bytes;
  for (const std::string& value : values) append_element(bytes, value);
  tensor.data = std::make_shared<const std::string>(std::move(bytes));
  return tensor;
}

}  // namespace

TEST_CASE("rows of elements of BYTES are joined, padded and split as others are") {
  Tensors a{{"x", texts({1, 2}, {"", "ab"})}}, b{{"x", texts({2, 2}, {"c", "", "def", "g"})}};
  REQUIRE(can_join(a, b));
  CHECK_FALSE(can_join(a, {{"x", floats({1, 2}, {1, 2})}}));
  Tensors padding = zero_rows(b, 3);
  CHECK(*padding.at("x").data == *texts({3, 2}, {"", "", "", "", "", ""}).data);
  Tensors joined = join_rows({&a, &b, &padding});
  CHECK(joined.at("x").shape == std::vector<int64_t>{6, 2});
  auto parts = split_rows(joined, {1, 2, 3});
  REQUIRE(parts.ok());
  CHECK(*(*parts)[0].at("x").data == *a.at("x").data);
  CHECK(*(*parts)[1].at("x").data == *b.at("x").data);
  CHECK(has_bytes((*parts)[1].at("x")));
  CHECK((*parts)[1].at("x").shape == std::vector<int64_t>{2, 2});
}

TEST_CASE("elements of BYTES count with the memory of a string") {
  CHECK(bytes_of({{"x", texts({2}, {"", "ab"})}}) == 2 * 64 + 2 * 4 + 2);
}

TEST_CASE("rows without elements count as one and are not joined") {
  Tensors empty{{"x", floats({67'108'864, 0}, {})}};
  CHECK(rows_of(empty) == 1);
  CHECK_FALSE(can_join(empty, empty));
  // The other input says how many rows there are.
  Tensors both{{"x", floats({2, 0}, {})}, {"y", floats({2, 1}, {1, 2})}};
  CHECK(rows_of(both) == 2);
  CHECK(can_join(both, both));
}
