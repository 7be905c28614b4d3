// Fused chains on a GPU as compiled kernels: one per chain of operations and type, kept for the
// process. Where NVRTC or the driver is missing, or fails, the caller interprets the chain instead.
#pragma once
#include <functional>

#include "kernels/jit/cache.hpp"
#include "kernels/jit/driver.hpp"
#include "kernels/shared/fused_elementwise.hpp"
#include "kernels/shared/view.hpp"

namespace flow::jit {

/// A chain is compiled at its first result of at least this many elements: below, a kernel takes as
/// long as its launch, and a compilation some tenths of a second.
constexpr int64_t kFusedElementsMin = 1 << 16;

struct FusedLaunch {
  const kernels::FusedElementwise& fused;
  const kernels::View* inputs;
  const kernels::View& out;
  int device;
  void* stream;  // of the device, whose context is current
};

/// Launches the compiled chain; false, without an effect, if that is not possible. `arch_of` (90
/// for sm_90, 0 if it is unknown) and `cache` are called before a compilation only.
bool launch_fused(const Driver& driver, const FusedLaunch& call,
                  const std::function<int()>& arch_of, const std::function<Cache()>& cache);

}  // namespace flow::jit
