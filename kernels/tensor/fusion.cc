// Values are numbered: operands from 0, results of steps from kSteps.
#include "kernels/tensor/fusion.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bitset>
#include <cmath>

#include "kernels/shared/types.hpp"

namespace flow::tensors {
namespace {

using kernels::FusedElementwise;
using kernels::FusedStep;

constexpr int kSteps = 1 << 20;  // values from here on are steps, smaller ones operands

thread_local Tracer* tracing = nullptr;
thread_local uint64_t tracers = 0;

}  // namespace

void reject_symbol() {
  throw TensorError(
      "flow.fuse takes a function of operations on elements: + - * / // % ^, functions of one "
      "number, maximum, minimum, clamp, lerp, addcmul and addcdiv; and it must not depend "
      "on the elements. Call other operations before it or after it");
}

Tracer::Tracer(DType dtype, const Device& device)
    : id_(++tracers), dtype_(dtype), device_(device), before_(tracing) {
  tracing = this;
}

Tracer::~Tracer() { tracing = before_; }

Tracer& Tracer::current() {
  if (tracing == nullptr)
    throw TensorError(
        "a symbol of flow.fuse was used after it: return the values that you need, and "
        "use flow.fuse's result");
  return *tracing;
}

Tensor Tracer::new_symbol(const Shape& shape, int value) {
  return Tensor(kernels::dense(dtype_, shape, nullptr), Storage::symbol(id_, value));
}

Tensor Tracer::symbol_of(const Tensor& operand) {
  if (operand.dtype() != dtype_ || !(operand.device() == device_)) return {};
  auto found = std::find(operands_.begin(), operands_.end(), operand);
  int value = static_cast<int>(found - operands_.begin());
  if (found == operands_.end()) operands_.push_back(operand);
  return new_symbol(operand.shape(), value);
}

int Tracer::value_of(const Tensor& x) {
  if (!is_symbol(x)) {
    Tensor made = symbol_of(x);
    if (made) return made.storage()->symbol_value();
    is_unfusable_ = true;
    return 0;
  }
  if (x.storage()->symbol_owner() != id_) reject_symbol();
  int value = x.storage()->symbol_value();
  // A view of a symbol, or a symbol of another shape, is not an operand of a chain.
  const View& view = x.view();
  if (view.data != nullptr || !kernels::is_dense(view) || !(shape_of(value) == view.shape))
    reject_symbol();
  return value;
}

const Shape& Tracer::shape_of(int value) const {
  return value < kSteps ? operands_[static_cast<size_t>(value)].shape()
                        : steps_[static_cast<size_t>(value - kSteps)].shape;
}

Tensor Tracer::note(FusedStep what, const Tensor& a, const Tensor& b) {
  Step step;
  step.what = what;
  step.a = value_of(a);
  step.shape = a.shape();
  if (b) {
    step.b = value_of(b);
    if (!kernels::broadcast(a.shape(), b.shape(), step.shape))
      throw TensorError(
          fmt::format("cannot {} {} and {}: shapes fit where their sizes, from the last dimension "
                      "on, are equal or 1",
                      verb_of(static_cast<Binary>(what.op)), kernels::text_of(a.shape()),
                      kernels::text_of(b.shape())));
  }
  steps_.push_back(step);
  return new_symbol(step.shape, kSteps + static_cast<int>(steps_.size()) - 1);
}

Tensor Tracer::unary(Unary op, const Tensor& x) {
  FusedStep step;
  step.kind = FusedStep::unary;
  step.op = static_cast<uint8_t>(op);
  return current().note(step, x, {});
}

Tensor Tracer::binary(Binary op, const Tensor& a, const Tensor& b) {
  FusedStep step;
  step.kind = FusedStep::binary;
  step.op = static_cast<uint8_t>(op);
  return current().note(step, a, b);
}

Tensor Tracer::number(Binary op, const Tensor& a, double x, bool reversed) {
  if (op == Binary::pow && !reversed && x == 2) return unary(Unary::square, a);
  FusedStep step;
  step.kind = reversed ? FusedStep::reversed : FusedStep::number;
  step.op = static_cast<uint8_t>(op);
  step.x = x;
  return current().note(step, a, {});
}

Tensor Tracer::clamp(const Tensor& a, double low, double high) {
  FusedStep step;
  step.kind = FusedStep::clamp;
  step.x = low;
  step.y = high;
  if (std::isnan(low) || std::isnan(high))
    current().is_unfusable_ = true;  // a chain would ignore it
  return current().note(step, a, {});
}

// The step that uses each step's value last: its own number for the result, -1 if the result does
// not depend on it.
std::vector<int> Tracer::last_uses(int result) const {
  std::vector<int> last(steps_.size(), -1);
  last[static_cast<size_t>(result - kSteps)] = result - kSteps;
  for (size_t i = steps_.size(); i-- > 0;) {
    if (last[i] < 0) continue;
    for (int value : {steps_[i].a, steps_[i].b}) {
      if (value < kSteps) continue;
      int& use = last[static_cast<size_t>(value - kSteps)];
      if (use < 0) use = static_cast<int>(i);
    }
  }
  return last;
}

// A temporary is free again after its value's last use. `used` are the operands, in the order of
// the chain's inputs. False if there are too few temporaries.
bool Tracer::assign_temporaries(int result, FusedElementwise& fused, std::vector<int>& used) const {
  size_t count = steps_.size();
  std::vector<int> last = last_uses(result);
  std::bitset<kernels::kFusedTemporaries> taken;
  std::vector<int> room(count, -1);
  bool fits = true;
  auto operand = [&](int value, size_t step) -> int8_t {
    if (value >= kSteps) {
      auto from = static_cast<size_t>(value - kSteps);
      if (last[from] == static_cast<int>(step)) taken.reset(static_cast<size_t>(room[from]));
      return static_cast<int8_t>(kernels::kFusedInputs + room[from]);
    }
    auto found = std::find(used.begin(), used.end(), value);
    if (found == used.end()) found = used.insert(used.end(), value);
    fits = fits && used.size() <= kernels::kFusedInputs;
    return static_cast<int8_t>(found - used.begin());
  };
  for (size_t i = 0; i < count && fits; i++) {
    if (last[i] < 0) continue;
    if (fused.steps == kernels::kFusedSteps) return false;
    FusedStep& step = fused.step[fused.steps++];
    step = steps_[i].what;
    step.a = operand(steps_[i].a, i);
    if (step.kind == FusedStep::binary) step.b = operand(steps_[i].b, i);
    // Not a temporary of this step's operand: an operation may read it again.
    if (kSteps + static_cast<int>(i) == result) break;
    size_t free = 0;
    while (free < kernels::kFusedTemporaries &&
           (taken[free] || kernels::kFusedInputs + static_cast<int>(free) == step.a ||
            kernels::kFusedInputs + static_cast<int>(free) == step.b))
      free++;
    if (free == kernels::kFusedTemporaries) return false;
    taken.set(free);
    room[i] = static_cast<int>(free);
    step.to = static_cast<int8_t>(free);
  }
  fused.inputs = static_cast<int>(used.size());
  return fits;
}

Tape Tracer::tape(const Tensor& result) {
  Tape tape;
  tape.result_ = value_of(result);
  tape.steps_ = steps_;
  if (tape.result_ < kSteps) tape.steps_.clear();
  return tape;
}

Tensor Tape::replay(const std::vector<Tensor>& operands) const {
  std::vector<Tensor> made;
  auto value = [&](int number) {
    return number < kSteps ? operands[static_cast<size_t>(number)]
                           : made[static_cast<size_t>(number - kSteps)];
  };
  for (const Step& step : steps_) {
    const FusedStep& what = step.what;
    Tensor a = value(step.a);
    kernels::Number x = kernels::Number::of(what.x), y = kernels::Number::of(what.y);
    switch (what.kind) {
      case FusedStep::unary:
        made.push_back(tensors::unary(static_cast<Unary>(what.op), a));
        break;
      case FusedStep::binary:
        made.push_back(tensors::binary(static_cast<Binary>(what.op), a, value(step.b)));
        break;
      case FusedStep::number:
      case FusedStep::reversed:
        made.push_back(
            tensors::binary(static_cast<Binary>(what.op), a, x, what.kind == FusedStep::reversed));
        break;
      case FusedStep::clamp:
        made.push_back(tensors::clamp(a, x, y));
        break;
    }
  }
  return value(result_);
}

std::optional<Tensor> Tracer::compute(const Tensor& result, const FusedKernel& kernel) {
  int value = value_of(result);
  if (is_unfusable_) return std::nullopt;
  if (value < kSteps) return operands_[static_cast<size_t>(value)];
  FusedElementwise fused;
  std::vector<int> used;
  if (!assign_temporaries(value, fused, used)) return std::nullopt;
  View views[kernels::kFusedInputs];
  for (size_t i = 0; i < used.size(); i++)
    views[i] =
        kernels::broadcast_to(operands_[static_cast<size_t>(used[i])].view(), result.shape());
  Tensor out = Tensor::empty(dtype_, result.shape(), device_);
  const View* inputs = views;
  if (runtime().capture != nullptr)
    for (size_t i = 0; i < used.size(); i++) note_use(views[i]);
  if (kernel && device_.kind == Device::cuda) {
    ProfilerRange range("fuse");
    if (kernel(device_, fused, inputs, out.view())) return out;
  }
  call(device_, &Kernels::fused_elementwise, "fuse", fused, inputs, out.view());
  return out;
}

}  // namespace flow::tensors
