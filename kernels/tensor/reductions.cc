// Reductions along any dimensions.
#include <fmt/format.h>

#include <algorithm>

#include "kernels/shared/types.hpp"
#include "kernels/tensor/autograd.hpp"
#include "kernels/tensor/ops.hpp"

namespace flow::tensors {
namespace {

using kernels::is_float;

bool is_among(const Dims& dims, int dim) {
  return std::find(dims.begin(), dims.end(), dim) != dims.end();
}

void check_dims(const char* name, const Tensor& x, const Dims& dims) {
  for (size_t i = 0; i < dims.size(); i++) {
    bool twice = std::count(dims.begin(), dims.end(), dims[i]) > 1;
    if (dims[i] < 0 || dims[i] >= x.rank() || twice)
      throw TensorError(fmt::format("{} takes distinct dimensions of 1..{} of {}, not {}", name,
                                    x.rank(), text_of(x), dims[i] + 1));
  }
}

// The remaining dimensions, then the reduced ones.
View reduced_last(const Tensor& x, const Dims& dims, Shape& stays) {
  int order[kernels::kRankMax], at = 0;
  stays = {};
  for (int dim = 0; dim < x.rank(); dim++) {
    if (is_among(dims, dim)) continue;
    order[at++] = dim;
    stays.push(x.size(dim));
  }
  for (int dim = 0; dim < x.rank(); dim++)
    if (is_among(dims, dim)) order[at++] = dim;
  return kernels::permute(x.view(), order);
}

Shape kept_shape(const Tensor& x, const Dims& dims) {
  Shape shape = x.shape();
  for (int dim : dims) shape[dim] = 1;
  return shape;
}

int64_t reduced_count(const Tensor& x, const Dims& dims) {
  int64_t count = 1;
  for (int dim : dims) count *= x.size(dim);
  return count;
}

// A view: the result with its reduced dimensions as 1, broadcast to the operand's shape.
Tensor spread(const Tensor& reduced, const Shape& kept, const Shape& whole) {
  return expand(reshape(reduced, kept), whole);
}

DType result_type(Reduce op, DType dtype) {
  if (op == Reduce::any || op == Reduce::all) return DType::boolean;
  if (is_float(dtype) || op == Reduce::max || op == Reduce::min) return dtype;
  return op == Reduce::sum || op == Reduce::product ? DType::i64 : DType::f32;
}

Dims dims_between(const Shape& kept, const Shape& whole) {
  Dims dims;
  for (int dim = 0; dim < kept.rank; dim++)
    if (kept[dim] != whole[dim]) dims.push_back(dim);
  return dims;
}

Tensor gradient_of(Reduce op, const Tensor& x, const Tensor& y, const Tensor& grad,
                   const Shape& kept, int64_t count, double correction) {
  Tensor wide = spread(grad, kept, x.shape());
  switch (op) {
    case Reduce::sum:
      return wide;
    case Reduce::mean:
      return spread(binary(Binary::mul, grad, Number::of(1.0 / static_cast<double>(count))), kept,
                    x.shape());
    case Reduce::product: {
      // The product of the others: y / x; at a single zero, the product of the rest.
      Tensor is_zero = compare(Compare::eq, x, Number::of(int64_t{0}));
      Tensor one = Tensor::full(x.dtype(), Shape{}, Number::of(int64_t{1}), x.device());
      Tensor zero = Tensor::zeros(x.dtype(), Shape{}, x.device());
      Tensor rest = where(is_zero, one, x);
      Dims dims = dims_between(kept, x.shape());
      Tensor zeros = reduce(Reduce::sum, cast(is_zero, x.dtype()), dims, true);
      Tensor others = binary(Binary::div, reduce(Reduce::product, rest, dims, true), rest);
      Tensor none = compare(Compare::eq, zeros, Number::of(int64_t{0}));
      Tensor single = compare(Compare::eq, zeros, Number::of(int64_t{1}));
      Tensor derivative = where(none, others, where(single, where(is_zero, others, zero), zero));
      return binary(Binary::mul, wide, derivative);
    }
    case Reduce::norm: {  // x / |x|, 0 at 0
      Tensor norm = spread(y, kept, x.shape());
      Tensor derivative = binary(Binary::mul, wide, binary(Binary::div, x, norm));
      Tensor zero = Tensor::zeros(x.dtype(), Shape{}, x.device());
      return where(compare(Compare::eq, norm, Number::of(int64_t{0})), zero, derivative);
    }
    case Reduce::var: {  // 2 (x - mean) / (n - correction)
      Dims dims = dims_between(kept, x.shape());
      Tensor mean = reduce(Reduce::mean, x, dims, true);
      double factor = 2 / (static_cast<double>(count) - correction);
      Tensor centered = binary(Binary::sub, x, mean);
      return binary(Binary::mul, binary(Binary::mul, wide, Number::of(factor)), centered);
    }
    case Reduce::max:
    case Reduce::min: {  // shared by all equal extremes, as in torch.amax
      Tensor same = compare(Compare::eq, x, spread(y, kept, x.shape()));
      Tensor share = cast(same, x.dtype());
      Dims dims = dims_between(kept, x.shape());
      Tensor ties = reduce(Reduce::sum, share, dims, true);
      return binary(Binary::mul, wide, binary(Binary::div, share, ties));
    }
    default:
      return wide;
  }
}

Tensor reduce_with(Reduce op, const Tensor& given, const Dims& dims, double correction, bool keep) {
  const char* name = kernels::name_of(op);
  check_dims(name, given, dims);
  DType dtype = result_type(op, given.dtype());
  // Integers are averaged as floats; bool has no max.
  Tensor x = given;
  if (is_float(dtype) && !is_float(x.dtype())) x = cast(x, DType::f64);
  if (dtype == DType::boolean && x.dtype() != DType::boolean) x = cast(x, DType::boolean);
  int64_t count = reduced_count(x, dims);
  bool needs_one = op == Reduce::max || op == Reduce::min;
  Shape stays;
  View in = reduced_last(x, dims, stays);
  if (needs_one && count == 0 && stays.count() > 0)
    throw TensorError(fmt::format("{} of {}: it is empty", name, text_of(given)));
  Tensor out = Tensor::empty(is_float(dtype) ? x.dtype() : dtype, stays, x.device());
  call(x.device(), &Kernels::reduce, name, op, in, correction, out.view());
  Shape kept = kept_shape(x, dims);
  if (is_recording(x) && is_float(dtype)) {
    bool plain = op == Reduce::sum || op == Reduce::mean;
    out = record(
        name, out, {x},
        [op, kept, count, correction, of_x = x.shape(), x = plain ? SavedTensor() : SavedTensor(x),
         y = plain ? SavedTensor() : SavedTensor(out)](const Tensor& grad, Gradients& to) {
          Tensor in_value = x.get();
          if (in_value) {
            to.set(0, gradient_of(op, in_value, y.get(), grad, kept, count, correction));
            return;
          }
          Tensor scaled = op == Reduce::sum ? grad
                                            : binary(Binary::mul, grad,
                                                     Number::of(1.0 / static_cast<double>(count)));
          to.set(0, spread(scaled, kept, of_x));
        });
  }
  out = cast(out, dtype);
  return keep ? reshape(out, kept) : out;
}

}  // namespace

Dims all_dims(const Tensor& x) {
  Dims dims;
  for (int dim = 0; dim < x.rank(); dim++) dims.push_back(dim);
  return dims;
}

Tensor reduce(Reduce op, const Tensor& x, const Dims& dims, bool keep) {
  return reduce_with(op, x, dims, 0, keep);
}

Tensor variance(const Tensor& x, const Dims& dims, double correction, bool keep) {
  return reduce_with(Reduce::var, x, dims, correction, keep);
}

// Equal values have a deviation of 0, whose derivative is defined as 0, as in PyTorch.
Tensor deviation(const Tensor& x, const Dims& dims, double correction, bool keep) {
  Tensor var = variance(x, dims, correction, keep), out;
  {
    NoRecord off;
    out = unary(Unary::sqrt, var);
  }
  if (!is_recording(var)) return out;
  return record("std", out, {var}, [y = SavedTensor(out)](const Tensor& grad, Gradients& to) {
    Tensor root = y.get(), zero = Tensor::zeros(grad.dtype(), Shape{}, grad.device());
    Tensor derivative = binary(Binary::div, binary(Binary::mul, grad, Number::of(0.5)), root);
    to.set(0, where(compare(Compare::eq, root, Number::of(int64_t{0})), zero, derivative));
  });
}

Tensor extreme_of(bool largest, const Tensor& given, const Dims& dims, bool keep) {
  Tensor x = given.dtype() == DType::boolean ? cast(given, DType::u8) : given;
  Tensor out = reduce_with(largest ? Reduce::max : Reduce::min, x, dims, 0, keep);
  return cast(out, given.dtype());
}

Extreme extreme(bool largest, const Tensor& given, int dim, int64_t base, bool keep) {
  const char* name = largest ? "max" : "min";
  check_dims(name, given, {dim});
  Tensor x = given.dtype() == DType::boolean ? cast(given, DType::u8) : given;
  Shape stays;
  View in = reduced_last(x, {dim}, stays);
  if (x.size(dim) == 0 && stays.count() > 0)
    throw TensorError(fmt::format("{} of {}: it is empty", name, text_of(given)));
  Extreme out{Tensor::empty(x.dtype(), stays, x.device()),
              Tensor::empty(DType::i64, stays, x.device())};
  if (stays.count() > 0)
    call(x.device(), &Kernels::extreme, name, largest, in, base, out.value.view(),
         out.index.view());
  if (is_recording(x)) {
    out.value = record(name, out.value, {x},
                       [dim, base, of_x = x.shape(), index = SavedTensor(out.index)](
                           const Tensor& grad, Gradients& to) {
                         Tensor zero = Tensor::zeros(grad.dtype(), of_x, grad.device());
                         to.set(0, scatter_add(zero, dim, unsqueeze(index.get(), dim),
                                               unsqueeze(grad, dim), base));
                       });
  }
  out.value = cast(out.value, given.dtype());
  if (!keep) return out;
  return {unsqueeze(out.value, dim), unsqueeze(out.index, dim)};
}

Tensor cumsum(const Tensor& given, int dim) {
  check_dims("cumsum", given, {dim});
  DType dtype = is_float(given.dtype()) ? given.dtype() : DType::i64;
  Tensor x = cast(given, dtype);
  Tensor out = Tensor::empty(dtype, x.shape(), x.device());
  int last = x.rank() - 1;
  call(x.device(), &Kernels::cumsum, "cumsum", kernels::swap_dims(x.view(), dim, last),
       kernels::swap_dims(out.view(), dim, last));
  if (!is_recording(x)) return out;
  return record("cumsum", out, {x}, [dim](const Tensor& grad, Gradients& to) {
    int64_t size = grad.size(dim);  // the sums from the other end
    if (size == 0) return to.set(0, grad);
    Tensor back = narrow(grad, dim, size - 1, size, -1);
    to.set(0, narrow(cumsum(back, dim), dim, size - 1, size, -1));
  });
}

double item_of(const Tensor& x) {
  if (x.count() != 1)
    throw TensorError(fmt::format("x:item() is of one element, not of {}", text_of(x)));
  double value = 0;
  NoRecord off;
  // Moved first: the GPU would launch a kernel for the cast.
  Tensor wide = cast(move(x.detached(), {}), DType::f64);
  move_bytes({}, wide.view().data, {}, &value, sizeof value);
  return value;
}

int64_t integer_of(const Tensor& x) {
  if (x.count() != 1)
    throw TensorError(fmt::format("x:item() is of one element, not of {}", text_of(x)));
  int64_t value = 0;
  NoRecord off;
  Tensor wide = cast(move(x.detached(), {}), DType::i64);
  move_bytes({}, wide.view().data, {}, &value, sizeof value);
  return value;
}

}  // namespace flow::tensors
