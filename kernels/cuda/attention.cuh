// Shared by the attention kernels: operand layouts and the causal mask.
#pragma once
#include "kernels/cuda/attention.hpp"
#include "kernels/cuda/launch.cuh"

namespace flow::cuda {

// Bytes of a block's shared memory on every GPU: those of sm_86, sm_89 and sm_120.
constexpr size_t kSharedEverywhere = 99 * 1024;
// Of the current GPU: 163 KiB on sm_80, 227 KiB on sm_90.
#ifdef FLOW_EMULATE
inline size_t shared_memory_max() { return emulator::shared_memory_max; }
#else
inline size_t shared_memory_max() {
  int device = 0, bytes = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) !=
          cudaSuccess)
    return kSharedEverywhere;
  return static_cast<size_t>(bytes);
}
#endif

// An operand [b, h, t, d] with a dense last dimension.
template <typename T>
struct Heads {
  T* data;
  int64_t batch, head, row;  // strides

  FLOW_DEVICE T* at(int64_t b, int64_t h) const { return data + b * batch + h * head; }
};
template <typename T>
Heads<T> heads_of(const View& view) {
  return {view.at<T>(), view.strides[0], view.strides[1], view.strides[2]};
}

// `I` is the type of row indices.
template <typename C, typename I = int64_t>
struct AttentionSizes {
  I batches, heads, groups, queries, keys;
  int width;  // d
  bool causal;
  C scale;

  /// The query attends to the keys before this index. Causal: the last query to all of them.
  FLOW_DEVICE I seen_by(I query) const {
    I end = query + keys - queries + 1;
    return !causal || end > keys ? keys : end > 0 ? end : 0;
  }
  /// The first query that attends to the key.
  FLOW_DEVICE I first_to_see(I key) const {
    I first = key - (keys - queries);
    return causal && first > 0 ? first : 0;
  }
};
template <typename C, typename I = int64_t>
AttentionSizes<C, I> sizes_of(const Attention& options, const View& q, const View& k) {
  auto count = [](const View& view, int dim) { return static_cast<I>(view.shape[dim]); };
  return {count(q, 0),    count(q, 1),
          count(k, 1),    count(q, 2),
          count(k, 2),    static_cast<int>(q.shape[3]),
          options.causal, static_cast<C>(options.scale)};
}

constexpr double kLog2EDouble = 1.4426950408889634074;

// Row data of the backward, [b, h, t] each: the logarithm of the query's sum of exponentials in two
// parts (SplitLogarithm), and the sum over d of grad * out.
template <typename C>
struct RowNumbers {
  C* data;
  int64_t count;  // of each

  FLOW_DEVICE C* high() const { return data; }
  FLOW_DEVICE C* low() const { return data + count; }
  FLOW_DEVICE C* delta() const { return data + 2 * count; }
};

// attention_decode.cu; requires takes_splits() of the queries
int decode_attention(Stream&, const Attention&, const View& q, const View& k, const View& v,
                     const View& out, const View& lse);

// attention_tensor.cu and attention_tensor_backward.cu; require takes_tensor_cores() of the
// operands
int tensor_attention(Stream&, const Attention&, const View& q, const View& k, const View& v,
                     const View& out, const View& lse);
/// The logarithms in `numbers` are to base 2.
int tensor_attention_backward(Stream&, const Attention&, const View& q, const View& k,
                              const View& v, const View& grad, RowNumbers<float> numbers,
                              const View& dq, const View& dk, const View& dv);

}  // namespace flow::cuda
