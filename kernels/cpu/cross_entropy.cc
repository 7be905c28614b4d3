// Log-softmax of rows, and the mean cross entropy of them with its gradient.
#include "kernels/cpu/cross_entropy.hpp"

#include <algorithm>
#include <cmath>

namespace flow::cpu {
namespace {

// log of the sum of exponentials, with the largest taken out so that nothing overflows.
double log_sum_exp(const float* row, int64_t columns) {
  float largest = *std::max_element(row, row + columns);
  double sum = 0;
  for (int64_t column = 0; column < columns; column++)
    sum += std::exp(static_cast<double>(row[column]) - largest);
  return largest + std::log(sum);
}

}  // namespace

void log_softmax(const float* in, float* out, int64_t rows, int64_t columns) {
  if (columns == 0) return;
  for (int64_t row = 0; row < rows; row++, in += columns, out += columns) {
    double normal = log_sum_exp(in, columns);
    for (int64_t column = 0; column < columns; column++)
      out[column] = static_cast<float>(in[column] - normal);
  }
}

void softmax(const float* in, float* out, int64_t rows, int64_t columns) {
  if (columns == 0) return;
  for (int64_t row = 0; row < rows; row++, in += columns, out += columns) {
    double normal = log_sum_exp(in, columns);
    for (int64_t column = 0; column < columns; column++)
      out[column] = static_cast<float>(std::exp(in[column] - normal));
  }
}

double cross_entropy(const float* logits, const int64_t* labels, float* grad, int64_t rows,
                     int64_t columns) {
  double loss = 0;
  for (int64_t row = 0; row < rows; row++) {
    const float* from = logits + row * columns;
    double normal = log_sum_exp(from, columns);
    loss += normal - from[labels[row]];
    if (grad == nullptr) continue;
    float* to = grad + row * columns;
    for (int64_t column = 0; column < columns; column++) {
      double probability = std::exp(from[column] - normal);
      to[column] = static_cast<float>((probability - (column == labels[row] ? 1 : 0)) /
                                      static_cast<double>(rows));
    }
  }
  return loss / static_cast<double>(std::max<int64_t>(rows, 1));
}

}  // namespace flow::cpu
