// Creating tensors, and checks before in-place writes.
#include "kernels/tensor/tensor.hpp"

#include <fmt/format.h>

#include "kernels/shared/types.hpp"
#include "kernels/tensor/autograd.hpp"
#include "kernels/tensor/capture.hpp"
#include "kernels/tensor/ops.hpp"

namespace flow::tensors {
namespace {

constexpr int64_t kBytesMax = int64_t{1} << 40;

}  // namespace

Tensor::Tensor(const View& view, RefPtr<Storage> storage) : body_(make<Body>()) {
  body_->view = view;
  body_->storage = std::move(storage);
  if (runtime().capture != nullptr) runtime().capture->note_body(*body_);
}

Tensor Tensor::empty(DType dtype, const Shape& shape, const Device& device) {
  auto room = kBytesMax / static_cast<int64_t>(dtype_size(dtype));
  for (int dim = 0; dim < shape.rank; dim++) {
    if (shape[dim] == 0) continue;
    room /= shape[dim];
    if (room == 0)
      throw TensorError(fmt::format("a tensor {} {} is too large: a tensor has at most {} bytes",
                                    dtype_name(dtype), kernels::text_of(shape), kBytesMax));
  }
  auto bytes = static_cast<size_t>(shape.count()) * dtype_size(dtype);
  RefPtr<Storage> storage = Storage::allocate(device, bytes);
  View view = kernels::dense(dtype, shape, storage->data());
  return Tensor(view, std::move(storage));
}

Tensor Tensor::empty_rows(DType dtype, int64_t rows, int64_t columns, int64_t pitch,
                          const Device& device) {
  Tensor whole = empty(dtype, Shape{rows, pitch}, device);
  if (pitch == columns) return whole;
  whole.storage()->pitch = pitch;
  whole.storage()->columns = columns;
  return Tensor(kernels::narrow(whole.view(), 1, 0, columns), whole.storage());
}

Tensor Tensor::full(DType dtype, const Shape& shape, Number value, const Device& device) {
  Number fits = checked(value, dtype);
  Tensor made = empty(dtype, shape, device);
  call(device, &Kernels::fill, "fill", made.view(), fits);
  return made;
}

void Tensor::want_gradient(bool wanted) {
  if (wanted && !kernels::is_float(dtype()))
    throw TensorError(fmt::format("only floats have gradients, not {}", text_of(*this)));
  if (node())
    throw TensorError(
        fmt::format("{} was computed by `{}`: its gradient is passed to the tensors that it was "
                    "computed from. Use the gradient of those, or of x:detach()",
                    text_of(*this), node()->name()));
  body_->wants_gradient = wanted;
  if (wanted) body_->is_parameter = true;
}

Tensor Tensor::gradient() const {
  if (runtime().capture != nullptr) runtime().capture->touch_gradient(*body_, true);
  return Tensor(body_->gradient);
}
void Tensor::set_gradient(const Tensor& gradient) {
  if (runtime().capture != nullptr) runtime().capture->touch_gradient(*body_, false);
  body_->gradient = gradient.body();
}
void Tensor::set_node(RefPtr<Node> node) { body_->node = std::move(node); }
Tensor Tensor::detached() const { return Tensor(view(), storage()); }

void Tensor::note_write(const char* operation) const {
  if (storage()->is_read_only())
    throw TensorError(
        fmt::format("{} can't be changed by `{}`: it is a file's content, read in "
                    "place. Change a copy: x:clone()",
                    text_of(*this), operation));
  if (is_tracked() && runtime().records)
    throw TensorError(
        fmt::format("`{}` would change {}, whose gradient is wanted, behind autograd's "
                    "back: write y = x + … for a new tensor, or call it inside "
                    "flow.no_grad(function() … end)",
                    operation, text_of(*this)));
  for (int dim = 0; dim < rank(); dim++)
    if (view().strides[dim] == 0 && size(dim) > 1)
      throw TensorError(
          fmt::format("`{}` would write {} several times into one element: it was "
                      "broadcast by expand. Write x:clone() first",
                      operation, text_of(*this)));
  if (kernels::overlaps_itself(view()))
    throw TensorError(
        fmt::format("`{}` would write {} several times into one element: its rows are windows "
                    "that overlap. Write x:clone() first",
                    operation, text_of(*this)));
  storage()->note_write();
}

std::string text_of(const Tensor& tensor) {
  std::string text =
      fmt::format("tensor {} {}", dtype_name(tensor.dtype()), kernels::text_of(tensor.shape()));
  if (tensor.device().kind != Device::cpu) text += " on " + text_of(tensor.device());
  return text;
}

}  // namespace flow::tensors
