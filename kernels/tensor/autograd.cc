// The walk backwards. Nodes are numbered as they are made, so the largest number among those that
// wait has had all its gradients added up.
#include "kernels/tensor/autograd.hpp"

#include <fmt/format.h>

#include <atomic>
#include <map>

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
  throw Failure(fmt::format("the backward of `{}` gave {} for an operand {} {} on {}", name,
                            text_of(gradient), dtype_name(dtype), kernels::text_of(shape),
                            text_of(device)));
}

void add_to_leaf(Body& leaf, const Tensor& gradient) {
  if (!leaf.gradient) {
    // The gradient may be a window on what others hold, or stretched: a leaf owns its own.
    leaf.gradient = (is_own(gradient) ? gradient : copy_of(gradient)).body();
    return;
  }
  add_in_place(Tensor(leaf.gradient), gradient);
}

}  // namespace

// A chain of a million operations must not be a chain of a million destructors.
Node::~Node() {
  thread_local std::vector<Ref<Node>>* waiting = nullptr;
  if (waiting != nullptr) {
    for (Operand& each : operands_)
      if (each.node) waiting->push_back(std::move(each.node));
    return;
  }
  std::vector<Ref<Node>> rest;
  waiting = &rest;
  for (Operand& each : operands_)
    if (each.node) rest.push_back(std::move(each.node));
  while (!rest.empty()) {
    Ref<Node> next = std::move(rest.back());
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

Tensor attach(Tensor result, std::initializer_list<Tensor> operands, Ref<Node> node) {
  for (const Tensor& each : operands) node->add_operand(each);
  result.set_node(std::move(node));
  return result;
}

Tensor attach(Tensor result, const std::vector<Tensor>& operands, Ref<Node> node) {
  for (const Tensor& each : operands) node->add_operand(each);
  result.set_node(std::move(node));
  return result;
}

Saved::Saved(const Tensor& tensor) {
  if (!tensor) return;
  // Without its own history, which may come to hold this node: what holds each other stays forever.
  tensor_ = tensor.detached();
  version_ = tensor.storage()->version;
}

Tensor Saved::get() const {
  if (tensor_ && tensor_.storage()->version != version_)
    throw Failure(
        fmt::format("backward needs {} as it was when it was used, but it was changed in "
                    "place since: change a copy, x:clone(), or change it after backward",
                    text_of(tensor_)));
  return tensor_;
}

void backward(const Tensor& root, const Tensor& given) {
  if (!root.is_tracked())
    throw Failure(
        fmt::format("{} has no gradients to compute: nothing that it was computed from "
                    "asked for one with x:requires_grad_(), or it was computed in "
                    "flow.no_grad",
                    text_of(root)));
  Tensor start = given;
  if (!start) {
    if (root.count() != 1)
      throw Failure(
          fmt::format("backward starts from one number, such as a mean loss, not from "
                      "{}: give the gradient of it as x:backward(gradient)",
                      text_of(root)));
    start = Tensor::full(root.dtype(), root.shape(), Number::of(int64_t{1}), root.device());
  }
  if (!(start.shape() == root.shape()) || start.dtype() != root.dtype())
    throw Failure(fmt::format("the gradient {} does not fit {}", text_of(start), text_of(root)));
  NoRecord off;
  if (!root.node()) return add_to_leaf(*root.body(), start);

  struct Waiting {
    Ref<Node> node;
    Tensor gradient;
  };
  std::map<uint64_t, Waiting> waiting;
  waiting[root.node()->order_] = {root.node(), start};
  while (!waiting.empty()) {
    auto last = std::prev(waiting.end());
    Waiting now = std::move(last->second);
    waiting.erase(last);
    Node& node = *now.node;
    if (node.done_)
      throw Failure(fmt::format(
          "backward went through `{}` before: what it kept is gone. Add the losses up and call "
          "backward once, or compute them anew{}",
          node.name(),
          std::string_view(node.name()) == "checkpoint"
              ? "; and give the function of flow.checkpoint as arguments what it uses"
              : ""));
    Gradients out(node.operands_.size());
    for (size_t i = 0; i < node.operands_.size(); i++)
      out.wanted_[i] = node.operands_[i].node || node.operands_[i].leaf;
    node.done_ = true;  // at once: what it calls may come back to it
    node.backward(now.gradient, out);
    now.gradient = {};
    node.release();
    std::vector<Node::Operand> operands = std::move(node.operands_);
    for (size_t i = 0; i < operands.size(); i++) {
      Tensor gradient = std::move(out.given_[i]);
      if (!gradient || !out.wanted_[i]) continue;
      check_gradient(node.name(), gradient, operands[i].dtype, operands[i].shape,
                     operands[i].device);
      if (operands[i].leaf) {
        add_to_leaf(*operands[i].leaf, gradient);
      } else {
        Waiting& slot = waiting[operands[i].node->order_];
        slot.node = operands[i].node;
        add_up(slot.gradient, gradient);
      }
    }
  }
}

}  // namespace flow::tensors
