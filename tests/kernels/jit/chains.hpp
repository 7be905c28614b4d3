// Chains that together have all operations of fused kernels, each kind of step, and all
// temporaries.
#pragma once
#include <vector>

#include "kernels/shared/fused_elementwise.hpp"

namespace flow::jit {

/// The inputs of the last one are 6; of the others 2.
inline std::vector<kernels::FusedElementwise> all_chains() {
  using namespace kernels;
  std::vector<FusedElementwise> chains;
  // With a step behind it: an operation whose result is rounded together with that of the next step
  // has other bits.
  auto add = [&](FusedStep step) {
    FusedElementwise chain;
    chain.inputs = 2;
    chain.steps = 2;
    chain.step[0] = step;
    chain.step[1] = {FusedStep::binary, static_cast<uint8_t>(Binary::add), kFusedInputs, 1};
    chains.push_back(chain);
  };
  for (int op = 0; op < kUnaryCount; op++) add({FusedStep::unary, static_cast<uint8_t>(op)});
  for (int op = 0; op < kBinaryCount; op++) {
    add({FusedStep::binary, static_cast<uint8_t>(op), 0, 1});
    add({FusedStep::number, static_cast<uint8_t>(op), 0, 0, 0, 1.7});
    add({FusedStep::reversed, static_cast<uint8_t>(op), 0, 0, 0, -0.3});
  }
  add({FusedStep::clamp, 0, 0, 0, 0, -0.9, 0.7});
  FusedElementwise wide;
  wide.inputs = kFusedInputs;
  auto step = [&](FusedStep made) { wide.step[wide.steps++] = made; };
  auto room = [](int i) { return static_cast<int8_t>(kFusedInputs + i); };
  for (int8_t i = 0; i < kFusedInputs; i++)
    step({FusedStep::number, static_cast<uint8_t>(i % 3), i, 0, i, 0.25 * i - 0.8});
  // The sum, product and difference of all in turns, in two rooms that alternate.
  for (int8_t i = 1; i < kFusedInputs; i++)
    step({FusedStep::binary, static_cast<uint8_t>(i % 3), i == 1 ? room(0) : room(7 - i % 2),
          room(i), static_cast<int8_t>(6 + i % 2)});
  step({FusedStep::unary, static_cast<uint8_t>(Unary::gelu_tanh), room(7), 0, 1});
  step({FusedStep::clamp, 0, room(1), 0, 2, -3, 3});
  step({FusedStep::reversed, static_cast<uint8_t>(Binary::sub), room(2), 0, 3, 0.1});
  step({FusedStep::binary, static_cast<uint8_t>(Binary::mul), room(3), 5});
  chains.push_back(wide);
  return chains;
}

}  // namespace flow::jit
