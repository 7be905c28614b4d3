// Copies between the host's memory and one GPU's by way of pinned pieces: while one is on its way,
// the next is filled or emptied, and who copies to the GPU does not wait for it.
#pragma once
#include <cstddef>

#include "flow/result.hpp"

namespace flow::tensors {

/// Of one thread and one GPU, made when it is first used and kept as long as the thread.
class Staging {
 public:
  Staging() = default;
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;
  ~Staging();
  /// In the stream's order; `from` may change when it returns.
  Status to_device(char* to, const char* from, size_t bytes, void* stream);
  /// `to` has all when it returns.
  Status to_host(char* to, const char* from, size_t bytes, void* stream);

 private:
  static constexpr int kBuffers = 2;
  struct PinnedBuffer {
    char* data = nullptr;
    void* event = nullptr;  // after the last copy from or to it
    bool is_under_way = false;
  };
  Status prepare();
  Status finish(PinnedBuffer& buffer);

  PinnedBuffer buffers_[kBuffers];
};

}  // namespace flow::tensors
