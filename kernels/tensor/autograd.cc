// The backward pass. Nodes are numbered in the order of creation, so the pending node with the
// largest number has its complete gradient.
#include "kernels/tensor/autograd.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <map>
#include <unordered_map>
#include <unordered_set>

#include "kernels/tensor/capture.hpp"
#include "kernels/tensor/ops.hpp"

namespace flow::tensors {
namespace {

bool is_own(const Tensor& tensor) {
  return kernels::is_dense(tensor.view()) && !tensor.body()->is_shared() &&
         !tensor.storage()->is_shared();
}

void add_up(Tensor& sum, const Tensor& term) {
  if (!sum) {
    sum = term;
  } else if (is_own(sum)) {
    add_in_place(sum, term);
  } else {
    sum = binary(Binary::add, sum, term);
  }
}

void check_gradient(const char* name, const Tensor& gradient, DType dtype, const Shape& shape,
                    const Device& device) {
  if (gradient.shape() == shape && gradient.dtype() == dtype && gradient.device() == device) return;
  throw TensorError(fmt::format("the backward of `{}` gave {} for an operand {} {} on {}", name,
                                text_of(gradient), dtype_name(dtype), kernels::text_of(shape),
                                text_of(device)));
}

void add_to_leaf(Body& leaf, const Tensor& gradient) {
  if (runtime().capture != nullptr) runtime().capture->touch_gradient(leaf, true);
  if (!leaf.gradient) {
    // The gradient may be a view or broadcast: a leaf stores a tensor of its own.
    leaf.gradient = (is_own(gradient) ? gradient : copy_of(gradient)).body();
    return;
  }
  add_in_place(Tensor(leaf.gradient), gradient);
}

}  // namespace

// A chain of a million operations must not be a recursion of a million destructors.
Node::~Node() {
  thread_local std::vector<RefPtr<Node>>* waiting = nullptr;
  if (waiting != nullptr) {
    for (Operand& each : operands_)
      if (each.node) waiting->push_back(std::move(each.node));
    return;
  }
  std::vector<RefPtr<Node>> rest;
  waiting = &rest;
  for (Operand& each : operands_)
    if (each.node) rest.push_back(std::move(each.node));
  while (!rest.empty()) {
    RefPtr<Node> next = std::move(rest.back());
    rest.pop_back();
    next = {};
  }
  waiting = nullptr;
}

uint64_t Node::next_order() {
  static std::atomic<uint64_t> next{1};
  return next.fetch_add(1, std::memory_order_relaxed);
}

void Node::add_operand(const Tensor& operand) {
  Operand made;
  if (operand) {
    made.shape = operand.shape();
    made.dtype = operand.dtype();
    made.device = operand.device();
  }
  if (operand && operand.node()) {
    made.node = operand.node();
    made.node->uses_++;
  } else if (operand && operand.wants_gradient()) {
    made.leaf = operand.body();
  }
  operands_.push_back(std::move(made));
}

bool is_recording(const std::vector<Tensor>& operands) {
  if (!runtime().records) return false;
  for (const Tensor& each : operands)
    if (each && each.is_tracked()) return true;
  return false;
}

Tensor attach(Tensor result, std::initializer_list<Tensor> operands, RefPtr<Node> node) {
  for (const Tensor& each : operands) node->add_operand(each);
  result.set_node(std::move(node));
  return result;
}

Tensor attach(Tensor result, const std::vector<Tensor>& operands, RefPtr<Node> node) {
  for (const Tensor& each : operands) node->add_operand(each);
  result.set_node(std::move(node));
  return result;
}

SavedTensor::SavedTensor(const Tensor& tensor) {
  if (!tensor) return;
  // Without its own history, which may refer to this node: a cycle of references would leak.
  tensor_ = tensor.detached();
  version_ = tensor.storage()->version;
}

Tensor SavedTensor::get() const {
  if (tensor_ && tensor_.storage()->version != version_)
    throw TensorError(
        fmt::format("backward needs {} as it was when it was used, but it was changed in "
                    "place since: change a copy, x:clone(), or change it after backward",
                    text_of(tensor_)));
  return tensor_;
}

// ---- leaves whose gradient is complete

// Counts the remaining uses of watched leaves in a backward. A node that may reach any leaf delays
// all of them.
class LeafCount {
 public:
  explicit LeafCount(LeafObserver& watch) : watch_(watch) {}

