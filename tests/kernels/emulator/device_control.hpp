// What the emulated GPU of device.cc counts, and the conditions that a test sets.
#pragma once
#include <atomic>
#include <cstddef>

namespace flow::emulator {

struct DeviceControl {
  std::atomic<int> pinned{0};            // allocations of pinned memory
  std::atomic<int> waits{0}, copies{0};  // of the host for an event or a stream; asynchronous ones
  std::atomic<int> kernels_streams{0};   // streams that exist
  std::atomic<int> devices{1};           // that share one memory
  std::atomic<int> peer_copies{0};       // between two of them
  std::atomic<int> graphs{0}, graph_launches{0};  // graphs that exist
  std::atomic<int> trims{0}, idle_releases{0}, product_libraries{0};
  std::atomic<size_t> others_hold{0};  // bytes of other processes
  /// The pool's cached memory is in pieces that no allocation fits into.
  std::atomic<bool> is_cache_in_pieces{false};
};
DeviceControl& device_control();

}  // namespace flow::emulator
