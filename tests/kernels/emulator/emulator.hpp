// Emulates a GPU: the sources of kernels/cuda, compiled as plain C++ with this header included
// first, run here. The threads of a block are fibers, so barriers, shuffles and shared memory work
// as on a device; blocks run one after another. An error of the kernel stops the launch, and
// `error_text` describes it: a barrier that not all threads reach, or reach at different places, a
// shuffle or tensor core product without its whole warp, an unaligned address, a copy that is never
// awaited, a launch beyond the device's limits, too much shared memory. Each block's shared memory
// is allocated with its exact size, so that AddressSanitizer detects an overrun, and filled with
// NaN.
#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <type_traits>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

namespace flow::emulator {

constexpr int kFault = 719;  // CUDA's error code after a faulty kernel

/// The running thread.
struct Place {
  dim3 thread, block, block_size, grid;
};
extern Place place;

/// Runs threads and blocks in the opposite order, to reveal results that depend on the order.
extern bool reversed;
/// Of a block, in bytes.
extern size_t shared_memory_max;
/// Launches since the program began, without those that a graph repeats.
extern int64_t launches;
/// Products of tensor cores since the program began, one for each warp that takes part.
extern int64_t products;
/// If not null, this thread's launches are given to it instead of run.
extern thread_local std::function<void(std::function<int()> launch)>* recorder;
/// A graph repeats launches on this thread.
extern thread_local bool is_repeating;
/// If not null, called before and after each launch: the device's memory may be touched in between.
extern void (*device_memory)(bool open);
/// The error of the last launch that failed.
const std::string& error_text();

void* shared_room(const char* key, size_t bytes);
char* dynamic_room();
void wait_for_block(const char* file, int line);
/// Gives every lane of the warp the values of all lanes: 32 blocks of 16 bytes.
const char* exchange(const void* mine, size_t bytes, const char* file, int line);
int lane();
/// Records an error of the kernel, which fails the launch. Then call abort_emulation(), which frees
/// nothing on the stack.
void fail(const std::string& what);
[[noreturn]] void abort_emulation();
/// Whether all of these bytes are in the block's shared memory.
bool is_shared(const void* at, size_t bytes);

// ---- mma.cc: the instructions of kernels/cuda/mma.cuh

/// d += a b of the whole warp; `value` converts the bits of one element.
void mma_16816(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
               float (*value)(uint16_t), const char* file, int line);
void ldmatrix_x4(uint32_t (&to)[4], const void* row, bool transposed, const char* file, int line);
/// Copies run as late as possible: when they are awaited.
void copy_async(void* to, const void* from, int bytes, bool inside, const char* file, int line);
void commit_copies();
void wait_for_copies(int pending);
/// Drops the copies of a block; false if some were never awaited.
bool end_copies();

int run(dim3 grid, int threads, size_t bytes, void (*kernel)(void*), void* object);
template <typename F>
int launch(dim3 grid, int threads, size_t bytes, F f) {
  if constexpr (std::is_copy_constructible_v<F>)
    if (recorder != nullptr) {
      (*recorder)([grid, threads, bytes, f]() mutable {
        return run(
            grid, threads, bytes, [](void* object) { (*static_cast<F*>(object))(); }, &f);
      });
      return 0;
    }
  return run(
      grid, threads, bytes, [](void* object) { (*static_cast<F*>(object))(); }, &f);
}

template <typename T>
T shuffle(T value, int from, const char* file, int line) {
  static_assert(sizeof(T) <= 16);
  T out;
  std::memcpy(&out, exchange(&value, sizeof value, file, line) + 16 * from, sizeof out);
  return out;
}
unsigned ballot(bool holds, const char* file, int line);

}  // namespace flow::emulator

#define threadIdx (::flow::emulator::place.thread)
#define blockIdx (::flow::emulator::place.block)
#define blockDim (::flow::emulator::place.block_size)
#define gridDim (::flow::emulator::place.grid)
#define __syncthreads() ::flow::emulator::wait_for_block(__FILE__, __LINE__)
#define __syncwarp() ((void)::flow::emulator::ballot(true, __FILE__, __LINE__))
#define __shfl_sync(mask, value, from) \
  ((void)(mask), ::flow::emulator::shuffle(value, (from)&31, __FILE__, __LINE__))
#define __shfl_xor_sync(mask, value, with) \
  ((void)(mask),                           \
   ::flow::emulator::shuffle(value, ::flow::emulator::lane() ^ (with), __FILE__, __LINE__))
#define __shfl_up_sync(mask, value, by)                                             \
  ((void)(mask), ::flow::emulator::shuffle(value,                                   \
                                           ::flow::emulator::lane() >= int(by)      \
                                               ? ::flow::emulator::lane() - int(by) \
                                               : ::flow::emulator::lane(),          \
                                           __FILE__, __LINE__))
#define __shfl_down_sync(mask, value, by)                                           \
  ((void)(mask), ::flow::emulator::shuffle(value,                                   \
                                           ::flow::emulator::lane() + int(by) < 32  \
                                               ? ::flow::emulator::lane() + int(by) \
                                               : ::flow::emulator::lane(),          \
                                           __FILE__, __LINE__))
#define __ballot_sync(mask, holds) \
  ((void)(mask), ::flow::emulator::ballot(holds, __FILE__, __LINE__))

inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
inline int __ffs(int bits) { return __builtin_ffs(bits); }
template <typename T>
T atomicAdd(T* at, T value) {
  T before = *at;
  *at = static_cast<T>(before + value);
  return before;
}
template <typename T>
T atomicMin(T* at, T value) {
  T before = *at;
  if (value < before) *at = value;
  return before;
}
template <typename T>
T atomicCAS(T* at, T compare, T value) {
  T before = *at;
  if (before == compare) *at = value;
  return before;
}
template <typename T>
T __ldg(const T* at) {
  return *at;
}
