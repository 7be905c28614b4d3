// flow's own attention and what selects its kernel: plain host code, tested without a GPU.
#pragma once
#include <cstdint>
#include <initializer_list>

#include "kernels/shared/types.hpp"
#include "kernels/table.hpp"

namespace flow::cuda {

using namespace kernels;

constexpr int64_t kTensorWidthMax = 256;      // of a head: wider tiles do not fit in shared memory
constexpr int64_t kTensorPiece = 8;           // elements copied at once: 16 bytes
constexpr int64_t kTensorRowsMax = 1 << 30;   // of a dimension: row indices are int
constexpr int64_t kTensorTilesMax = 1 << 30;  // of 64 rows: a block each

/// Every row of a [b, h, t, d] operand is aligned to 16 bytes and has no gaps.
inline bool has_aligned_rows(const View& view) {
  if (reinterpret_cast<uintptr_t>(view.data) % 16 != 0 || view.strides[3] != 1) return false;
  for (int dim = 0; dim < 3; dim++)
    if (view.shape[dim] > 1 && view.strides[dim] % kTensorPiece != 0) return false;
  return true;
}

/// Whether tensor cores can process these operands; CUDA cores accept any.
inline bool takes_tensor_cores(std::initializer_list<const View*> operands) {
  for (const View* each : operands) {
    if (each->dtype != DType::f16 && each->dtype != DType::bf16) return false;
    int64_t width = each->shape[3];
    if (width < 1 || width > kTensorWidthMax || width % kTensorPiece != 0) return false;
    for (int dim = 0; dim < 3; dim++)
      if (each->shape[dim] > kTensorRowsMax) return false;
    int64_t heads = each->shape[0] * each->shape[1], tiles = (each->shape[2] + 63) / 64;
    if (heads > 0 && tiles > kTensorTilesMax / heads) return false;
    if (!has_aligned_rows(*each)) return false;
  }
  return true;
}

/// For up to so many queries of each head, attention_decode.cu splits the keys over several blocks.
constexpr int64_t kDecodeQueriesMax = 4;
inline bool takes_splits(const View& q) { return q.shape[2] <= kDecodeQueriesMax; }

/// As the rows of the table, by the kernels of this folder.
int own_attention(Stream&, Attention, const View& q, const View& k, const View& v, const View& out,
                  const View& lse);
int own_attention_backward(Stream&, Attention, const View& q, const View& k, const View& v,
                           const View& out, const View& lse, const View& grad, const View& dq,
                           const View& dk, const View& dv);

/// For each row of the [b, h, t, d] views, in order: the sum of the squares of a - b, and that of
/// the squares of b. Floats; the sums are f32, and NaN if an element is.
int row_differences(Stream&, const View& a, const View& b, float* differences, float* squares);

}  // namespace flow::cuda
