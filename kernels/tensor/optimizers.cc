// One optimizer step, in place.
#include <fmt/format.h>

#include <cmath>
#include <set>

#include "kernels/shared/adamw.hpp"
#include "kernels/shared/types.hpp"
#include "kernels/tensor/autograd.hpp"
#include "kernels/tensor/capture.hpp"
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

namespace {

// Where a step writes what it rounds: the weights in the type of mixed precision, which the next
// products use, if they exist and no backward needs them as they were.
View rounded_place(const Tensor& weights) {
  Body& body = *weights.body();
  if (!body.rounded) return {};
  if (runtime().capture != nullptr) runtime().capture->touch_rounded(body, false);
  bool is_current = body.rounded_version == weights.storage()->version;
  if (!is_current || body.rounded->is_shared() || body.rounded->storage->is_shared()) {
    body.rounded = {};
    return {};
  }
  return kernels::narrow(body.rounded->view, 0, 0, weights.size(0));
}

}  // namespace

void set_adamw_rates(GraphWords& words, size_t first, const kernels::AdamW& options,
                     const std::vector<int64_t>& steps) {
  if (steps.empty()) return;
  if (!words.has_taken(first, steps.size() * kernels::kAdamWRates))
    throw TensorError(fmt::format(
        "the graph has no step of AdamW numbered {} with {} tensors: pass the list of the step and "
        "the number that it returned when it was recorded",
        first, steps.size()));
  for (size_t i = 0; i < steps.size(); i++) {
    kernels::AdamWRates rates = kernels::adamw_rates(options, steps[i]);
    size_t at = first + i * kernels::kAdamWRates;
    words.set(at, rates.decay);
    words.set(at + 1, rates.size);
    words.set(at + 2, rates.root);
  }
}

namespace {

void note_operands(const kernels::AdamWTensor& tensor) {
  for (const View* each : {&tensor.weights, &tensor.grad, &tensor.mean, &tensor.square})
    note_use(*each);
  if (tensor.copy.data != nullptr) note_use(tensor.copy);
}

// The rates of a step that is recorded are words of its graph, which each launch sets anew.
size_t record_rates(const kernels::AdamW& options, std::vector<kernels::AdamWTensor>& tensors) {
  GraphWords& words = runtime().capture->words();
  size_t first = words.take(tensors.size() * kernels::kAdamWRates);
  std::vector<int64_t> steps;
  for (size_t i = 0; i < tensors.size(); i++) {
    steps.push_back(tensors[i].step);
    tensors[i].rates =
        reinterpret_cast<const double*>(words.address(first + i * kernels::kAdamWRates));
    note_operands(tensors[i]);
  }
  set_adamw_rates(words, first, options, steps);
  return first;
}

}  // namespace

size_t adamw_steps(const kernels::AdamW& options, const std::vector<AdamWOperands>& given,
                   double grad_scale, const Tensor& factor) {
  NoRecord off;
  std::vector<Tensor> gradients;  // which the calls below read
  std::vector<kernels::AdamWTensor> tensors;
  for (const AdamWOperands& each : given) {
    check_weights("adamw", each.weights);
    check_part("adamw", each.weights, each.grad);
    check_moment("adamw", each.weights, each.mean);
    check_moment("adamw", each.weights, each.square);
    gradients.push_back(fitting_gradient(each.weights, each.grad));
  }
  for (size_t i = 0; i < given.size(); i++) {
    const AdamWOperands& each = given[i];
    kernels::AdamWTensor tensor;
    tensor.copy = rounded_place(each.weights);
    for (const Tensor* changed : {&each.weights, &each.mean, &each.square})
      changed->note_write("adamw");
    each.weights.body()->rounded_version = each.weights.storage()->version;
    tensor.weights = each.weights.view();
    tensor.grad = gradients[i].view();
    tensor.mean = each.mean.view();
    tensor.square = each.square.view();
    tensor.step = each.step;
    tensors.push_back(tensor);
  }
  size_t first_word = runtime().capture == nullptr ? 0 : record_rates(options, tensors);
  for (size_t i = 0; i < given.size();) {  // neighbors on one device, each storage once
    size_t first = i;
    const Device& device = given[first].weights.device();
    std::set<const Storage*> seen;
    while (i < given.size() && given[i].weights.device() == device &&
           seen.insert(given[i].weights.storage().get()).second)
      i++;
    View of_factor;
    Tensor there;
    if (factor) {
      there = move(factor, device);
      of_factor = there.view();
    }
    call(device, &Kernels::adamw_all, "adamw", options, tensors.data() + first,
         static_cast<int64_t>(i - first), grad_scale, factor ? &of_factor : nullptr);
  }
  return first_word;
}

void adamw_step(const kernels::AdamW& options, const Tensor& weights, const Tensor& grad,
                double grad_scale, const Tensor& mean, const Tensor& square) {
  check_not_captured("x:adamw_, whose step is a number: use flow.optim.adamw");
  adamw_steps(options, {{weights, grad, mean, square, options.step}}, grad_scale, {});
}

void sgd_step(const kernels::Sgd& options, const Tensor& weights, const Tensor& grad,
              double grad_scale, const Tensor& momentum) {
  check_not_captured("x:sgd_, whose rate is a number: use flow.optim.adamw");
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

namespace {

std::vector<View> views_of(const std::vector<Tensor>& tensors) {
  std::vector<View> views;
  for (const Tensor& each : tensors) {
    if (!kernels::is_float(each.dtype()))
      throw TensorError(fmt::format("a gradient is of floats, not {}", text_of(each)));
    views.push_back(each.view());
  }
  return views;
}

}  // namespace

Tensor norm_and_factor(const std::vector<Tensor>& tensors, double limit) {
  NoRecord off;
  std::vector<View> views = views_of(tensors);
  Tensor out = Tensor::empty(DType::f64, Shape{2}, tensors.front().device());
  if (runtime().capture != nullptr)
    for (const View& each : views) note_use(each);
  call(out.device(), &Kernels::norm_of_all, "clip_grad_norm", views.data(),
       static_cast<int64_t>(views.size()), limit, out.view());
  return out;
}

Tensor clip_norm_on_gpu(const std::vector<Tensor>& tensors, double limit) {
  std::set<const Storage*> seen;  // one launch must not change an element twice
  for (const Tensor& each : tensors)
    if (each.count() > 0 && !seen.insert(each.storage().get()).second) return {};
  for (const Tensor& each : tensors)
    if (each.device().kind != Device::cuda || !(each.device() == tensors.front().device()) ||
        !kernels::is_dense(each.view()))
      return {};
  if (tensors.empty()) return {};
  NoRecord off;
  Tensor both = norm_and_factor(tensors, limit);
  for (const Tensor& each : tensors) each.note_write("clip_grad_norm");
  std::vector<View> views = views_of(tensors);
  call(both.device(), &Kernels::scale_all, "clip_grad_norm", views.data(),
       static_cast<int64_t>(views.size()), select(both, 0, 1).view());
  return select(both, 0, 0);
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
