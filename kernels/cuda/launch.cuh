// Basis of every kernel in this folder: launches, shared memory, and errors. nvcc compiles the
// sources, and for tests a plain C++ compiler does, with an emulated device
// (tests/kernels/emulator).
#pragma once
#include <cstdint>
#include <utility>

#ifndef FLOW_EMULATE
#include <cuda_runtime.h>
#endif

#include "kernels/shared/index_math.hpp"
#include "kernels/shared/launch.hpp"
#include "kernels/shared/types.hpp"
#include "kernels/table.hpp"

#define FLOW_DEVICE __device__ __forceinline__

/// Before a loop whose arrays are to be in registers.
#ifdef FLOW_EMULATE
#define FLOW_UNROLL
#else
#define FLOW_UNROLL _Pragma("unroll")
#endif

namespace flow::cuda {

using namespace kernels;

/// Lanes of a warp that take part in a shuffle: all.
constexpr unsigned kAll = 0xffffffffu;

/// The one __shared__ object of its type in a kernel, uninitialized.
#ifdef FLOW_EMULATE
template <typename T>
T& shared_room() {
  static const char key = 0;
  return *static_cast<T*>(emulator::shared_room(&key, sizeof(T)));
}
inline char* dynamic_room() { return emulator::dynamic_room(); }
#else
template <typename T>
FLOW_DEVICE T& shared_room() {
  __shared__ T room;
  return room;
}
FLOW_DEVICE char* dynamic_room() {
  extern __shared__ __align__(16) char room[];
  return room;
}
#endif

/// Launches kernel(arguments…) on the stream; returns the launch's error. `bytes` is the size of
/// dynamic_room().
template <typename... Parameters, typename... Arguments>
int launch(Stream& stream, void (*kernel)(Parameters...), dim3 grid, int threads, size_t bytes,
           Arguments&&... arguments) {
  static_assert((sizeof(Parameters) + ... + 0) <= 4000, "a kernel's parameters are at most 4 KB");
#ifdef FLOW_EMULATE
  (void)stream;
  return [&](Parameters... parameters) {  // copies, as a recorded launch runs later
    return emulator::launch(grid, threads, bytes,
                            [kernel, ... copies = parameters] { kernel(copies...); });
  }(Parameters(std::forward<Arguments>(arguments))...);
#else
  return [&](Parameters... parameters) {
    void* pointers[] = {const_cast<void*>(static_cast<const void*>(&parameters))..., nullptr};
    auto function = reinterpret_cast<const void*>(kernel);
    if (bytes > 48 * 1024) {
      cudaError_t error = cudaFuncSetAttribute(
          function, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
      if (error != cudaSuccess) return static_cast<int>(error);
    }
    return static_cast<int>(cudaLaunchKernel(function, grid, dim3(threads), pointers, bytes,
                                             static_cast<cudaStream_t>(stream.native)));
  }(Parameters(std::forward<Arguments>(arguments))...);
#endif
}

inline dim3 grid_of(int64_t x, int64_t y = 1, int64_t z = 1) {
  return dim3(static_cast<unsigned>(x), static_cast<unsigned>(y), static_cast<unsigned>(z));
}

/// Returns from the surrounding function if the launch failed.
#define FLOW_LAUNCH(...)                   \
  do {                                     \
    int flow_launch_ = (__VA_ARGS__);      \
    if (flow_launch_) return flow_launch_; \
  } while (0)

/// This thread's index in the grid, and the number of threads.
FLOW_DEVICE int64_t thread_of_grid() {
  return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
FLOW_DEVICE int64_t threads_of_grid() { return static_cast<int64_t>(gridDim.x) * blockDim.x; }

/// Stores 1 + `position` in the host's fault word; the smallest position wins.
FLOW_DEVICE void leave_fault(int64_t* fault, int64_t position) {
  if (!fault) return;
  auto* word = reinterpret_cast<unsigned long long*>(fault);
  auto mine = static_cast<unsigned long long>(position + 1);
  unsigned long long seen = 0;
  for (;;) {
    unsigned long long before = atomicCAS(word, seen, mine);
    if (before == seen || (before != 0 && before <= mine)) return;
    seen = before;
  }
}

/// As visit_float; other types are unsupported.
template <typename F>
int visit_floats(DType dtype, F f) {
  return is_float(dtype) ? visit_float(dtype, f) : kUnsupported;
}

/// A number in the compute type.
template <typename C>
C number_as(Number number) {
  return number.is_integer ? convert<C>(number.integer) : convert<C>(number.real);
}

}  // namespace flow::cuda
