// The device on which cuDNN's calls run: CUDA's, or the emulator's. Only for sources that both
// compile.
#pragma once
#ifndef FLOW_EMULATE
#include <cuda_runtime.h>
#endif

#include <cstddef>
#include <cstring>

#include "kernels/cuda/cudnn_calls.hpp"
#include "kernels/table.hpp"

namespace flow::cuda::dnn {

inline bool is_refusal(int status) { return status / 1000 * 1000 == kNotSupported; }

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

/// Copies from the device when its stream has finished everything before it.
inline int read_back(const kernels::Stream& stream, void* to, const void* from, size_t bytes) {
#ifdef FLOW_EMULATE
  (void)stream;
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

}  // namespace flow::cuda::dnn
