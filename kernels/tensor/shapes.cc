// Views, casts, copies and joins. The gradient of a view is the view of a gradient.
#include <fmt/format.h>

#include <algorithm>

#include "kernels/shared/types.hpp"
#include "kernels/tensor/autograd.hpp"
#include "kernels/tensor/ops.hpp"

namespace flow::tensors {
namespace {

Tensor view_on(const Tensor& x, const View& view) { return Tensor(view, x.storage()); }

void copy_view(const Tensor& from, const Tensor& to) {
  call(from.device(), &Kernels::copy, "copy", from.view(), to.view());
}

void check_dim(const char* name, const Tensor& x, int dim) {
  if (dim < 0 || dim >= x.rank())
    throw TensorError(fmt::format("{} takes a dimension of 1..{} of {}, not {}", name, x.rank(),
                                  text_of(x), dim + 1));
}

}  // namespace

Tensor cast(const Tensor& x, DType dtype) {
  if (x.dtype() == dtype) return x;
  Tensor out = Tensor::empty(dtype, x.shape(), x.device());
  copy_view(x, out);
  if (!kernels::is_float(dtype) || !is_recording(x)) return out;
  return record("to", out, {x}, [dtype = x.dtype()](const Tensor& grad, Gradients& to) {
    to.set(0, cast(grad, dtype));
  });
}

Tensor move(const Tensor& x, const Device& device) {
  if (x.device() == device) return x;
  Tensor from = contiguous(x.detached());
  Tensor out = Tensor::empty(x.dtype(), x.shape(), device);
  move_bytes(from.device(), from.view().data, device, out.view().data, from.view().bytes());
  if (!is_recording(x)) return out;
  return record("to", out, {x}, [home = x.device()](const Tensor& grad, Gradients& to) {
    to.set(0, move(grad, home));
  });
}

Tensor copy_of(const Tensor& x) {
  Tensor out = Tensor::empty(x.dtype(), x.shape(), x.device());
  copy_view(x, out);
  if (!is_recording(x)) return out;
  return record("clone", out, {x}, [](const Tensor& grad, Gradients& to) { to.set(0, grad); });
}

Tensor contiguous(const Tensor& x) { return kernels::is_dense(x.view()) ? x : copy_of(x); }

Tensor reshape(const Tensor& x, const Shape& shape) {
  View view;
  if (shape.count() != x.count())
    throw TensorError(fmt::format("cannot reshape {} ({} elements) to {}", text_of(x), x.count(),
                                  kernels::text_of(shape)));
  if (!kernels::reshape(x.view(), shape, view)) return reshape(copy_of(x), shape);
  Tensor out = view_on(x, view);
  if (!is_recording(x)) return out;
  return record("reshape", out, {x}, [of_x = x.shape()](const Tensor& grad, Gradients& to) {
    to.set(0, reshape(grad, of_x));
  });
}

Tensor permute(const Tensor& x, const int* order) {
  Tensor out = view_on(x, kernels::permute(x.view(), order));
  if (!is_recording(x)) return out;
  std::vector<int> back(static_cast<size_t>(x.rank()));
  for (int dim = 0; dim < x.rank(); dim++) back[static_cast<size_t>(order[dim])] = dim;
  return record("permute", out, {x}, [back](const Tensor& grad, Gradients& to) {
    to.set(0, permute(grad, back.data()));
  });
}

Tensor swap_dims(const Tensor& x, int a, int b) {
  check_dim("transpose", x, a);
  check_dim("transpose", x, b);
  Tensor out = view_on(x, kernels::swap_dims(x.view(), a, b));
  if (!is_recording(x)) return out;
  return record("transpose", out, {x},
                [a, b](const Tensor& grad, Gradients& to) { to.set(0, swap_dims(grad, a, b)); });
}

Tensor narrow(const Tensor& x, int dim, int64_t first, int64_t length, int64_t step) {
  check_dim("narrow", x, dim);
  int64_t last = first + (length - 1) * step;
  if (length < 0 ||
      (length > 0 && (std::min(first, last) < 0 || std::max(first, last) >= x.size(dim))))
    throw TensorError(
        fmt::format("narrow: {} elements from {} are outside 1..{}, dimension {} of {}", length,
                    first + 1, x.size(dim), dim + 1, text_of(x)));
  Tensor out = view_on(x, kernels::narrow(x.view(), dim, first, length, step));
  if (!is_recording(x)) return out;
  return record("narrow", out, {x},
                [dim, first, length, step, of_x = x.shape()](const Tensor& grad, Gradients& to) {
                  Tensor whole = Tensor::zeros(grad.dtype(), of_x, grad.device());
                  copy_view(grad, narrow(whole, dim, first, length, step));
                  to.set(0, whole);
                });
}

Tensor select(const Tensor& x, int dim, int64_t index) {
  return squeeze(narrow(x, dim, index, 1), dim);
}

Tensor squeeze(const Tensor& x, int dim) {
  check_dim("squeeze", x, dim);
  if (x.size(dim) != 1)
    throw TensorError(
        fmt::format("squeeze: dimension {} of {} is not of size 1", dim + 1, text_of(x)));
  Tensor out = view_on(x, kernels::select(x.view(), dim, 0));
  if (!is_recording(x)) return out;
  return record("squeeze", out, {x},
                [dim](const Tensor& grad, Gradients& to) { to.set(0, unsqueeze(grad, dim)); });
}

Tensor unsqueeze(const Tensor& x, int dim) {
  if (x.rank() >= kernels::kRankMax)
    throw TensorError(fmt::format("a tensor has at most {} dimensions", kernels::kRankMax));
  if (dim < 0 || dim > x.rank())
    throw TensorError(fmt::format("unsqueeze takes a dimension of 1..{} of {}, not {}",
                                  x.rank() + 1, text_of(x), dim + 1));
  Tensor out = view_on(x, kernels::unsqueeze(x.view(), dim));
  if (!is_recording(x)) return out;
  return record("unsqueeze", out, {x},
                [dim](const Tensor& grad, Gradients& to) { to.set(0, squeeze(grad, dim)); });
}

Tensor expand(const Tensor& x, const Shape& shape) {
  Shape both;
  if (!kernels::broadcast(x.shape(), shape, both) || !(both == shape))
    throw TensorError(fmt::format("cannot expand {} to {}", text_of(x), kernels::text_of(shape)));
  Tensor out = view_on(x, kernels::broadcast_to(x.view(), shape));
  if (!is_recording(x)) return out;
  return record("expand", out, {x}, [of_x = x.shape()](const Tensor& grad, Gradients& to) {
    to.set(0, sum_to(grad, of_x));
  });
}

Tensor cat(const std::vector<Tensor>& given, int dim) {
  if (given.empty()) throw TensorError("cat takes at least one tensor");
  check_dim("cat", given[0], dim);
  DType dtype = given[0].dtype();
  for (const Tensor& each : given) dtype = common_type(dtype, each.dtype());
  std::vector<Tensor> parts;
  Shape shape = given[0].shape();
  shape[dim] = 0;
  for (const Tensor& each : given) {
    check_together("cat", {given[0], each});
    Shape other = each.shape();
    if (other.rank == shape.rank) other[dim] = shape[dim];
    if (!(other == shape))
      throw TensorError(fmt::format("cannot join {} and {} along dimension {}", text_of(given[0]),
                                    text_of(each), dim + 1));
    shape[dim] += each.size(dim);
    parts.push_back(cast(each, dtype));
  }
  Tensor out = Tensor::empty(dtype, shape, given[0].device());
  std::vector<int64_t> lengths;
  int64_t first = 0;
  for (const Tensor& each : parts) {
    copy_view(each, view_on(out, kernels::narrow(out.view(), dim, first, each.size(dim))));
    first += each.size(dim);
    lengths.push_back(each.size(dim));
  }
  if (!is_recording(parts)) return out;
  auto back = [dim, lengths](const Tensor& grad, Gradients& to) {
    int64_t at = 0;
    for (size_t i = 0; i < lengths.size(); i++) {
      if (to.wants(i)) to.set(i, narrow(grad, dim, at, lengths[i]));
      at += lengths[i];
    }
  };
  return attach(out, parts, RefPtr<Node>(new CallNode<decltype(back)>("cat", back)));
}

Tensor stack(const std::vector<Tensor>& parts, int dim) {
  std::vector<Tensor> thick;
  for (const Tensor& each : parts) {
    if (!(each.shape() == parts[0].shape()))
      throw TensorError(fmt::format("cannot stack {} and {}: stacked tensors have one shape",
                                    text_of(parts[0]), text_of(each)));
    thick.push_back(unsqueeze(each, dim));
  }
  return cat(thick, dim);
}

Tensor sum_to(const Tensor& x, const Shape& shape) {
  if (x.shape() == shape) return x;
  int extra = x.rank() - shape.rank;
  Dims dims;
  for (int dim = 0; dim < x.rank(); dim++)
    if (dim < extra || (shape[dim - extra] == 1 && x.size(dim) != 1)) dims.push_back(dim);
  return reshape(reduce(Reduce::sum, x, dims), shape);
}

}  // namespace flow::tensors
