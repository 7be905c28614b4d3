#include "kernels/tensor/staging.hpp"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/parallel.hpp"
#include "kernels/cuda/device.hpp"

namespace flow::tensors {
namespace {

// Large enough for the bus's full speed and for several threads, small enough that the first copy
// starts early.
constexpr size_t kBufferBytes = size_t{4} << 20;
// One thread copies about 10 GB/s, a bus transfers 55.
constexpr int kCopyThreads = 6;
constexpr int64_t kPartBytes = 256 << 10;  // at least, of a thread

void copy_bytes(char* to, const char* from, size_t bytes) {
  cpu::parallel_for(kCopyThreads, static_cast<int64_t>(bytes), kPartBytes,
                    [&](int64_t first, int64_t last) {
                      std::memcpy(to + first, from + first, static_cast<size_t>(last - first));
                    });
}

}  // namespace

// An earlier error returns here again, or the process ends.
Staging::~Staging() {
  for (PinnedBuffer& each : buffers_) {
    (void)finish(each);
    if (each.event != nullptr) (void)cuda::free_event(each.event);
    if (each.data != nullptr) (void)cuda::release_pinned(each.data);
  }
  if (fault_ != nullptr) (void)cuda::release_pinned(reinterpret_cast<char*>(fault_));
}

Status Staging::prepare(PinnedBuffer& buffer, bool needs_data) {
  if (needs_data && buffer.data == nullptr) {
    auto data = cuda::allocate_pinned(kBufferBytes);
    FLOW_TRY(data);
    buffer.data = *data;
  }
  if (buffer.event == nullptr) {
    auto event = cuda::new_event();
    FLOW_TRY(event);
    buffer.event = *event;
  }
  return finish(buffer);
}

Status Staging::reserve() {
  FLOW_TRY(prepare_fault());
  for (PinnedBuffer& each : buffers_) FLOW_TRY(prepare(each, true));
  return {};
}

Status Staging::prepare_fault() {
  if (fault_ != nullptr) return {};
  auto data = cuda::allocate_pinned(sizeof *fault_);
  FLOW_TRY(data);
  fault_ = reinterpret_cast<int64_t*>(*data);
  return {};
}

Status Staging::finish(PinnedBuffer& buffer) {
  if (!buffer.is_under_way) return {};
  FLOW_TRY(cuda::wait_for_event(buffer.event));
  buffer.is_under_way = false;
  return {};
}

Status Staging::to_device(char* to, const char* from, size_t bytes, void* stream) {
  for (size_t at = 0, i = 0; at < bytes; at += kBufferBytes, i++) {
    // The buffer that has been in flight longer: a small copy does not wait for the previous one.
    PinnedBuffer& buffer = buffers_[i % kBuffers];
    size_t length = std::min(kBufferBytes, bytes - at);
    FLOW_TRY(prepare(buffer, true));
    copy_bytes(buffer.data, from + at, length);
    FLOW_TRY(cuda::copy_to_device(to + at, buffer.data, length, stream));
    FLOW_TRY(cuda::record_event(buffer.event, stream));
    buffer.is_under_way = true;
  }
  std::rotate(buffers_, buffers_ + 1, buffers_ + kBuffers);
  return {};
}

Result<int64_t> Staging::to_host(char* to, const char* from, size_t bytes, const int64_t* fault,
                                 void* stream) {
  FLOW_TRY(prepare_fault());
  size_t count = (bytes + kBufferBytes - 1) / kBufferBytes;
  auto length = [&](size_t i) { return std::min(kBufferBytes, bytes - i * kBufferBytes); };
  auto start = [&](size_t i) -> Status {
    PinnedBuffer& buffer = buffers_[i % kBuffers];
    FLOW_TRY(prepare(buffer, i < count));
    if (i < count)
      FLOW_TRY(cuda::copy_to_host(buffer.data, from + i * kBufferBytes, length(i), stream));
    if (i + 1 >= count)  // with the last one: one wait for both
      FLOW_TRY(cuda::copy_to_host(reinterpret_cast<char*>(fault_),
                                  reinterpret_cast<const char*>(fault), sizeof *fault_, stream));
    FLOW_TRY(cuda::record_event(buffer.event, stream));
    buffer.is_under_way = true;
    return {};
  };
  size_t started = 0;
  for (size_t i = 0; i < std::max<size_t>(count, 1); i++) {
    for (; started < std::max<size_t>(count, 1) && started < i + kBuffers; started++)
      FLOW_TRY(start(started));
    FLOW_TRY(finish(buffers_[i % kBuffers]));
    if (i < count) copy_bytes(to + i * kBufferBytes, buffers_[i % kBuffers].data, length(i));
  }
  return *fault_;
}

}  // namespace flow::tensors
