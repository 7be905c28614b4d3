// Element-wise chains in one pass over memory: a function is called with symbols for its operands,
// which have no memory; its operations are recorded, and then executed together.
#pragma once
#include <functional>
#include <optional>
#include <vector>

#include "kernels/tensor/ops.hpp"

namespace flow::tensors {

/// A recorded chain, to be replayed operation by operation.
class Tape {
 public:
  Tensor replay(const std::vector<Tensor>& operands) const;

 private:
  friend class Tracer;
  struct Step {
    kernels::FusedStep what;
    int a = 0, b = 0;  // values: operands, then steps
    Shape shape;       // of its result
  };
  std::vector<Step> steps_;
  int result_ = 0;
};

/// Computes a chain on a GPU by a kernel made for it. False, without an effect: the table's
/// function does it.
using FusedKernel = std::function<bool(const Device& device, const kernels::FusedElementwise& fused,
                                       const View* inputs, const View& out)>;

/// Records the operations of the calling thread on its symbols while it lives. One at a time.
class Tracer {
 public:
  /// The chain computes in `dtype`, a floating-point type, on `device`.
  Tracer(DType dtype, const Device& device);
  ~Tracer();
  Tracer(const Tracer&) = delete;
  Tracer& operator=(const Tracer&) = delete;

  /// The symbol for `operand`, or an empty handle if it has another type or device.
  Tensor symbol_of(const Tensor& operand);
  /// Empty if the chain cannot be done in one pass: it is too long, or has several types. An
  /// operand that is returned unchanged is returned itself.
  std::optional<Tensor> compute(const Tensor& result, const FusedKernel& kernel = nullptr);
  /// The operands, including captured ones.
  const std::vector<Tensor>& operands() const { return operands_; }
  /// The steps from the operands to `result`.
  Tape tape(const Tensor& result);

  // Called by operations if an operand is a symbol.
  static Tensor unary(Unary op, const Tensor& x);
  static Tensor binary(Binary op, const Tensor& a, const Tensor& b);
  static Tensor number(Binary op, const Tensor& a, double x, bool reversed);
  static Tensor clamp(const Tensor& a, double low, double high);

 private:
  using Step = Tape::Step;
  static Tracer& current();
  int value_of(const Tensor& x);
  Tensor note(kernels::FusedStep what, const Tensor& a, const Tensor& b);
  Tensor new_symbol(const Shape& shape, int value);
  const Shape& shape_of(int value) const;
  std::vector<int> last_uses(int result) const;
  bool assign_temporaries(int result, kernels::FusedElementwise& fused,
                          std::vector<int>& used) const;

  const uint64_t id_;  // symbols may outlive their tracer
  DType dtype_;
  Device device_;
  bool is_unfusable_ = false;
  std::vector<Tensor> operands_;
  std::vector<Step> steps_;
  Tracer* before_;
};

inline bool is_symbol(const Tensor& x) { return x.device().kind == Device::symbol; }
/// Throws for a use that symbols do not support.
[[noreturn]] void reject_symbol();

}  // namespace flow::tensors
