// Attention as a graph of cuDNN's operations, and the plan that computes it. cuDNN recognizes the
// graph and runs one fused kernel (two or three for the gradients).
#pragma once
#include <compare>
#include <vector>

#include "kernels/cuda/cudnn_calls.hpp"
#include "kernels/table.hpp"

namespace flow::cuda::dnn {

using namespace kernels;

/// Older releases have other rules for shapes, or known errors.
constexpr size_t kAttentionVersionMin = 91002;  // 9.10.2
/// The numbers of queries and keys are multiples of it: cuDNN compiles kernels for each shape,
/// which takes about half a second, and texts of any length would have many.
constexpr int64_t kAttentionStep = 64;
constexpr int64_t kAttentionWidthMax = 256;

/// One call of the table's row. `grad` and the gradients are null in the forward.
struct AttentionCall {
  Attention options;
  const View *q, *k, *v, *out, *lse;
  const View *grad = nullptr, *dq = nullptr, *dk = nullptr, *dv = nullptr;
};

enum AttentionOperand { kOfQ, kOfK, kOfV, kOfOut, kOfGrad, kOfDq, kOfDk, kOfDv, kOperands };

/// What a plan depends on, except the device.
struct AttentionNumbers {
  bool is_backward = false, causal = false;
  int type = 0;  // cuDNN's
  int64_t batches = 0, heads = 0, groups = 0, queries = 0, keys = 0, width = 0;
  int64_t strides[kOperands][3] = {};  // of batches, heads and rows

  auto operator<=>(const AttentionNumbers&) const = default;
  int64_t rows() const { return batches * heads * queries; }
};

/// False if cuDNN is not used: another type than f16 and bf16, other numbers of rows than
/// multiples of 64, rows that are not aligned to 16 bytes, an operand that repeats or exceeds 31
/// bits, or queries that see no key.
bool numbers_of(const AttentionCall& call, AttentionNumbers& numbers);

/// Whether this release is known to compute it on a GPU of this compute capability (such as 90),
/// the gradients with the same bits each time.
bool supports(const AttentionNumbers& numbers, size_t version, int capability);

/// The tensors in memory, and the numbers that are passed by value.
enum TensorId : int64_t {
  kIdQ = 1,
  kIdK,
  kIdV,
  kIdOut,
  kIdStats,  // the logarithm of the row's sum, f32
  kIdGrad,
  kIdDq,
  kIdDk,
  kIdDv,
  kIdDelta,     // f32 [b, h, t, 1]: memory for the sums of grad * out
  kIdScale,     // f32, by value, like all that follow
  kIdMasked,    // the score of a key that is not seen
  kIdOne,       // factor of delta
  kIdKeys,      // i32
  kIdQueries,   // i32
  kIdFirstFree  // of the tensors between two operations
};

/// The statuses that say that cuDNN cannot do it, rather than that it failed.
inline bool is_refusal(int status) { return status / 1000 * 1000 == kNotSupported; }

/// Memory and numbers of one run.
struct AttentionMemory {
  char* operands[kOperands] = {};
  float *stats = nullptr, *delta = nullptr;
  char* workspace = nullptr;
  float scale = 1;
};

class AttentionPlan {
 public:
  AttentionPlan(const DnnCalls& calls, const AttentionNumbers& numbers)
      : calls_(calls), numbers_(numbers) {}
  ~AttentionPlan();
  AttentionPlan(const AttentionPlan&) = delete;

  /// The status of cuDNN: kSuccess; kNotSupported or one of its kinds if there is no plan that
  /// gives the same bits each time and whose workspace fits in `workspace_max`; otherwise a failure
  /// that may pass. `device`: null, or the description of a device for which to plan without a
  /// handle.
  int make(CudnnHandle handle, CudnnDescriptor device, size_t workspace_max);
  size_t workspace() const { return workspace_; }
  /// The status of cuDNN.
  int run(CudnnHandle handle, const AttentionMemory& memory) const;

  const AttentionNumbers& numbers() const { return numbers_; }

 private:
  friend class GraphWriter;
  int write_graph(CudnnHandle handle, CudnnDescriptor& graph);
  int configs_of(CudnnDescriptor graph, CudnnDescriptor device,
                 std::vector<CudnnDescriptor>& configs);
  bool gives_same_bits(CudnnDescriptor config);
  int try_config(CudnnHandle handle, CudnnDescriptor device, CudnnDescriptor config,
                 size_t workspace_max);
  int keep(DescriptorKind kind, CudnnDescriptor& made);

  const DnnCalls& calls_;
  const AttentionNumbers numbers_;
  std::vector<CudnnDescriptor> descriptors_;
  CudnnDescriptor plan_ = nullptr;
  size_t workspace_ = 0;
};

}  // namespace flow::cuda::dnn
