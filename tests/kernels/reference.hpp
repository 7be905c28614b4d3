// Shared by the kernels' tests: matrices of doubles, numbers that are the same on every run, and
// how far a result in float may lie from one in double.
#pragma once
#include <catch2/catch.hpp>
#include <random>
#include <vector>

#include "kernels/shared/view.hpp"

namespace flow::cpu {

using namespace kernels;

using Floats = std::vector<float>;

inline Floats some_floats(int64_t count, unsigned seed = 1) {
  std::mt19937 random(seed);
  Floats out(static_cast<size_t>(count));
  for (float& each : out) each = static_cast<float>(random() % 2000) / 500 - 2;
  return out;
}

inline View view_of(Floats& values, const Shape& shape) {
  return dense(DType::f32, shape, values.data());
}

/// Relative to the size of what was summed up.
inline void check_near(double actual, double expected, double scale = 1, double tolerance = 1e-6) {
  CHECK(std::abs(actual - expected) <= tolerance * std::max(scale, 1.0));
}

}  // namespace flow::cpu
