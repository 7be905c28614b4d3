// Views: narrowing, broadcasting, copying and casting against element-by-element arithmetic.
#include "kernels/shared/view.hpp"

#include <cmath>
#include <cstring>
#include <limits>

#include <catch2/catch.hpp>
#include <vector>

#include "kernels/shared/types.hpp"
#include "kernels/table.hpp"

namespace flow::kernels {
namespace {

using Floats = std::vector<float>;

View view_of(Floats& values, const Shape& shape) { return dense(DType::f32, shape, values.data()); }

void copy(const View& from, const View& to) {
  Stream stream;
  REQUIRE(cpu_kernels().copy(stream, from, to) == kDone);
}

Floats counted(int64_t count) {
  Floats out(static_cast<size_t>(count));
  for (size_t i = 0; i < out.size(); i++) out[i] = static_cast<float>(i);
  return out;
}

Floats elements(const View& view) {
  Floats out(static_cast<size_t>(view.count()));
  copy(view, dense(DType::f32, view.shape, out.data()));
  return out;
}

TEST_CASE("a narrowed, stepped, transposed view addresses the expected elements") {
  Floats memory = counted(30);
  View x = view_of(memory, {5, 6});
  CHECK(elements(narrow(x, 0, 1, 2, 3)) == Floats{6, 7, 8, 9, 10, 11, 24, 25, 26, 27, 28, 29});
  CHECK(elements(select(x, 1, 4)) == Floats{4, 10, 16, 22, 28});
  View corner = swap_dims(narrow(narrow(x, 0, 3, 2), 1, 1, 3, 2), 0, 1);
  CHECK(elements(corner) == Floats{19, 25, 21, 27, 23, 29});
  CHECK_FALSE(is_dense(corner));
  CHECK(is_dense(narrow(x, 0, 2, 3)));
  CHECK(elements(narrow(x, 0, 0, 0)).empty());
}

TEST_CASE("shapes broadcast from the last dimension on, where sizes are equal or 1") {
  Shape out;
  REQUIRE(broadcast(Shape{4, 1, 3}, Shape{2, 1}, out));
  CHECK(out == Shape{4, 2, 3});
  REQUIRE(broadcast(Shape{}, Shape{2}, out));
  CHECK(out == Shape{2});
  CHECK_FALSE(broadcast(Shape{3}, Shape{4}, out));
  REQUIRE(broadcast(Shape{0}, Shape{1}, out));
  CHECK(out == Shape{0});
  Floats row = counted(3);
  CHECK(elements(broadcast_to(view_of(row, {3}), {2, 3})) == Floats{0, 1, 2, 0, 1, 2});
  CHECK(text_of(Shape{2, 3}) == "[2, 3]");
}

TEST_CASE("every type casts to every type, by value") {
  const DType types[] = {DType::f32, DType::f16, DType::bf16, DType::f64,
                         DType::i64, DType::i32, DType::u8,   DType::boolean};
  for (DType from : types) {
    for (DType to : types) {
      char a[16] = {}, b[16] = {};
      View source = dense(from, {2}, a), target = dense(to, {2}, b);
      double one[] = {0, 1}, out[] = {0, 0};
      copy(dense(DType::f64, {2}, one), source);
      copy(source, target);
      copy(target, dense(DType::f64, {2}, out));
      CHECK(out[1] == 1);
    }
  }
}

TEST_CASE("floats become integers without undefined behavior") {
  CHECK(convert<uint8_t>(-3.5f) == 0);
  CHECK(convert<uint8_t>(254.9f) == 254);
  CHECK(convert<uint8_t>(1e9f) == 255);
  CHECK(convert<int32_t>(-1e20) == std::numeric_limits<int32_t>::min());
  CHECK(convert<int64_t>(9.3e18) == std::numeric_limits<int64_t>::max());
  CHECK(convert<int64_t>(std::nan("")) == 0);
  CHECK(convert<int64_t>(-2.9) == -2);
}

TEST_CASE(
    "f16 and bf16 numbers round to nearest even and keep every value that they can represent") {
  for (uint32_t bits = 0; bits < 0x10000; bits++) {
    Half half{static_cast<uint16_t>(bits)};
    Brain brain{static_cast<uint16_t>(bits)};
    if (!std::isnan(half.to_float()) && Half::from(half.to_float()).bits != half.bits) FAIL(bits);
    if (!std::isnan(brain.to_float()) && Brain::from(brain.to_float()).bits != brain.bits)
      FAIL(bits);
  }
  CHECK(Half::from(65519).to_float() == 65504);
  CHECK(std::isinf(Half::from(65520).to_float()));
  CHECK(Half::from(1 + 0x1p-11f).to_float() == 1);
  CHECK(Half::from(1 + 3 * 0x1p-11f).to_float() == 1 + 0x1p-9f);
  CHECK(Half::from(0x1p-24f).to_float() == 0x1p-24f);
  CHECK(std::isnan(Half::from(NAN).to_float()));
  CHECK(std::isnan(Brain::from(NAN).to_float()));
  CHECK(Brain::from(1 + 0x1p-8f).to_float() == 1);
}

TEST_CASE("a view is reshaped without a copy if its strides allow it") {
  Floats memory = counted(24);
  View x = view_of(memory, {2, 3, 4}), out;
  REQUIRE(reshape(x, {6, 4}, out));
  CHECK(elements(out) == memory);
  REQUIRE(reshape(swap_dims(x, 0, 1), {3, 2, 2, 2}, out));
  CHECK(elements(out) == elements(swap_dims(x, 0, 1)));
  CHECK_FALSE(reshape(swap_dims(x, 0, 1), {6, 4}, out));
  REQUIRE(reshape(narrow(x, 2, 1, 3), {6, 1, 3}, out));
  CHECK(elements(out) == elements(narrow(x, 2, 1, 3)));
  CHECK_FALSE(reshape(narrow(x, 2, 1, 3), {18}, out));
  REQUIRE(reshape(narrow(x, 0, 0, 0), {0, 5}, out));
  REQUIRE(reshape(narrow(x, 2, 3, 4, -1), {2, 3, 2, 2}, out));
  CHECK(elements(out) == elements(narrow(x, 2, 3, 4, -1)));
}

TEST_CASE("dimensions are permuted, and new ones inserted") {
  Floats memory = counted(6);
  View x = view_of(memory, {2, 3});
  int order[] = {1, 0};
  CHECK(elements(permute(x, order)) == Floats{0, 3, 1, 4, 2, 5});
  CHECK(unsqueeze(x, 1).shape == Shape{2, 1, 3});
  CHECK(unsqueeze(x, 2).shape == Shape{2, 3, 1});
  CHECK(elements(unsqueeze(x, 0)) == memory);
}

TEST_CASE("a view overlaps itself if two of its elements are the same") {
  Floats memory = counted(60);
  View x = view_of(memory, {6, 10});
  CHECK_FALSE(overlaps_itself(x));
  CHECK_FALSE(overlaps_itself(swap_dims(x, 0, 1)));
  CHECK_FALSE(overlaps_itself(narrow(x, 1, 9, 5, -2)));
  CHECK_FALSE(overlaps_itself(broadcast_to(view_of(memory, {1, 10}), {1, 10})));
  CHECK(overlaps_itself(broadcast_to(view_of(memory, {1, 10}), {3, 10})));
  CHECK_FALSE(overlaps_itself(broadcast_to(view_of(memory, {1, 0}), {3, 0})));
  auto windows = [&](int64_t count, int64_t length, int64_t stride) {
    View view = view_of(memory, {count, length});
    view.strides[0] = stride;
    return view;
  };
  CHECK(overlaps_itself(windows(4, 3, 1)));
  CHECK(overlaps_itself(windows(4, 3, 2)));
  CHECK_FALSE(overlaps_itself(windows(4, 3, 3)));
  CHECK_FALSE(overlaps_itself(select(windows(4, 3, 1), 0, 2)));
  CHECK_FALSE(overlaps_itself(narrow(windows(4, 3, 2), 1, 0, 2)));
  CHECK(overlaps_itself(narrow(windows(4, 5, 2), 1, 0, 2, 4)));
}

}  // namespace
}  // namespace flow::kernels
