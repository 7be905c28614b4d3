// The operands alone decide which kernels compute an attention.
#include "kernels/cuda/attention.hpp"

#include <catch2/catch.hpp>

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

TEST_CASE("attention: tensor cores take half types with aligned heads up to 128 wide") {
  for (DType dtype : {DType::f16, DType::bf16}) {
    for (int64_t width : {8, 16, 40, 64, 80, 128}) CHECK(takes(operand(dtype, width)));
    for (int64_t width : {1, 4, 7, 12, 136, 256}) CHECK_FALSE(takes(operand(dtype, width)));
  }
  for (DType dtype : {DType::f32, DType::f64}) CHECK_FALSE(takes(operand(dtype, 64)));
  View longest = operand(DType::f16, 64);
  longest.shape[2] = kTensorRowsMax;
  CHECK(takes(longest));
  longest.shape[2]++;
  CHECK_FALSE(takes(longest));
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

}  // namespace
}  // namespace flow::cuda
