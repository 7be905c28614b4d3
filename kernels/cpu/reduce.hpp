// Many elements to one: sums and extremes along a dimension. Fixed order, so the same on every run.
#pragma once
#include "kernels/shared/view.hpp"

namespace flow::cpu {

using namespace kernels;

/// out = sum of `in` along its last dimension. `out` has the other dimensions; f32 or f64 of
/// floats (summed in f64), i64 of integers.
void sum_last(const View& in, const View& out);
/// The extreme along the last dimension and where it is first (0-based, i64). A NaN is extreme.
/// `in` is f32, f64, i64, i32 or u8 and its last dimension not empty; `value` has its type.
void extreme_last(bool largest, const View& in, const View& value, const View& index);

}  // namespace flow::cpu
