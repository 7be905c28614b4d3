// Fused element-wise chains: a thread does all steps for its elements, with intermediate values in
// local memory.
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/launchers.hpp"

namespace flow::cuda {
namespace {

template <typename T>
struct FusedOp {
  FusedElementwise fused;

  template <int width>
  struct Temporaries {
    Compute<T> of[kFusedTemporaries][width];
  };

  template <int width>
  FLOW_DEVICE static void take(const ElementPosition (&spots)[kFusedInputs + 1],
                               const Temporaries<width>& temporaries, int at,
                               Compute<T> (&to)[width]) {
    if (at < kFusedInputs) return spots[at].template read_as<T>(to);
    for (int j = 0; j < width; j++) to[j] = temporaries.of[at - kFusedInputs][j];
  }

  template <int width>
  FLOW_DEVICE void run(const ElementPosition (&spots)[kFusedInputs + 1], int64_t) const {
    Temporaries<width> temporaries{};
    Compute<T> a[width] = {}, b[width] = {};
    for (int i = 0; i < fused.steps; i++) {
      const FusedStep& step = fused.step[i];
      take<width>(spots, temporaries, step.a, a);
      if (step.kind == FusedStep::unary) {
        with_unary(static_cast<Unary>(step.op), [&](auto constant) {
          for (int j = 0; j < width; j++) a[j] = unary_of<decltype(constant)::value>(a[j]);
        });
      } else if (step.kind == FusedStep::clamp) {
        auto low = static_cast<Compute<T>>(step.x), high = static_cast<Compute<T>>(step.y);
        for (int j = 0; j < width; j++) a[j] = clamp_of(a[j], low, high);
      } else {
        if (step.kind == FusedStep::binary) {
          take<width>(spots, temporaries, step.b, b);
        } else {
          for (int j = 0; j < width; j++) b[j] = static_cast<Compute<T>>(step.x);
        }
        bool swapped = step.kind == FusedStep::reversed;
        with_binary(static_cast<Binary>(step.op), [&](auto constant) {
          for (int j = 0; j < width; j++)
            a[j] =
                binary_of<decltype(constant)::value>(swapped ? b[j] : a[j], swapped ? a[j] : b[j]);
        });
      }
      if (i + 1 < fused.steps)
        for (int j = 0; j < width; j++) temporaries.of[step.to][j] = a[j];
    }
    spots[kFusedInputs].template write_as<T>(a);
  }
};

}  // namespace

int fused_elementwise(Stream& stream, const FusedElementwise& fused, const View* inputs,
                      const View& out) {
  if (fused.steps < 1) return kUnsupported;
  return visit_floats(out.dtype, [&](auto type) {
    using T = decltype(type);
    // Unused inputs of the chain have stride 0 and are not read.
    View none = out;
    for (int64_t& stride : none.strides) stride = 0;
    const View* in[kFusedInputs];
    for (int i = 0; i < kFusedInputs; i++) in[i] = i < fused.inputs ? &inputs[i] : &none;
    return launch_each<kPack<T>>(stream, FusedOp<T>{fused},
                                 {in[0], in[1], in[2], in[3], in[4], in[5], &out});
  });
}

}  // namespace flow::cuda
