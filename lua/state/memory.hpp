#pragma once
#include <atomic>
#include <cstddef>

namespace flow::lua {

/// What a state may use. 0: no limit.
struct Memory {
  size_t used = 0, limit = 0;
  std::atomic<size_t> tensors = 0;  // beside `used`, under the same limit
  bool refused = false;
  size_t rejected_peak = 0;  // what it would have come to
};

}  // namespace flow::lua
