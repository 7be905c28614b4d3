// Chains of operations on elements as one pass over memory: a function is called with tensors that
// stand for its operands and hold nothing; what is done with them is noted, and then done at once.
#pragma once
#include <optional>
#include <vector>

#include "kernels/tensor/ops.hpp"

namespace flow::tensors {

/// What was done with operands, to be done again one operation after the other.
class Tape {
 public:
  Tensor replay(const std::vector<Tensor>& operands) const;

 private:
  friend class Tracer;
  struct Step {
    kernels::FusedStep what;
    int a = 0, b = 0;  // values: operands, then steps
    Shape shape;       // of what it gives
  };
  std::vector<Step> steps_;
  int result_ = 0;
};

/// Notes what the calling thread does with its symbols while it lives. One at a time.
class Tracer {
 public:
  /// The chain computes in `dtype`, one of floats, on `device`.
  Tracer(DType dtype, const Device& device);
  ~Tracer();
  Tracer(const Tracer&) = delete;
  Tracer& operator=(const Tracer&) = delete;

  /// The symbol that stands for `operand`, or an empty handle where it is of another type or
  /// device.
  Tensor symbol_of(const Tensor& operand);
  /// Nothing where the chain can't be done in one pass: it is too long, or of several types. An
  /// operand that is returned as it is, is itself.
  std::optional<Tensor> compute(const Tensor& result);
  /// The operands, those too that are no arguments.
  const std::vector<Tensor>& operands() const { return operands_; }
  /// How `result` comes from the operands.
  Tape tape(const Tensor& result);

  // What operations call where an operand is a symbol.
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

  const uint64_t id_;  // symbols may be kept longer than their tracer
  DType dtype_;
  Device device_;
  bool is_unfusable_ = false;
  std::vector<Tensor> operands_;
  std::vector<Step> steps_;
  Tracer* before_;
};

inline bool is_symbol(const Tensor& x) { return x.device().kind == Device::symbol; }
/// What a symbol can't be used for.
[[noreturn]] void reject_symbol();

}  // namespace flow::tensors
