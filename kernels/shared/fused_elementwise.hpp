// A chain of element-wise operations in one pass: intermediate results are never in memory.
#pragma once
#include <cstdint>

#include "kernels/shared/ops.hpp"

namespace flow::kernels {

constexpr int kFusedInputs = 6;       // operands from memory
constexpr int kFusedTemporaries = 8;  // values for a later step
constexpr int kFusedSteps = 32;

struct FusedStep {
  enum Kind : uint8_t {
    unary,     // op(a)
    binary,    // a op b
    number,    // a op x
    reversed,  // x op a
    clamp,     // min(max(a, x), y)
  };
  Kind kind = unary;
  uint8_t op = 0;       // of Unary or Binary
  int8_t a = 0, b = 0;  // an input, or kFusedInputs + a temporary
  int8_t to = 0;        // a temporary; unused in the last step, whose value is the result
  double x = 0, y = 0;
};

struct FusedElementwise {
  int inputs = 0, steps = 0;
  FusedStep step[kFusedSteps];
};

}  // namespace flow::kernels
