// One optimizer step, in place.
#include <fmt/format.h>

#include <cmath>

#include "kernels/shared/types.hpp"
#include "kernels/tensor/autograd.hpp"
#include "kernels/tensor/ops.hpp"

namespace flow::tensors {
namespace {

void check_part(const char* name, const Tensor& weights, const Tensor& part) {
  if (part.shape() == weights.shape() && part.device() == weights.device()) return;
  throw TensorError(fmt::format("{} of {}: {} is of another shape or device", name,
                                text_of(weights), text_of(part)));
}

void check_weights(const char* name, const Tensor& weights) {
  bool wide = weights.dtype() == DType::f32 || weights.dtype() == DType::f64;
  if (!wide)
    throw TensorError(
        fmt::format("{} changes weights of f32 or f64, not {}: keep the weights in f32, and "
                    "compute in a smaller type with flow.autocast",
                    name, text_of(weights)));
  if (!kernels::is_dense(weights.view()))
    throw TensorError(
        fmt::format("{} changes dense weights, and {} is a view of "
                    "another tensor or transposed: make the parameter from x:contiguous()",
                    name, text_of(weights)));
}

// f32 weights have gradients of f32, bf16 and f16; f64 weights of f64.
Tensor fitting_gradient(const Tensor& weights, const Tensor& grad) {
  bool fits = weights.dtype() == DType::f64
                  ? grad.dtype() == DType::f64
                  : grad.dtype() != DType::f64 && kernels::is_float(grad.dtype());
  return contiguous(fits ? grad : cast(grad, weights.dtype()));
}

void check_moment(const char* name, const Tensor& weights, const Tensor& moment) {
  check_part(name, weights, moment);
  if (moment.dtype() == weights.dtype() && kernels::is_dense(moment.view())) return;
  throw TensorError(fmt::format("{} of {}: {} is not a dense tensor of that type", name,
                                text_of(weights), text_of(moment)));
}

}  // namespace

void adamw_step(const kernels::AdamW& options, const Tensor& weights, const Tensor& grad,
                double grad_scale, const Tensor& mean, const Tensor& square) {
  check_weights("adamw", weights);
  check_part("adamw", weights, grad);
  check_moment("adamw", weights, mean);
  check_moment("adamw", weights, square);
  NoRecord off;
  for (const Tensor* each : {&weights, &mean, &square}) each->note_write("adamw");
  Tensor fitted_grad = fitting_gradient(weights, grad);
  const View* no_copy = nullptr;
  call(weights.device(), &Kernels::adamw, "adamw", options, weights.view(), fitted_grad.view(),
       grad_scale, mean.view(), square.view(), no_copy);
}

void sgd_step(const kernels::Sgd& options, const Tensor& weights, const Tensor& grad,
              double grad_scale, const Tensor& momentum) {
  check_weights("sgd", weights);
  check_part("sgd", weights, grad);
  if (momentum) check_moment("sgd", weights, momentum);
  NoRecord off;
  weights.note_write("sgd");
  View moment;
  if (momentum) {
    momentum.note_write("sgd");
    moment = momentum.view();
  }
  Tensor fitted_grad = fitting_gradient(weights, grad);
  const View* no_copy = nullptr;
  call(weights.device(), &Kernels::sgd, "sgd", options, weights.view(), fitted_grad.view(),
       grad_scale, momentum ? &moment : nullptr, no_copy);
}

double clip_norm(const std::vector<Tensor>& tensors, double limit) {
  if (tensors.empty()) return 0;
  NoRecord off;
  std::vector<Tensor> sums;  // one per device
  for (const Tensor& each : tensors) {
    if (!kernels::is_float(each.dtype()))
      throw TensorError(fmt::format("a gradient is of floats, not {}", text_of(each)));
    Tensor* sum = nullptr;
    for (Tensor& known : sums)
      if (known.device() == each.device()) sum = &known;
    if (sum == nullptr) {
      sums.push_back(Tensor::zeros(DType::f64, Shape{1}, each.device()));
      sum = &sums.back();
    }
    call(each.device(), &Kernels::add_sum_of_squares, "clip_grad_norm", each.view(), sum->view());
  }
  double total = 0;
  for (const Tensor& sum : sums) total += item_of(sum);
  double norm = std::sqrt(total);
  double factor = limit / (norm + 1e-6);
  if (factor < 1)
    for (const Tensor& each : tensors) binary_in_place(Binary::mul, each, Number::of(factor));
  return norm;
}

}  // namespace flow::tensors
