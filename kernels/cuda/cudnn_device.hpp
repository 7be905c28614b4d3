// The device on which cuDNN's calls run: CUDA's, or the emulator's. Only for sources that both
// compile.
#pragma once
#ifndef FLOW_EMULATE
#include <cuda_runtime.h>
#endif

#include <cstddef>
#include <cstring>
#include <new>

#include "kernels/cuda/cudnn_calls.hpp"
#ifndef FLOW_EMULATE
#include "kernels/cuda/device.hpp"
#endif
#include "kernels/table.hpp"

#ifdef FLOW_EMULATE
namespace flow::emulator {
/// The most bytes that LibraryMemory gets, for tests.
extern size_t library_memory_max;
}  // namespace flow::emulator
#endif

namespace flow::cuda::dnn {

inline int current_device(int& device) {
#ifdef FLOW_EMULATE
  device = 0;
  return 0;
#else
  return static_cast<int>(cudaGetDevice(&device));
#endif
}

/// Such as 90; 0 if it cannot be read.
inline int capability_of(int device) {
#ifdef FLOW_EMULATE
  (void)device;
  return 90;
#else
  int major = 0, minor = 0;
  if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess ||
      cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) != cudaSuccess)
    return 0;
  return 10 * major + minor;
#endif
}

/// A call that reads and writes device memory.
template <typename F>
int on_device(F f) {
#ifdef FLOW_EMULATE
  if (emulator::device_memory != nullptr) emulator::device_memory(true);
  int status = f();
  if (emulator::device_memory != nullptr) emulator::device_memory(false);
  return status;
#else
  return f();
#endif
}

/// Whether the stream's work is recorded for a graph instead of run. Then nothing may wait for it,
/// and nothing is made: CUDA rejects that, and cuDNN's calls are not known to allow it.
inline bool is_recording(const kernels::Stream& stream) {
#ifdef FLOW_EMULATE
  (void)stream;
  return emulator::recorder != nullptr;
#else
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  if (cudaStreamIsCapturing(static_cast<cudaStream_t>(stream.native), &status) == cudaSuccess)
    return status != cudaStreamCaptureStatusNone;
  (void)cudaGetLastError();
  return true;
#endif
}

/// A call that queues work on a stream, which may be recording. `f` is copied.
template <typename F>
int queue_on_device(F f) {
#ifdef FLOW_EMULATE
  if (emulator::recorder != nullptr) {
    (*emulator::recorder)([f] { return on_device(f); });
    return 0;
  }
#endif
  return on_device(f);
}

/// Copies from the device when its stream has finished everything before it.
inline int read_back(const kernels::Stream& stream, void* to, const void* from, size_t bytes) {
#ifdef FLOW_EMULATE
  if (is_recording(stream)) return 900;  // cudaErrorStreamCaptureUnsupported
  return on_device([&] {
    std::memcpy(to, from, bytes);
    return 0;
  });
#else
  auto native = static_cast<cudaStream_t>(stream.native);
  cudaError_t error = cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, native);
  if (error == cudaSuccess) error = cudaStreamSynchronize(native);
  return static_cast<int>(error);
#endif
}

/// Device memory that is not the tensors', in the order of the stream. Never while it records.
class LibraryMemory {
 public:
  LibraryMemory(const kernels::Stream& stream, int device, size_t bytes) : stream_(stream.native) {
#ifdef FLOW_EMULATE
    (void)device;
    if (emulator::recorder == nullptr && bytes <= emulator::library_memory_max)
      data_ = new (std::align_val_t{256}, std::nothrow) char[bytes];
#else
    Result<char*> taken = allocate(bytes, stream_);
    // What the pool caches may be in pieces that are too small.
    if (!taken.ok() && wait_for(stream_).ok() && trim_pool(device).ok())
      taken = allocate(bytes, stream_);
    if (taken.ok()) data_ = *taken;
#endif
  }
  ~LibraryMemory() {
    if (!data_) return;
#ifdef FLOW_EMULATE
    operator delete[](data_, std::align_val_t{256});
#else
    (void)release(data_, stream_);
#endif
  }
  LibraryMemory(const LibraryMemory&) = delete;
  LibraryMemory& operator=(const LibraryMemory&) = delete;

  /// Null if there is not enough.
  char* data() const { return data_; }

 private:
  void* const stream_;
  char* data_ = nullptr;
};

}  // namespace flow::cuda::dnn
