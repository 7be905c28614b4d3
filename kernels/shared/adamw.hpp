// The factors of a step of AdamW: computed on the host, so that it has the same bits wherever
// the step runs.
#pragma once
#include <cmath>

#include "kernels/table.hpp"

namespace flow::kernels {

struct AdamWRates {
  double decay;  // of the weights
  double size;   // of the quotient of the moments
  double root;   // of the root of the second moment
};
/// AdamWTensor::rates holds as many, in this order.
constexpr int64_t kAdamWRates = 3;

inline AdamWRates adamw_rates(const AdamW& options, int64_t step) {
  auto count = static_cast<double>(step);
  return {1 - options.lr * options.weight_decay, options.lr / (1 - std::pow(options.beta1, count)),
          1 / std::sqrt(1 - std::pow(options.beta2, count))};
}

}  // namespace flow::kernels
