// The speed of products by cuBLASLt without flow.
#pragma once
#include <string>

#include "flow/result.hpp"

namespace flow::gpu {

/// Multiply and add operations per second of an n x n x n product in bf16 with f32 sums, by direct
/// calls of cuBLASLt: the fastest of the algorithms that its heuristics offer. An error says which
/// call failed, or why the library is not there.
Result<double> raw_product_rate(void* stream, int64_t n);

}  // namespace flow::gpu
