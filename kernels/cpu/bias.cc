// A row added to every row of a matrix, and its gradient.
#include "kernels/cpu/bias.hpp"

namespace flow::cpu {

void add_bias(float* matrix, const float* bias, int64_t rows, int64_t columns) {
  for (int64_t row = 0; row < rows; row++)
    for (int64_t column = 0; column < columns; column++)
      matrix[row * columns + column] += bias[column];
}

void add_sum_of_rows(const float* matrix, float* out, int64_t rows, int64_t columns) {
  for (int64_t row = 0; row < rows; row++)
    for (int64_t column = 0; column < columns; column++)
      out[column] += matrix[row * columns + column];
}

}  // namespace flow::cpu
