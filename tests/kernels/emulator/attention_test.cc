// The operands alone decide which kernels compute an attention.
#include "kernels/cuda/attention.hpp"

#include <catch2/catch.hpp>
#include <utility>

#include "tests/kernels/emulator/emulator.hpp"
#include "tests/kernels/suite/suite.hpp"

namespace flow::cuda {
namespace {

alignas(16) char memory[16];

View operand(DType dtype, int64_t width, int64_t row = 0, int64_t offset = 0) {
  View view = dense(dtype, {2, 3, 5, width}, memory + offset);
  if (row != 0) {
    view.strides[2] = row;
    view.strides[1] = 5 * row;
    view.strides[0] = 15 * row;
  }
  return view;
}
bool takes(const View& view) { return takes_tensor_cores({&view}); }

TEST_CASE("attention: tensor cores take half types with aligned heads up to 256 wide") {
  for (DType dtype : {DType::f16, DType::bf16}) {
    for (int64_t width : {8, 16, 40, 64, 80, 128, 136, 200, 256})
      CHECK(takes(operand(dtype, width)));
    for (int64_t width : {1, 4, 7, 12, 100, 260, 264}) CHECK_FALSE(takes(operand(dtype, width)));
  }
  for (DType dtype : {DType::f32, DType::f64}) CHECK_FALSE(takes(operand(dtype, 64)));
  View longest = operand(DType::f16, 64);
  longest.shape[2] = kTensorRowsMax;
  CHECK(takes(longest));
  longest.shape[2]++;
  CHECK_FALSE(takes(longest));
  // A block for each tile of 64 rows, and so many blocks have no launch.
  View most = operand(DType::f16, 64);
  most.shape = {1 << 14, 1 << 10, 64 * 64, 64};
  CHECK(takes(most));
  most.shape[2]++;
  CHECK_FALSE(takes(most));
}

TEST_CASE("attention: tensor cores take rows that begin at multiples of 16 bytes") {
  CHECK(takes(operand(DType::f16, 64, 3 * 64)));
  CHECK(takes(operand(DType::f16, 64, 72)));
  CHECK_FALSE(takes(operand(DType::f16, 64, 67)));
  CHECK_FALSE(takes(operand(DType::f16, 64, 68)));
  CHECK_FALSE(takes(operand(DType::f16, 64, 0, 2)));
  CHECK_FALSE(takes(operand(DType::f16, 64, 0, 8)));
  View gaps = operand(DType::f16, 64);
  gaps.strides[3] = 2;
  CHECK_FALSE(takes(gaps));
  // The stride of a dimension of size 1 does not matter.
  View one = dense(DType::bf16, {1, 1, 1, 8}, memory);
  one.strides[0] = one.strides[1] = one.strides[2] = 3;
  CHECK(takes(one));
  View heads = operand(DType::f16, 64);
  heads.strides[1] = 4;
  CHECK_FALSE(takes(heads));
}

TEST_CASE("attention: one operand that does not fit selects the CUDA cores") {
  View good = operand(DType::f16, 64), shifted = operand(DType::f16, 64, 0, 2);
  View other = operand(DType::f32, 64);
  CHECK(takes_tensor_cores({&good, &good, &good, &good}));
  CHECK_FALSE(takes_tensor_cores({&good, &good, &good, &shifted}));
  CHECK_FALSE(takes_tensor_cores({&other, &good}));
}

struct Products {
  int64_t forward, backward;
};
// Of tensor cores, in an attention of 9 queries and keys and its gradients.
Products products_of(DType dtype, int64_t width, suite::Layout layout = suite::Layout::dense,
                     int64_t heads = 1) {
  using suite::Array, suite::Views;
  suite::HostRunner runner(*cuda_kernels(), [](bool reversed) { emulator::reversed = reversed; });
  suite::Suite made(runner, 1);
  Shape shape{1, heads, 9, width};
  Array q = made.filled(dtype, shape, layout), k = made.filled(dtype, shape, layout);
  Array v = made.filled(dtype, shape, layout), grad = made.filled(dtype, shape, layout);
  Array out = made.filled(dtype, shape, layout), lse = made.filled(DType::f64, {1, heads, 9});
  Array dq(dtype, shape, layout), dk(dtype, shape, layout), dv(dtype, shape, layout);
  int64_t start = emulator::products;
  CHECK(runner.run({&q, &k, &v, &out, &lse}, [](const Kernels& table, Stream& stream, Views x) {
    return table.attention(stream, {true, 1}, x[0], x[1], x[2], x[3], x[4]);
  }) == "");
  int64_t between = emulator::products;
  CHECK(runner.run({&q, &k, &v, &out, &lse, &grad, &dq, &dk, &dv},
                   [](const Kernels& table, Stream& stream, Views x) {
                     return table.attention_backward(stream, {true, 1}, x[0], x[1], x[2], x[3],
                                                     x[4], x[5], x[6], x[7], x[8]);
                   }) == "");
  return {between - start, emulator::products - between};
}

TEST_CASE("attention: warps without queries compute nothing") {
  // One of four warps has the queries: 64 keys times 64 columns, twice, by 16 x 8 x 16, in two
  // orders of the threads.
  CHECK(products_of(DType::bf16, 64).forward == 2 * 2 * 8 * 4);
}

TEST_CASE("attention: warps have two fragments of rows if there are many blocks") {
  constexpr int64_t heads = 8;
  for (int64_t width : {64, 128, 192, 256}) {
    INFO(width);
    Products few = products_of(DType::bf16, width);
    Products many = products_of(DType::bf16, width, suite::Layout::dense, heads);
    CHECK(many.forward == heads * few.forward * (width <= 128 ? 2 : 1));
    if (width != 128) CHECK(many.backward == heads * few.backward * (width == 64 ? 2 : 1));
    // Only the gradient of queries has two.
    if (width == 128) CHECK(many.backward > heads * few.backward);
    if (width == 128) CHECK(many.backward < heads * few.backward * 2);
  }
}

TEST_CASE("attention: a GPU with the least shared memory has all gradients of half types") {
  size_t before = std::exchange(emulator::shared_memory_max, size_t{99} << 10);
  suite::HostRunner runner(*cuda_kernels(), [](bool reversed) { emulator::reversed = reversed; });
  suite::Suite made(runner, 1);
  made.most_of_a_kind = 1;
  suite::check_attention(made);
  for (int64_t width : {64, 128, 192, 256})
    CHECK(products_of(DType::bf16, width, suite::Layout::dense, 8).backward > 0);
  emulator::shared_memory_max = before;
  for (const std::string& miss : made.misses)  // and not those of f32 and f64
    CHECK(miss.find("error " + std::to_string(kUnsupported)) != std::string::npos);
}

TEST_CASE("attention: tensor cores compute what they take, and nothing else") {
  for (DType dtype : {DType::f16, DType::bf16}) {
    for (int64_t width : {8, 64, 72, 128, 136, 192, 200, 256}) {
      INFO(width);
      Products products = products_of(dtype, width);
      CHECK(products.forward > 0);
      CHECK(products.backward > 0);
    }
    for (int64_t width : {12, 252}) {
      Products products = products_of(dtype, width);
      CHECK((products.forward == 0 && products.backward == 0));
    }
    Products shifted = products_of(dtype, 64, suite::Layout::shifted);
    CHECK((shifted.forward == 0 && shifted.backward == 0));
  }
  Products full = products_of(DType::f32, 64);
  CHECK((full.forward == 0 && full.backward == 0));
}

}  // namespace
}  // namespace flow::cuda
