// A row added to every row of a matrix, and its gradient.
#pragma once
#include <cstdint>

namespace flow::cpu {

/// matrix[rows, columns] += bias[columns], in place.
void add_bias(float* matrix, const float* bias, int64_t rows, int64_t columns);
/// out[columns] += sum over rows of matrix.
void add_sum_of_rows(const float* matrix, float* out, int64_t rows, int64_t columns);

}  // namespace flow::cpu
