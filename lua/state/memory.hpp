#pragma once
#include <atomic>
#include <cstddef>

namespace flow::lua {

/// Memory limit and use of a state. 0: no limit.
struct VmMemory {
  size_t used = 0, limit = 0;
  std::atomic<size_t> tensors = 0;  // in addition to `used`, under the same limit
  bool refused = false;
  size_t rejected_peak = 0;  // the use that the rejected allocation would have reached
};

}  // namespace flow::lua
