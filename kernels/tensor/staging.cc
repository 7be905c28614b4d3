#include "kernels/tensor/staging.hpp"

#include <algorithm>
#include <cstring>

#include "kernels/cuda/device.hpp"

namespace flow::tensors {
namespace {

// Large enough for the bus's full speed, small enough that the first copy starts early.
constexpr size_t kBufferBytes = size_t{2} << 20;

}  // namespace

// An earlier error returns here again, or the process ends.
Staging::~Staging() {
  for (PinnedBuffer& each : buffers_) {
    (void)finish(each);
    if (each.event != nullptr) (void)cuda::free_event(each.event);
    if (each.data != nullptr) (void)cuda::release_pinned(each.data);
  }
}

Status Staging::prepare() {
  for (PinnedBuffer& each : buffers_) {
    if (each.event != nullptr) continue;
    if (each.data == nullptr) {
      auto data = cuda::allocate_pinned(kBufferBytes);
      FLOW_TRY(data);
      each.data = *data;
    }
    auto event = cuda::new_event();
    FLOW_TRY(event);
    each.event = *event;
  }
  return {};
}

Status Staging::finish(PinnedBuffer& buffer) {
  if (!buffer.is_under_way) return {};
  FLOW_TRY(cuda::wait_for_event(buffer.event));
  buffer.is_under_way = false;
  return {};
}

Status Staging::to_device(char* to, const char* from, size_t bytes, void* stream) {
  FLOW_TRY(prepare());
  for (size_t at = 0, i = 0; at < bytes; at += kBufferBytes, i++) {
    // The buffer that has been in flight longer: a small copy does not wait for the previous one.
    PinnedBuffer& buffer = buffers_[i % kBuffers];
    size_t length = std::min(kBufferBytes, bytes - at);
    FLOW_TRY(finish(buffer));
    std::memcpy(buffer.data, from + at, length);
    FLOW_TRY(cuda::copy_to_device(to + at, buffer.data, length, stream));
    FLOW_TRY(cuda::record_event(buffer.event, stream));
    buffer.is_under_way = true;
  }
  std::rotate(buffers_, buffers_ + 1, buffers_ + kBuffers);
  return {};
}

Status Staging::to_host(char* to, const char* from, size_t bytes, void* stream) {
  FLOW_TRY(prepare());
  size_t count = (bytes + kBufferBytes - 1) / kBufferBytes;
  auto length = [&](size_t i) { return std::min(kBufferBytes, bytes - i * kBufferBytes); };
  for (size_t i = 0; i <= count; i++) {
    if (i < count) {
      PinnedBuffer& buffer = buffers_[i % kBuffers];
      FLOW_TRY(finish(buffer));
      FLOW_TRY(cuda::copy_to_host(buffer.data, from + i * kBufferBytes, length(i), stream));
      FLOW_TRY(cuda::record_event(buffer.event, stream));
      buffer.is_under_way = true;
    }
    if (i == 0) continue;
    PinnedBuffer& before = buffers_[(i - 1) % kBuffers];
    FLOW_TRY(finish(before));
    std::memcpy(to + (i - 1) * kBufferBytes, before.data, length(i - 1));
  }
  return {};
}

}  // namespace flow::tensors