  /// A use by the node numbered `order`; the smallest is the last.
  void expect(const RefPtr<Body>& leaf, uint64_t order) {
    if (!watch_.watches(*leaf)) return;
    Leaf& expected = counted(leaf);
    expected.uses++;
    expected.last_use = std::min(expected.last_use, order);
  }
  void expect_any() { anywhere_++; }
  void begin() {
    std::vector<Leaf> sorted = leaves_;
    std::stable_sort(sorted.begin(), sorted.end(),
                     [](const Leaf& a, const Leaf& b) { return a.last_use > b.last_use; });
    std::vector<RefPtr<Body>> bodies;
    for (const Leaf& leaf : sorted) bodies.push_back(leaf.body);
    watch_.begin(bodies);
  }
  /// Called by a backward inside this one.
  void touch(const RefPtr<Body>& leaf) {
    if (watch_.watches(*leaf)) counted(leaf);
  }

  void used(const RefPtr<Body>& leaf) {
    auto found = index_of_leaf_.find(leaf.get());
    if (found == index_of_leaf_.end()) return;
    leaves_[found->second].uses--;
    report(found->second);
  }
  void used_any() {
    if (--anywhere_ > 0) return;
    for (size_t i = 0; i < leaves_.size(); i++) report(i);
  }
  /// Leaves that the pass did not reach get no gradient.
  void end() {
    anywhere_ = 0;
    for (size_t i = 0; i < leaves_.size(); i++) {
      leaves_[i].uses = 0;
      report(i);
    }
  }

 private:
  struct Leaf {
    RefPtr<Body> body;
    int uses = 0;
    bool is_reported = false;
    uint64_t last_use = std::numeric_limits<uint64_t>::max();
  };

  Leaf& counted(const RefPtr<Body>& body) {
    auto [place, is_new] = index_of_leaf_.emplace(body.get(), leaves_.size());
    if (is_new) leaves_.emplace_back().body = body;
    return leaves_[place->second];
  }
  void report(size_t place) {
    Leaf& leaf = leaves_[place];
    if (leaf.uses > 0 || anywhere_ > 0 || leaf.is_reported) return;
    leaf.is_reported = true;
    watch_.complete(leaf.body);
  }

  LeafObserver& watch_;
  int anywhere_ = 0;
  std::vector<Leaf> leaves_;  // in the order in which the pass reaches them
  std::unordered_map<const Body*, size_t> index_of_leaf_;
};

static thread_local LeafCount* counting = nullptr;  // of the outermost backward that runs

// Nodes that wait for the rest of their gradient.
class BackwardPass {
 public:
  BackwardPass(const Tensor& root, const Tensor& start, LeafCount* count) : count_(count) {
    waiting_[root.node()->order_] = {root.node(), start};
    if (count_ != nullptr) expect_leaves(root.node().get());
  }
  void run() {
    while (!waiting_.empty()) {
      auto last = std::prev(waiting_.end());
      PendingNode now = std::move(last->second);
      waiting_.erase(last);
      visit(std::move(now));
    }
  }

 private:
  struct PendingNode {
    RefPtr<Node> node;
    Tensor gradient;
    bool is_before_activation = false;  // the gradient is that of the activation's operand
    Tensor column_sums = {};
  };

  void expect_leaves(const Node* root) {
    std::vector<const Node*> rest{root};
    std::unordered_set<const Node*> seen{root};
    while (!rest.empty()) {
      const Node* node = rest.back();
      rest.pop_back();
      if (node->reaches_any()) count_->expect_any();
      for (const Node::Operand& each : node->operands_) {
        if (each.leaf) count_->expect(each.leaf, node->order_);
        if (each.node && seen.insert(each.node.get()).second) rest.push_back(each.node.get());
      }
    }
  }

