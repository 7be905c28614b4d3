// Fused element-wise chains: chunks that stay in the L1 cache pass through all steps.
#include <algorithm>

#include "kernels/cpu/elementwise.hpp"

namespace flow::cpu {
namespace {

// Consecutive buffers are a chunk and one cache line apart: at a distance of 4 KiB, a power of two,
// they would evict each other.
struct Temporaries {
  alignas(64) char memory[(kFusedTemporaries + 1) * (kChunk * 8 + 64)];
};

// One chunk: the addresses of its steps' operands.
class FusedChunk {
 public:
  FusedChunk(const FusedElementwise& fused, ArithmeticType kind, Temporaries& temporaries)
      : fused_(fused), kind_(kind), temporaries_(temporaries) {}

  void run(const void* const* in, void* out, int64_t count) const {
    for (int i = 0; i < fused_.steps; i++) {
      const FusedStep& step = fused_.step[i];
      const void* a = operand(in, step.a);
      void* to = i + 1 == fused_.steps ? out : room(step.to);
      switch (step.kind) {
        case FusedStep::unary:
          use_.unary[step.op][kind_](a, to, count);
          break;
        case FusedStep::binary:
          use_.binary[step.op][kind_](a, operand(in, step.b), to, count);
          break;
        case FusedStep::number:
          with_number(step, a, to, count);
          break;
        case FusedStep::reversed:
          use_.binary[step.op][kind_](repeated(step.x, count), a, to, count);
          break;
        case FusedStep::clamp:
          Scalar low(Number::of(step.x), kind_, {}), high(Number::of(step.y), kind_, {});
          use_.clamp[kind_](a, low.storage, high.storage, to, count);
          break;
      }
    }
  }

 private:
  const void* operand(const void* const* in, int at) const {
    return at < kFusedInputs ? in[at] : room(at - kFusedInputs);
  }
  char* room(int number) const {
    return temporaries_.memory + static_cast<size_t>(number) * (kChunk * size_of_kind(kind_) + 64);
  }
  const void* repeated(double x, int64_t count) const {
    Scalar one(Number::of(x), kind_, {});
    use_.fill[kind_ == kF64 ? 3 : 2](one.storage, room(kFusedTemporaries), count);
    return room(kFusedTemporaries);
  }
  // Sums and products need no second operand in memory. A product adds -0, which has no effect.
  void with_number(const FusedStep& step, const void* a, void* to, int64_t count) const {
    auto op = static_cast<Binary>(step.op);
    if (op == Binary::add) return use_.scale[kind_](a, 1, step.x, to, count);
    if (op == Binary::sub) return use_.scale[kind_](a, 1, -step.x, to, count);
    if (op == Binary::mul) return use_.scale[kind_](a, step.x, -0.0, to, count);
    use_.binary[step.op][kind_](a, repeated(step.x, count), to, count);
  }

  const FusedElementwise& fused_;
  ArithmeticType kind_;
  Temporaries& temporaries_;
  const Loops& use_ = loops();
};

int fused_elementwise(Stream& stream, const FusedElementwise& fused, const View* inputs,
                      const View& out) {
  if (!is_float(out.dtype) || fused.steps < 1) return kUnsupported;
  const View* views[kFusedInputs];
  for (int i = 0; i < fused.inputs; i++) views[i] = &inputs[i];
  ArithmeticType kind = kind_of(out.dtype);
  auto size = static_cast<int64_t>(size_of_kind(kind));
  auto run = [&](const void* const* in, void* to, int64_t count, int64_t) {
    Temporaries temporaries;
    FusedChunk chunk(fused, kind, temporaries);
    const char* from[kFusedInputs];
    for (int64_t at = 0; at < count; at += kChunk) {
      for (int i = 0; i < fused.inputs; i++) from[i] = static_cast<const char*>(in[i]) + at * size;
      const void* operands[kFusedInputs];
      std::copy(from, from + fused.inputs, operands);
      chunk.run(operands, static_cast<char*>(to) + at * size, std::min(kChunk, count - at));
    }
  };
  strided_loop(stream, views, fused.inputs, out, kGrainCostly, As::numbers, RunCall(run));
  return kDone;
}

}  // namespace

void add_fused_rows(Kernels& table) { table.fused_elementwise = fused_elementwise; }

}  // namespace flow::cpu
