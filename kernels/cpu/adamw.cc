// One step of AdamW, all in one pass over the parameters.
#include "kernels/cpu/adamw.hpp"

#include <cmath>

namespace flow::cpu {

void adamw(const AdamW& options, float* weights, const float* grad, float* mean, float* square,
           int64_t count) {
  double correction1 = 1 - std::pow(options.beta1, static_cast<double>(options.step));
  double correction2 = 1 - std::pow(options.beta2, static_cast<double>(options.step));
  auto decay = static_cast<float>(1 - options.lr * options.weight_decay);
  auto rate = static_cast<float>(options.lr / correction1);
  auto root = static_cast<float>(std::sqrt(correction2));
  auto beta1 = static_cast<float>(options.beta1), beta2 = static_cast<float>(options.beta2);
  auto rest1 = static_cast<float>(1 - options.beta1), rest2 = static_cast<float>(1 - options.beta2);
  auto eps = static_cast<float>(options.eps);
  for (int64_t i = 0; i < count; i++) {
    float g = grad[i];
    mean[i] = beta1 * mean[i] + rest1 * g;
    square[i] = beta2 * square[i] + rest2 * g * g;
    weights[i] = weights[i] * decay - rate * mean[i] / (std::sqrt(square[i]) / root + eps);
  }
}

}  // namespace flow::cpu
