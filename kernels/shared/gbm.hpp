// Geometric Brownian motion, step by step, equal on host and device: the logarithm of the price is
// summed in double, so that the end of a path does not depend on whether its steps are stored.
#pragma once
#include <cmath>
#include <cstdint>

#include "kernels/shared/hd.hpp"
#include "kernels/shared/normal.hpp"

namespace flow::kernels {

/// The increment of the logarithm per step: drift + diffusion * Z.
struct GbmStep {
  double drift, diffusion;
};

/// Computed once, on the host.
inline GbmStep gbm_step(double rate, double volatility, double years, int64_t steps) {
  double step = years / static_cast<double>(steps);
  return {(rate - volatility * volatility / 2) * step, volatility * std::sqrt(step)};
}

/// Position of the normal number of step `step` (from 0) of path `path`.
FLOW_HD uint64_t gbm_number(uint64_t path, uint64_t steps, uint64_t step) {
  return path * steps + step;
}

FLOW_HD double gbm_normal(uint64_t seed, uint64_t number) {
  return normal_double(seed, number, RandomUse::gbm);
}

/// The logarithm, relative to the start, after one more step.
FLOW_HD double gbm_add(double logarithm, GbmStep step, double normal) {
  return logarithm + fma(step.diffusion, normal, step.drift);
}

FLOW_HD double gbm_price(double start, double logarithm) { return start * exact_exp(logarithm); }

}  // namespace flow::kernels
