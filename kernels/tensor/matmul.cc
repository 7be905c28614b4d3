// Matrix products, batched and broadcast, and the linear layer. With mixed precision, their
// operands are rounded to the smaller type first; sums are f32.
#include <fmt/format.h>

#include <algorithm>

#include "kernels/shared/types.hpp"
#include "kernels/tensor/autograd.hpp"
#include "kernels/tensor/ops.hpp"

namespace flow::tensors {
namespace {

using kernels::is_float;

DType product_type(const char* name, const Tensor& a, const Tensor& b) {
  DType dtype = common_type(a.dtype(), b.dtype());
  if (!is_float(dtype))
    throw TensorError(fmt::format("{} of {} and {}: a product is of floats; write x:to(\"f32\")",
                                  name, text_of(a), text_of(b)));
  return runtime().casts && dtype != DType::f64 ? runtime().cast_type : dtype;
}

// Of matrices [m, k] and [k, n] with the same leading dimensions.
Tensor raw_matmul(const Tensor& a, const Tensor& b) {
  Shape shape = a.shape();
  shape[shape.rank - 1] = b.shape().last();
  Tensor out = Tensor::empty(a.dtype(), shape, a.device());
  const View* no_bias = nullptr;
  call(a.device(), &Kernels::matmul, "matmul", a.view(), b.view(), 1.0, 0.0, no_bias,
       Unary::identity, out.view());
  return out;
}

Tensor transposed(const Tensor& x) { return swap_dims(x, x.rank() - 2, x.rank() - 1); }

// Like raw_matmul, recorded.
Tensor batched(const Tensor& a, const Tensor& b) {
  Tensor out = raw_matmul(a, b);
  if (!is_recording(a, b)) return out;
  return record("matmul", out, {a, b},
                [a = SavedTensor(a), b = SavedTensor(b)](const Tensor& grad, Gradients& to) {
                  if (to.wants(0)) to.set(0, raw_matmul(grad, transposed(b.get())));
                  if (to.wants(1)) to.set(1, raw_matmul(transposed(a.get()), grad));
                });
}

[[noreturn]] void reject(const Tensor& a, const Tensor& b) {
  throw TensorError(
      fmt::format("cannot multiply the matrices {} and {}: [m, k] times [k, n] is [m, n]",
                  text_of(a), text_of(b)));
}

// The batch shape of both, broadcast.
Shape common_batches(const Tensor& a, const Tensor& b) {
  Shape left = a.shape(), right = b.shape(), shape;
  left.rank -= 2;
  right.rank -= 2;
  if (!kernels::broadcast(left, right, shape)) reject(a, b);
  return shape;
}

Tensor with_batches(const Tensor& x, Shape shape) {
  shape.push(x.size(x.rank() - 2));
  shape.push(x.size(x.rank() - 1));
  return x.shape() == shape ? x : expand(x, shape);
}

}  // namespace

Tensor matmul(const Tensor& left, const Tensor& right) {
  DType dtype = product_type("matmul", left, right);
  if (left.rank() == 0 || right.rank() == 0) reject(left, right);
  check_together("matmul", {left, right});
  Tensor a = cast(left, dtype), b = cast(right, dtype);
  bool row = a.rank() == 1, column = b.rank() == 1;
  if (row) a = unsqueeze(a, 0);
  if (column) b = unsqueeze(b, 1);
  if (a.shape().last() != b.size(b.rank() - 2)) reject(left, right);
  Tensor out;
  if (b.rank() == 2 && a.rank() > 2) {  // one product of many rows
    Shape rows{1, a.shape().last()};
    for (int dim = 0; dim + 1 < a.rank(); dim++) rows[0] *= a.size(dim);
    Shape shape = a.shape();
    shape[shape.rank - 1] = b.shape().last();
    out = reshape(batched(reshape(a, rows), b), shape);
  } else {
    Shape batches = common_batches(a, b);
    out = batched(with_batches(a, batches), with_batches(b, batches));
  }
  if (row) out = squeeze(out, out.rank() - 2);
  if (column) out = squeeze(out, out.rank() - 1);
  return out;
}

Tensor linear(const Tensor& given, const Tensor& given_weight, const Tensor& given_bias) {
  DType dtype = product_type("linear", given, given_weight);
  if (given_weight.rank() != 2 || given.rank() == 0 ||
      given.shape().last() != given_weight.size(1) ||
      (given_bias && !(given_bias.shape() == Shape{given_weight.size(0)})))
    throw TensorError(fmt::format(
        "linear takes x […, in], a weight [out, in] and a bias [out], not "
        "{}, {}{}",
        text_of(given), text_of(given_weight), given_bias ? " and " + text_of(given_bias) : ""));
  check_together("linear", {given, given_weight, given_bias});
  Tensor x = cast(given, dtype), weight = cast(given_weight, dtype);
  Tensor bias = given_bias ? cast(given_bias, dtype) : Tensor();
  int64_t in = weight.size(1), out_size = weight.size(0);
  int64_t rows = 1;
  for (int dim = 0; dim + 1 < x.rank(); dim++) rows *= x.size(dim);
  Shape shape = x.shape();
  shape[shape.rank - 1] = out_size;
  Tensor flat = reshape(x, Shape{rows, in});
  Tensor out = Tensor::empty(dtype, Shape{rows, out_size}, x.device());
  View add;
  if (bias) add = bias.view();
  call(x.device(), &Kernels::matmul, "linear", flat.view(), kernels::swap_dims(weight.view(), 0, 1),
       1.0, 0.0, bias ? &add : nullptr, Unary::identity, out.view());
  if (is_recording(flat, weight, bias)) {
    out =
        record("linear", out, {flat, weight, bias},
               [x = SavedTensor(flat), w = SavedTensor(weight)](const Tensor& grad, Gradients& to) {
                 if (to.wants(0)) to.set(0, raw_matmul(grad, w.get()));
                 if (to.wants(1)) to.set(1, raw_matmul(transposed(grad), x.get()));
                 if (to.wants(2)) to.set(2, reduce(Reduce::sum, grad, {0}));
               });
  }
  return reshape(out, shape);
}

}  // namespace flow::tensors
