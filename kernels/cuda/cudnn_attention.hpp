// The check of a plan of cuDNN's attention against flow's own kernels.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "kernels/cuda/cudnn_attention_graph.hpp"
#include "kernels/table.hpp"

namespace flow::cuda {

using namespace kernels;

/// For each row of the [b, h, t, d] views of f16 or bf16, in order: how many elements have other
/// bits.
int differing_bits(Stream&, const View& a, const View& b, float* counts);

namespace dnn {

/// How far a result is from the reference.
struct AttentionVerdict {
  double apart = 0, bound = 0;  // of the worst row or block of rows
  bool is_right() const { return apart <= bound; }
};

/// Compares rows by row_differences(): the distance of each, as a share of the norm of the
/// reference's row, and that of each 64 rows, as a share of theirs, which counts twice. `terms`:
/// how many products each element is the sum of.
///
/// Both results round the weights of the softmax, or the gradients of the scores, to the operands'
/// type before they are multiplied, and round the sum once: each is within about one unit in the
/// last place (eps) of the terms' norm, which is the row's for random operands. The bound of 16 eps
/// (1/8 for bf16, 1/64 for f16) allows a loss of three to four bits; the tests' results use a tenth
/// of it. A wrong mask, scale, head or stride differs by about 1.
///
/// Two norms are taken as larger than they are. A row below 1/16 of the root mean square of its 64
/// rows: the gradient of a query that sees one key is 0 except for the noise of f32. And a row of
/// f16 below sqrt(terms) 2^-18 for each element: f16 rounds terms below 2^-14 to multiples of
/// 2^-24.
AttentionVerdict judge_rows(const std::vector<float>& differences,
                            const std::vector<float>& squares, DType dtype, int64_t width,
                            int64_t terms);

/// Compares the logarithms of the rows' sums. Both sum f32; the products of a query and a key are
/// rounded in a different order, which changes a score by some 2^-20 of its terms. The bound is
/// 2^-10 + 2^-14 |reference|: one key too many is found in rows of up to 1000 keys.
AttentionVerdict judge_logarithms(const std::vector<float>& result,
                                  const std::vector<double>& reference);

struct AttentionFinding {
  std::string problem;        // what differs; empty: the plan is right, unless it was not run
  bool has_memory = true;     // false: not run
  int status = kSuccess;      // of cuDNN: otherwise not run
  int code = kernels::kDone;  // of flow's own kernels, which failed
};

/// Runs a plan twice on random operands of its shape and strides: the result must be that of flow's
/// own kernels within rounding, with the same bits each time. Takes memory of its own, which is
/// released before it returns, and waits for the stream, which may not be recording. `run` is
/// AttentionPlan::run() on the stream.
AttentionFinding check_attention(const Stream& stream, int device, const AttentionPlan& plan,
                                 const std::function<int(const AttentionMemory&)>& run);

}  // namespace dnn
}  // namespace flow::cuda
