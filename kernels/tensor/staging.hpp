// Copies between host memory and one GPU's through pinned buffers: while some are being
// transferred, the next is filled or emptied, a large one by several threads. Copies to the GPU do
// not wait for the transfer.
#pragma once
#include <cstddef>
#include <cstdint>

#include "flow/result.hpp"

namespace flow::tensors {

/// Of one thread and one GPU, created at the first use and kept until the thread ends.
class Staging {
 public:
  Staging() = default;
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;
  /// Allocates all buffers now: an allocation of pinned memory may wait for the GPU.
  Status reserve();
  ~Staging();
  /// In the stream's order; `from` may change when it returns.
  Status to_device(char* to, const char* from, size_t bytes, void* stream);
  /// Waits for the copy and for all work queued on the stream; with `bytes` 0 only for the latter.
  /// Returns the word at `fault` in the GPU's memory.
  Result<int64_t> to_host(char* to, const char* from, size_t bytes, const int64_t* fault,
                          void* stream);

 private:
  static constexpr int kBuffers = 4;
  struct PinnedBuffer {
    char* data = nullptr;
    void* event = nullptr;  // after the last copy from or to it
    bool is_under_way = false;
  };
  /// Waits for the last copy of the buffer too. Pinned memory is allocated at the first copy.
  Status prepare(PinnedBuffer& buffer, bool needs_data);
  Status prepare_fault();
  Status finish(PinnedBuffer& buffer);

  PinnedBuffer buffers_[kBuffers];
  int64_t* fault_ = nullptr;  // pinned
};

}  // namespace flow::tensors
