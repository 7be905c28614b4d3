// Matrix products, batched and broadcast, and the linear layer. With mixed precision, their
// operands are rounded to the smaller type first; sums are f32.
#include <fmt/format.h>

#include <algorithm>

#include "kernels/shared/types.hpp"
#include "kernels/tensor/autograd.hpp"
#include "kernels/tensor/capture.hpp"
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

// ---- linear layers

using kernels::ProductEpilogue;

bool is_small(DType dtype) { return dtype == DType::f16 || dtype == DType::bf16; }

// A GPU multiplies matrices two to three times faster if their rows begin at multiples of 16
// bytes. A vocabulary of 50257 tokens is not such a multiple: a layer of so many outputs is
// computed with rows of 50304, of which the last columns are 0 and no tensor sees them.
constexpr int64_t kPadTo = 128, kPadMultiple = 8, kPadRows = 128;
int64_t padded_size(const Device& device, int64_t size) {
  bool pays = device.kind == Device::cuda && size >= kPadTo && size % kPadMultiple != 0;
  return pays ? (size + kPadTo - 1) / kPadTo * kPadTo : size;
}

Tensor first_rows(const Tensor& x, int64_t rows) {
  return x.size(0) == rows ? x : Tensor(kernels::narrow(x.view(), 0, 0, rows), x.storage());
}

// A weight or bias in the type of a product, with `rows` of them: its own, or padded_size of them.
// What was made of a parameter in mixed precision on a GPU stays with it until it changes; AdamW
// rounds it in its step.
Tensor rounded_weight(const Tensor& given, DType dtype, int64_t rows) {
  if (given.dtype() == dtype && given.size(0) == rows) return given.detached();
  Body& body = *given.body();
  bool stays = body.is_parameter && given.dtype() == DType::f32 && is_small(dtype) &&
               given.device().kind == Device::cuda;
  if (stays && runtime().capture != nullptr) {
    bool is_read = body.rounded && body.rounded->view.dtype == dtype &&
                   body.rounded_version == given.storage()->version;
    runtime().capture->touch_rounded(body, is_read);
  }
  Tensor kept(body.rounded);
  if (stays && kept && kept.dtype() == dtype && body.rounded_version == given.storage()->version)
    return first_rows(kept.detached(), rows);
  NoRecord off;
  Shape shape = given.shape();
  shape[0] = stays ? padded_size(given.device(), shape[0]) : rows;
  Tensor made = Tensor::empty(dtype, shape, given.device());
  int64_t own = given.size(0);
  if (shape[0] > own)
    fill_in_place(Tensor(kernels::narrow(made.view(), 0, own, shape[0] - own), made.storage()),
                  Number::of(int64_t{0}));
  copy_in_place(first_rows(made, own), given.detached());
  if (stays) {
    body.rounded = made.body();
    body.rounded_version = given.storage()->version;
  }
  return first_rows(made.detached(), rows);
}

// [rows, columns] of a tensor whose last dimension is the columns.
Tensor as_rows(const Tensor& x) {
  NoRecord off;
  int64_t rows = 1;
  for (int dim = 0; dim + 1 < x.rank(); dim++) rows *= x.size(dim);
  return reshape(x.detached(), Shape{rows, x.shape().last()});
}

// `x` with rows of `pitch` elements, of which the last are 0.
Tensor with_zeros(const Tensor& x, int64_t pitch) {
  int64_t rows = x.size(0), columns = x.size(1);
  if (columns == pitch) return x;
  const View& view = x.view();
  // Not if x is a part of the columns: the others are not free.
  bool has_room = x.storage()->pitch == pitch && x.storage()->columns == columns &&
                  view.data == x.storage()->data() && view.strides[1] == 1 &&
                  (rows == 1 || view.strides[0] == pitch);
  Tensor from = x;
  if (!has_room) {
    from = Tensor::empty_rows(x.dtype(), rows, columns, pitch, x.device());
    copy_in_place(from, x);
  }
  View whole = kernels::dense(x.dtype(), Shape{rows, pitch}, from.view().data);
  call(x.device(), &Kernels::fill, "fill", kernels::narrow(whole, 1, columns, pitch - columns),
       Number::of(int64_t{0}));
  return Tensor(whole, from.storage());
}

// Its operands are x, which has the type of the product, and the weight and the bias as they are:
// their gradients are computed in their own type.
class LinearNode : public Node {
 public:
  struct Saved {
    SavedTensor x, weight, before;  // `before`: with an activation
  };
  LinearNode(Saved saved, Unary activation, const Tensor& weight, const Tensor& bias)
      : Node("linear"),
        saved_(std::move(saved)),
        activation_(activation),
        outputs_(weight.size(0)),
        weight_type_(weight.dtype()),
        bias_type_(bias ? bias.dtype() : DType::f32),
        has_bias_(bias) {}

  void backward(const Tensor& gradient, Gradients& to) override {
    Tensor grad = as_rows(gradient);
    if (activation_ != Unary::identity) {
      Tensor before = saved_.before.get();
      Tensor inner = Tensor::empty_rows(grad.dtype(), grad.size(0), outputs_,
                                        saved_.weight.get().size(0), grad.device());
      call(grad.device(), &Kernels::unary_backward, "linear", activation_, before.view(),
           before.view(), grad.view(), inner.view());
      grad = inner;
    }
    pass(grad, {}, to);
  }
  ActivationInput activation_input() const override {
    if (activation_ == Unary::identity) return {};
    return {activation_, saved_.before.get(), has_bias_};
  }
  void backward_before_activation(const Tensor& gradient, const Tensor& column_sums,
                                  Gradients& to) override {
    pass(as_rows(gradient), column_sums, to);
  }
  void release() override { saved_ = {}; }

