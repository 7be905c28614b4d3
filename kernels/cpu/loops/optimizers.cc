// One optimizer step over weights, in one pass.
#include <cstdint>

#include "kernels/cpu/loops/all.hpp"
#include "kernels/cpu/loops/math.hpp"

namespace flow::cpu::FLOW_ISA {
namespace {

template <typename T>
void adamw_run(const AdamWStep& step, void* to, const void* grad_data, void* means, void* squares,
               int64_t count) {
  T *weights = static_cast<T*>(to), *mean = static_cast<T*>(means),
    *square = static_cast<T*>(squares);
  const T* grad = static_cast<const T*>(grad_data);
  T beta1 = static_cast<T>(step.beta1), rest1 = static_cast<T>(1 - step.beta1),
    beta2 = static_cast<T>(step.beta2), rest2 = static_cast<T>(1 - step.beta2),
    size = static_cast<T>(step.step_size), root = static_cast<T>(step.root_correction),
    eps = static_cast<T>(step.eps), decay = static_cast<T>(step.decay),
    scale = static_cast<T>(step.grad_scale);
#pragma omp simd
  for (int64_t i = 0; i < count; i++) {
    T g = grad[i] * scale;
    T m = beta1 * mean[i] + rest1 * g;
    T v = beta2 * square[i] + rest2 * (g * g);
    mean[i] = m;
    square[i] = v;
    weights[i] = weights[i] * decay - size * (m / (sqrt(v) * root + eps));
  }
}

template <typename T>
void sgd_run(const SgdStep& step, void* to, const void* grad_data, void* kept, int64_t count) {
  T *weights = static_cast<T*>(to), *momentum = static_cast<T*>(kept);
  const T* grad = static_cast<const T*>(grad_data);
  T lr = static_cast<T>(step.lr), keep = static_cast<T>(step.momentum),
    gain = static_cast<T>(step.gain), decay = static_cast<T>(step.weight_decay),
    scale = static_cast<T>(step.grad_scale);
  if (momentum == nullptr) {
#pragma omp simd
    for (int64_t i = 0; i < count; i++)
      weights[i] = weights[i] - lr * (grad[i] * scale + decay * weights[i]);
    return;
  }
  if (step.first) {
    keep = 0;
    gain = 1;
  }
  T ahead = static_cast<T>(step.momentum);
  bool first = step.first, nesterov = step.nesterov;
#pragma omp simd
  for (int64_t i = 0; i < count; i++) {
    T g = grad[i] * scale + decay * weights[i];
    T before = first ? T(0) : momentum[i];  // uninitialized at the first step
    T m = keep * before + gain * g;
    momentum[i] = m;
    weights[i] = weights[i] - lr * (nesterov ? g + ahead * m : m);
  }
}

}  // namespace

void fill_optimizers(Loops& loops) {
  loops.adamw[kF32] = adamw_run<float>;
  loops.adamw[kF64] = adamw_run<double>;
  loops.sgd[kF32] = sgd_run<float>;
  loops.sgd[kF64] = sgd_run<double>;
}

}  // namespace flow::cpu::FLOW_ISA