  void visit(PendingNode now) {
    Node& node = *now.node;
    if (node.done_)
      throw TensorError(fmt::format(
          "backward has already passed `{}`, and its saved values are released. Add the losses and "
          "call "
          "backward once, or compute them again{}",
          node.name(),
          std::string_view(node.name()) == "checkpoint"
              ? "; and pass the tensors that the function of flow.checkpoint uses as arguments"
              : ""));
    Gradients out(node.operands_.size());
    for (size_t i = 0; i < node.operands_.size(); i++) {
      const Node::Operand& operand = node.operands_[i];
      out.wanted_[i] = operand.node || operand.leaf;
      out.so_far_[i] = so_far(operand);
      if (operand.node && operand.node->uses_ == 1 && !waiting_.contains(operand.node->order_))
        out.inputs_[i] = operand.node->activation_input();
    }
    std::vector<bool> had_input;
    for (const ActivationInput& each : out.inputs_) had_input.push_back(bool(each.before));
    node.done_ = true;  // set first: a backward inside it may reach it again
    if (now.is_before_activation) {
      node.backward_before_activation(now.gradient, now.column_sums, out);
    } else {
      node.backward(now.gradient, out);
    }
    now.gradient = {};
    now.column_sums = {};
    out.so_far_.clear();  // the sums are no longer shared
    node.release();
    std::vector<Node::Operand> operands = std::move(node.operands_);
    for (size_t i = 0; i < operands.size(); i++) {
      Tensor gradient = std::move(out.gradients_[i]);
      if (!out.wanted_[i]) continue;
      if (gradient) accumulate(node, operands[i], gradient);
      if (out.added_[i]) touch(operands[i]);
      if (gradient && had_input[i] && !out.inputs_[i].before) {
        PendingNode& slot = waiting_[operands[i].node->order_];
        slot.is_before_activation = true;
        slot.column_sums = std::move(out.sums_[i]);
      }
      if (count_ != nullptr && operands[i].leaf) count_->used(operands[i].leaf);
    }
    if (count_ != nullptr && node.reaches_any()) count_->used_any();
  }

  void touch(const Node::Operand& operand) {
    if (operand.leaf && count_ == nullptr && counting != nullptr) counting->touch(operand.leaf);
  }

  // A leaf's gradient is added to in place in any case.
  Tensor so_far(const Node::Operand& operand) const {
    Tensor sum;
    if (operand.leaf) {
      if (runtime().capture != nullptr) runtime().capture->touch_gradient(*operand.leaf, true);
      sum = Tensor(operand.leaf->gradient);
    } else if (operand.node) {
      auto found = waiting_.find(operand.node->order_);
      if (found == waiting_.end() || found->second.is_before_activation) return {};
      if (found->second.gradient && is_own(found->second.gradient)) sum = found->second.gradient;
    }
    if (!sum || !kernels::is_dense(sum.view())) return {};
    return sum.shape() == operand.shape && sum.dtype() == operand.dtype ? sum : Tensor();
  }

  void accumulate(const Node& from, const Node::Operand& operand, const Tensor& gradient) {
    check_gradient(from.name(), gradient, operand.dtype, operand.shape, operand.device);
    if (operand.leaf) {
      add_to_leaf(*operand.leaf, gradient);
      touch(operand);
    } else {
      PendingNode& slot = waiting_[operand.node->order_];
      slot.node = operand.node;
      add_up(slot.gradient, gradient);
    }
  }

  LeafCount* count_;  // null: no observer, or a backward around this one counts
  std::map<uint64_t, PendingNode> waiting_;
};

namespace {

void run_watched(const Tensor& root, const Tensor& start, LeafObserver& watch) {
  struct LeafCountScope {
    explicit LeafCountScope(LeafCount& count) { counting = &count; }
    ~LeafCountScope() { counting = nullptr; }
  };
  LeafCount count(watch);
  LeafCountScope scope(count);
  BackwardPass pass(root, start, &count);
  count.begin();
  pass.run();
  count.end();
}

void add_to_root(const Tensor& root, const Tensor& start, LeafObserver* watch) {
  add_to_leaf(*root.body(), start);
  if (counting != nullptr) return counting->touch(root.body());
  if (watch == nullptr || !watch->watches(*root.body())) return;
  watch->begin({root.body()});
  watch->complete(root.body());
}

}  // namespace

void backward(const Tensor& root, const Tensor& given, LeafObserver* watch) {
  if (!root.is_tracked())
    throw TensorError(
        fmt::format("{} has no gradients to compute: none of its inputs "
                    "wants one, by x:requires_grad_(), or it was computed in "
                    "flow.no_grad",
                    text_of(root)));
  Tensor start = given;
  if (!start) {
    if (root.count() != 1)
      throw TensorError(
          fmt::format("backward starts from one number, such as a mean loss, not from "
                      "{}: give the gradient of it as x:backward(gradient)",
                      text_of(root)));
    start = Tensor::full(root.dtype(), root.shape(), Number::of(int64_t{1}), root.device());
  }
  if (!(start.shape() == root.shape()) || start.dtype() != root.dtype())
    throw TensorError(
        fmt::format("the gradient {} does not fit {}", text_of(start), text_of(root)));
  NoRecord off;
  if (!root.node()) return add_to_root(root, start, watch);
  if (watch != nullptr && counting == nullptr) return run_watched(root, start, *watch);
  BackwardPass(root, start, nullptr).run();
}

}  // namespace flow::tensors