 private:
  // `given` is the gradient of the sums, and `sums` those of its columns, or empty.
  void pass(const Tensor& given, const Tensor& sums, Gradients& to) const {
    Tensor x = saved_.x.get(), weight = saved_.weight.get();
    Tensor grad = with_zeros(given, weight.size(0)), rows = as_rows(x);
    if (to.wants(0)) pass_to_input(grad, x.shape(), weight, to);
    Tensor bias_gradient = sums;
    if (to.wants(1)) {
      bool widens = is_small(grad.dtype()) && weight_type_ == DType::f32;
      DType dtype = widens ? DType::f32 : grad.dtype();
      Tensor out = Tensor::empty(dtype, Shape{grad.size(1), rows.size(1)}, grad.device());
      ProductEpilogue epilogue;
      View of_sums;
      if (to.wants(2) && !bias_gradient) {
        bias_gradient = Tensor::empty(dtype, Shape{grad.size(1)}, grad.device());
        of_sums = bias_gradient.view();
        epilogue.row_sums = &of_sums;
      }
      call(grad.device(), &Kernels::product, "linear", kernels::swap_dims(grad.view(), 0, 1),
           rows.view(), epilogue, out.view());
      to.set(1, cast(first_rows(out, outputs_), weight_type_));
    }
    if (!to.wants(2)) return;
    if (!bias_gradient) bias_gradient = reduce(Reduce::sum, grad, {0});
    to.set(2, cast(first_rows(bias_gradient, outputs_), bias_type_));
  }
  static void pass_to_input(const Tensor& grad, const Shape& shape, const Tensor& weight,
                            Gradients& to) {
    Tensor out = Tensor::empty(grad.dtype(), Shape{grad.size(0), weight.size(1)}, grad.device());
    const ActivationInput& input = to.activation_of(0);
    ProductEpilogue epilogue;
    View of_before, of_sums;
    Tensor sums;
    if (input.before) {
      epilogue.activation = input.activation;
      epilogue.is_gradient = true;
      of_before = input.before.view();
      epilogue.before = &of_before;
      if (input.wants_sums) {
        sums = Tensor::empty(grad.dtype(), Shape{weight.size(1)}, grad.device());
        of_sums = sums.view();
        epilogue.column_sums = &of_sums;
      }
    }
    call(grad.device(), &Kernels::product, "linear", grad.view(), weight.view(), epilogue,
         out.view());
    Tensor shaped = reshape(out, shape);
    out = {};
    if (input.before)
      to.set_before_activation(0, shaped, sums);
    else
      to.set(0, shaped);
  }

  Saved saved_;
  Unary activation_;
  int64_t outputs_;
  DType weight_type_, bias_type_;
  bool has_bias_;
};

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

Tensor linear(const Tensor& given, const Tensor& weight, const Tensor& bias, Unary activation) {
  DType dtype = product_type("linear", given, weight);
  if (weight.rank() != 2 || given.rank() == 0 || given.shape().last() != weight.size(1) ||
      (bias && !(bias.shape() == Shape{weight.size(0)})))
    throw TensorError(
        fmt::format("linear takes x […, in], a weight [out, in] and a bias [out], not "
                    "{}, {}{}",
                    text_of(given), text_of(weight), bias ? " and " + text_of(bias) : ""));
  check_together("linear", {given, weight, bias});
  Tensor x = cast(given, dtype), rows = as_rows(x);
  int64_t outputs = weight.size(0), count = rows.size(0);
  bool pads = count >= kPadRows && dtype != DType::f64;
  int64_t pitch = pads ? padded_size(x.device(), outputs) : outputs;
  Tensor used_weight = rounded_weight(weight, dtype, pitch);
  Tensor used_bias = bias ? rounded_weight(bias, dtype, pitch) : Tensor();
  Tensor out = Tensor::empty_rows(dtype, count, outputs, pitch, x.device());
  bool records = is_recording(x, weight, bias);
  // A library needs rows of whole packs for the operand of an activation too.
  Tensor before;
  if (records && activation != Unary::identity)
    before = Tensor::empty_rows(dtype, count, outputs, pitch, x.device());
  ProductEpilogue epilogue;
  epilogue.activation = activation;
  View of_bias, of_before;
  auto whole = [&](const Tensor& each) {
    return kernels::dense(dtype, Shape{count, pitch}, each.view().data);
  };
  if (used_bias) {
    of_bias = used_bias.view();
    epilogue.bias = &of_bias;
  }
  if (before) {
    of_before = whole(before);
    epilogue.before = &of_before;
  }
  call(x.device(), &Kernels::product, "linear", rows.view(),
       kernels::swap_dims(used_weight.view(), 0, 1), epilogue, whole(out));
  Shape shape = x.shape();
  shape[shape.rank - 1] = outputs;
  Tensor result = reshape(out, shape);
  if (!records) return result;
  LinearNode::Saved saved{SavedTensor(x), SavedTensor(used_weight), SavedTensor(before)};
  return attach(result, {x, weight, bias},
                RefPtr<Node>(new LinearNode(std::move(saved), activation, weight, bias)));
}

}  // namespace flow::tensors
