// Reverse-mode differentiation: an operation on tracked tensors records a node that maps a gradient
// of its result to gradients of its operands; backward visits the nodes from the last to the first.
// Gradients of gradients are not supported.
#pragma once
#include <functional>
#include <initializer_list>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/tensor/tensor.hpp"

namespace flow::tensors {

/// An element-wise activation at the end of an operation.
struct ActivationInput {
  kernels::Unary activation = kernels::Unary::identity;
  Tensor before;            // its operand, [rows, columns] with dense rows; empty: there is none
  bool wants_sums = false;  // the sums of the columns of the gradient of `before`
};

/// Gradients of an operation's operands, set by its backward.
class Gradients {
 public:
  explicit Gradients(size_t operands)
      : wanted_(operands),
        gradients_(operands),
        inputs_(operands),
        sums_(operands),
        so_far_(operands),
        added_(operands) {}
  /// Whether the gradient is needed.
  bool wants(size_t operand) const { return wanted_[operand]; }
  void set(size_t operand, Tensor gradient) { gradients_[operand] = std::move(gradient); }

  /// The sum of the operand's gradients from the operations after this one, which this backward may
  /// change by adding its own in place: then it calls set_added() in place of set(). Empty if there
  /// is none, or if it is used elsewhere.
  const Tensor& so_far(size_t operand) const { return so_far_[operand]; }
  void set_added(size_t operand) {
    so_far_[operand].note_write("backward");
    added_[operand] = true;
  }

  /// The activation that computed the operand, if nothing else used its result. Then
  /// set_before_activation() may set the gradient of the activation's operand.
  const ActivationInput& activation_of(size_t operand) const { return inputs_[operand]; }
  /// `gradient` has the shape of the operand; `column_sums` is set if they are wanted.
  void set_before_activation(size_t operand, Tensor gradient, Tensor column_sums) {
    gradients_[operand] = std::move(gradient);
    sums_[operand] = std::move(column_sums);
    inputs_[operand].before = {};
  }

 private:
  friend class Node;
  friend class BackwardPass;
  std::vector<bool> wanted_;
  std::vector<Tensor> gradients_;
  std::vector<ActivationInput> inputs_;
  std::vector<Tensor> sums_;
  std::vector<Tensor> so_far_;
  std::vector<bool> added_;
};

/// One recorded operation.
class Node : public RefCounted {
 public:
  explicit Node(const char* name) : name_(name), order_(next_order()) {}
  ~Node() override;
  const char* name() const { return name_; }
  /// Its backward may reach leaves that are not its operands.
  bool reaches_any() const { return reaches_any_; }
  void set_reaches_any() { reaches_any_ = true; }

  /// `gradient` has the shape and type of the operation's result. Called once.
  virtual void backward(const Tensor& gradient, Gradients& out) = 0;
  /// The activation with which this operation ends, whose gradient the operation that uses its
  /// result may compute; then backward_before_activation() is called instead of backward().
  virtual ActivationInput activation_input() const { return {}; }
  virtual void backward_before_activation(const Tensor&, const Tensor& /*column_sums*/,
                                          Gradients&) {}
  /// Releases the saved values.
  virtual void release() = 0;

 private:
  friend class BackwardPass;
  friend Tensor attach(Tensor result, std::initializer_list<Tensor> operands, RefPtr<Node> node);
  friend Tensor attach(Tensor result, const std::vector<Tensor>& operands, RefPtr<Node> node);
  static uint64_t next_order();
  void add_operand(const Tensor& operand);

  struct Operand {
    RefPtr<Node> node;  // the node that computed it, or
    RefPtr<Body> leaf;  // the leaf that wants its gradient, or neither
    Shape shape;        // of the operand and its gradient
    DType dtype = DType::f32;
    Device device;
  };
  const char* name_;
  uint64_t order_;  // operands have smaller numbers than results
  bool done_ = false;
  bool reaches_any_ = false;
  int uses_ = 0;  // of the result, as an operand of other nodes
  std::vector<Operand> operands_;
};

/// Whether this thread records and one of the operands is tracked; some may be empty.
template <typename... Operands>
bool is_recording(const Operands&... operands) {
  return runtime().records && ((operands && operands.is_tracked()) || ...);
}
bool is_recording(const std::vector<Tensor>& operands);
/// Marks `result` as computed by `node` from `operands`.
Tensor attach(Tensor result, std::initializer_list<Tensor> operands, RefPtr<Node> node);
Tensor attach(Tensor result, const std::vector<Tensor>& operands, RefPtr<Node> node);

/// A value that backward needs: without its own history, and with a check that it is unchanged.
class SavedTensor {
 public:
  SavedTensor() = default;
  explicit SavedTensor(const Tensor& tensor);
  /// Throws a Failure if the tensor was changed in place since.
  Tensor get() const;

 private:
  Tensor tensor_;
  uint32_t version_ = 0;
};

template <typename F>
class CallNode : public Node {
 public:
  CallNode(const char* name, F call) : Node(name), call_(std::move(call)) {}
  void backward(const Tensor& gradient, Gradients& out) override { (*call_)(gradient, out); }
  void release() override { call_.reset(); }

 private:
  std::optional<F> call_;
};

/// Records the operation `name`: call(gradient, Gradients&) is its backward. Requires
/// is_recording().
template <typename F>
Tensor record(const char* name, Tensor result, std::initializer_list<Tensor> operands, F call) {
  return attach(std::move(result), operands, RefPtr<Node>(new CallNode<F>(name, std::move(call))));
}
template <typename F>
Tensor record(const char* name, Tensor result, const std::vector<Tensor>& operands, F call) {
  return attach(std::move(result), operands, RefPtr<Node>(new CallNode<F>(name, std::move(call))));
}

/// Is notified of leaves while a backward runs.
class LeafObserver {
 public:
  virtual ~LeafObserver() = default;
  virtual bool watches(const Body& leaf) const = 0;
  /// Before the pass: the watched leaves that it will reach, in the order in which they become
  /// complete.
  virtual void begin(const std::vector<RefPtr<Body>>& leaves) = 0;
  /// The backward adds nothing more to this watched leaf's gradient. Called once for each leaf in
  /// begin(), also if it got no gradient, as early as possible.
  virtual void complete(const RefPtr<Body>& leaf) = 0;
};

/// Adds the gradient of `root` with respect to every leaf that wants one to that leaf's gradient.
/// `gradient` has `root`'s shape; if it is empty, `root` has one element and the gradient is 1.
/// Saved values are released: a second backward over them is a Failure. An observer is also
/// notified of the leaves of a backward inside this one, at its end at the latest.
void backward(const Tensor& root, const Tensor& gradient, LeafObserver* watch = nullptr);

}  // namespace flow::tensors
