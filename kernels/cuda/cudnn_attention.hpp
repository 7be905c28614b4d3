// Whether cuDNN's results of attention are right: pure.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "flow/dtype.hpp"

namespace flow::cuda::dnn {

/// How far a result is from the reference.
struct AttentionVerdict {
  /// False: nothing can be said, because the reference is 0, not finite, or small for f16.
  bool is_decided = true;
  double apart = 0, bound = 0;  // of the worst row
  bool is_right() const { return apart <= bound; }
};

/// Compares rows by row_differences(): the distance of each, as a share of the norm of the
/// reference (of the row's, or of the root mean square of all rows, whichever is larger).
///
/// Both results round the weights of the softmax, or the gradients of the scores, to the operands'
/// type before they are multiplied, and round the sum once: each is within about one unit in the
/// last place (eps) of the terms' norm. The sum's norm is smaller where terms cancel. The bound of
/// 16 eps (1/8 for bf16, 1/64 for f16) allows a loss of three to four bits. A wrong mask, scale,
/// head or stride differs by about 1.
///
/// Below 2^-14 f16 has fewer digits, and the makers multiply by the scale before or after they
/// round the gradients of the scores: a reference of f16 whose elements are below 2^-12 on average
/// decides nothing.
AttentionVerdict judge_rows(const std::vector<float>& differences,
                            const std::vector<float>& squares, DType dtype, int64_t width);

/// Compares the logarithms of the rows' sums. Both sum f32; the products of a query and a key are
/// rounded in a different order, which changes a score by some 2^-20 of its terms. The bound is
/// 2^-10 + 2^-14 |reference|: one key too many is found in rows of up to 1000 keys.
AttentionVerdict judge_logarithms(const std::vector<double>& result,
                                  const std::vector<double>& reference);

}  // namespace flow::cuda::dnn
