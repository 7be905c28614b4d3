// One step of AdamW (Loshchilov and Hutter), all in one pass over the parameters.
#pragma once
#include <cstdint>

namespace flow::cpu {

struct AdamW {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0.01;
  int64_t step = 1;  // the first step is 1
};
/// Updates `weights` and the moments `mean` and `square` in place, as PyTorch's AdamW does.
void adamw(const AdamW& options, float* weights, const float* grad, float* mean, float* square,
           int64_t count);

}  // namespace flow::cpu
