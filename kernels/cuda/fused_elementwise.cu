// Chains of operations on elements: a thread does all steps of its elements, which wait in its own
// memory in between.
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/launchers.hpp"

namespace flow::cuda {
namespace {

template <typename T>
struct ChainEach {
  Chain chain;

  template <int width>
  struct Rooms {
    Compute<T> of[kChainRooms][width];
  };

  template <int width>
  FLOW_DEVICE static void take(const Spot (&spots)[kChainInputs + 1], const Rooms<width>& rooms,
                               int at, Compute<T> (&to)[width]) {
    if (at < kChainInputs) return spots[at].template read_as<T>(to);
    for (int j = 0; j < width; j++) to[j] = rooms.of[at - kChainInputs][j];
  }

  template <int width>
  FLOW_DEVICE void run(const Spot (&spots)[kChainInputs + 1], int64_t) const {
    Rooms<width> rooms{};
    Compute<T> a[width] = {}, b[width] = {};
    for (int i = 0; i < chain.steps; i++) {
      const ChainStep& step = chain.step[i];
      take<width>(spots, rooms, step.a, a);
      if (step.kind == ChainStep::unary) {
        with_unary(static_cast<Unary>(step.op), [&](auto constant) {
          for (int j = 0; j < width; j++) a[j] = unary_of<decltype(constant)::value>(a[j]);
        });
      } else if (step.kind == ChainStep::clamp) {
        auto low = static_cast<Compute<T>>(step.x), high = static_cast<Compute<T>>(step.y);
        for (int j = 0; j < width; j++) a[j] = clamp_of(a[j], low, high);
      } else {
        if (step.kind == ChainStep::binary) {
          take<width>(spots, rooms, step.b, b);
        } else {
          for (int j = 0; j < width; j++) b[j] = static_cast<Compute<T>>(step.x);
        }
        bool swapped = step.kind == ChainStep::reversed;
        with_binary(static_cast<Binary>(step.op), [&](auto constant) {
          for (int j = 0; j < width; j++)
            a[j] =
                binary_of<decltype(constant)::value>(swapped ? b[j] : a[j], swapped ? a[j] : b[j]);
        });
      }
      if (i + 1 < chain.steps)
        for (int j = 0; j < width; j++) rooms.of[step.to][j] = a[j];
    }
    spots[kChainInputs].template write_as<T>(a);
  }
};

}  // namespace

int chain(Stream& stream, const Chain& chain, const View* inputs, const View& out) {
  if (chain.steps < 1) return kUnsupported;
  return visit_floats(out.dtype, [&](auto type) {
    using T = decltype(type);
    // What the chain does not take stands still and is not read.
    View none = out;
    for (int64_t& stride : none.strides) stride = 0;
    const View* in[kChainInputs];
    for (int i = 0; i < kChainInputs; i++) in[i] = i < chain.inputs ? &inputs[i] : &none;
    return launch_each<kPack<T>>(stream, ChainEach<T>{chain},
                                 {in[0], in[1], in[2], in[3], in[4], in[5], &out});
  });
}

}  // namespace flow::cuda
