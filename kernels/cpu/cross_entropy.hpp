// Log-softmax of rows, and the mean cross entropy of them with its gradient.
#pragma once
#include <cstdint>

namespace flow::cpu {

/// out[r, c] = log softmax(in[r, :])[c]. `out` may be `in`.
void log_softmax(const float* in, float* out, int64_t rows, int64_t columns);
void softmax(const float* in, float* out, int64_t rows, int64_t columns);
/// Mean over rows of -log softmax(logits[r])[labels[r]]; labels are columns, 0-based, in range.
/// `grad` (may be null) gets the gradient with regard to the logits.
double cross_entropy(const float* logits, const int64_t* labels, float* grad, int64_t rows,
                     int64_t columns);

}  // namespace flow::cpu
