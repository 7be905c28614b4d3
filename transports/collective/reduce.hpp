// Element-wise reduction of several ranks' data.
#pragma once
#include <cstddef>

#include "flow/collective.hpp"

namespace flow::collective {

/// Mean is a sum that is divided by `divisor` at the end; a divisor of 1 divides nothing.
struct Reducer {
  DType dtype = DType::f32;
  ReduceOp op = ReduceOp::sum;
  int divisor = 1;
};

/// out[i] = in[0][i], in[1][i], … combined in that order; the same into `also`, unless it is null.
/// Each output may be exactly one of the inputs.
void reduce(const Reducer& how, const void* const* in, int inputs, size_t count, void* out,
            void* also = nullptr);

bool is_small_float(DType dtype);  // f16, bf16: reduced in f32
void widen(DType small, const void* from, float* to, size_t count);
void narrow(DType small, const float* from, void* to, size_t count);

}  // namespace flow::collective
