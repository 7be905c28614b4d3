// The environment of one thread's operations: its budget, threads and streams, and the calls of the
// table's functions.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "engine/base/profiler_range.hpp"
#include "flow/result.hpp"
#include "kernels/table.hpp"
#include "kernels/tensor/staging.hpp"
#include "kernels/tensor/storage.hpp"

namespace flow::tensors {

using kernels::Kernels;
using kernels::Number;
using kernels::Shape;
using kernels::Stream;
using kernels::View;

constexpr int kDevicesMax = 64;

class Capture;

struct Runtime {
  Runtime() = default;
  /// Frees the thread's scratch, pinned buffers and streams. Tensors that outlive it are released
  /// once the GPU is idle.
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  int threads = 1;  // of the CPU, per operation
  std::shared_ptr<MemoryBudget> budget;
  bool records = true;  // operations are recorded for backward
  bool casts = false;   // products are computed in `cast_type`: mixed precision
  DType cast_type = DType::bf16;
  kernels::MatmulPrecision precision = kernels::MatmulPrecision::highest;  // of f32 on GPUs
  Stream cpu;
  std::vector<Stream> cuda;                       // by device
  std::vector<std::unique_ptr<Staging>> staging;  // by device
  Capture* capture = nullptr;        // if set, operations are recorded: see capture.hpp
  bool copies_are_constant = false;  // see ConstantCopies
  int chosen = -1;                   // the GPU that CUDA's calls use
  uint64_t used_gpus = 0;            // a bit for each whose stream was used since it was cleared
  /// If set, called after each wait for a GPU: an error means that the results there are invalid.
  std::function<Status()> failure_check;
};
/// Of the calling thread.
Runtime& runtime();

const Kernels& kernels_of(const Device& device);
Stream& stream_of(const Device& device);
/// Enlarges the scratch to the size that the last call needs.
void grow_scratch(const Device& device);
[[noreturn]] void fail_call(const Device& device, const char* row, int code);

/// For tests of GPU code: called for each operand of a call there, unless null.
extern void (*check_operand)(const char* row, const View& operand);

inline void check_argument(const char* row, const View& operand) { check_operand(row, operand); }
inline void check_argument(const char* row, const View* operand) {
  if (operand != nullptr) check_operand(row, *operand);
}
template <typename Other>
void check_argument(const char*, const Other&) {}

/// While operations are recorded, their graph keeps the memory of an operand.
void note_use(const View& operand);
template <typename T>
void note_argument(const T& given) {
  if constexpr (std::is_same_v<T, View>) {
    note_use(given);
  } else if constexpr (std::is_same_v<T, kernels::ProductEpilogue>) {
    for (const View* each : {given.bias, given.before, given.column_sums, given.row_sums})
      if (each != nullptr) note_use(*each);
  } else if constexpr (std::is_pointer_v<T> && std::is_convertible_v<T, const View*>) {
    if (given != nullptr) note_use(*given);
  }
}

/// Calls a function of the device's table: `call(device, &Kernels::softmax, "softmax", …)`.
template <typename... Parameters, typename... Arguments>
void call(const Device& device, int (*Kernels::*row)(Stream&, Parameters...), const char* name,
          Arguments&&... given) {
  ProfilerRange range(name);
  Stream& stream = stream_of(device);
  if (check_operand != nullptr && device.kind != Device::cpu) (check_argument(name, given), ...);
  if (runtime().capture != nullptr && device.kind != Device::cpu) (note_argument(given), ...);
  for (;;) {
    stream.scratch.used = 0;
    int code = (kernels_of(device).*row)(stream, given...);
    if (code == kernels::kDone) return;
    if (code != kernels::kNeedsScratch) fail_call(device, name, code);
    grow_scratch(device);
  }
}

/// Device memory in stream order. Throws a Failure with the requested size, the free memory, and
/// this process's share of it.
void* allocate_device_memory(const Device& device, size_t bytes);
/// By this process, on all GPUs.
size_t device_bytes_held();
/// In the order of `stream`, on which it was allocated, by any thread. Never throws.
void release_device_memory(const Device& device, void* stream, void* data, size_t bytes) noexcept;

/// The same on another stream, without a second try.
Result<char*> allocate_on_stream(const Device& device, size_t bytes, void* stream);
[[noreturn]] void throw_out_of_memory(const Device& device, size_t bytes, const std::string& why);
/// As cuda::begin_recording() and cuda::end_recording() on the thread's stream. Memory that is
/// released in between, by any thread, is released at the end; so what can be released is released
/// before.
Status begin_recording(const Device& device);
Result<void*> end_recording(const Device& device);
/// The thread's stream on a GPU for which begin_recording() was called. Never throws, as
/// stream_of() does after an error of the GPU.
Stream& recorded_stream(const Device& device);

/// Allocates and loads now what the thread's first calls on the GPU would, because that may wait
/// for the GPU: within a gang, for a kernel that waits for another rank.
void prepare_device(const Device& device);
/// Scratch that is kept between attempts.
constexpr size_t kScratchKept = size_t{64} << 20;
/// At an attempt's end: releases larger scratch. `is_shared`: other processes use the GPUs too, and
/// get the memory that this one caches.
void release_cached_memory(bool is_shared);
/// Copies bytes between two devices of any kind; for host memory it is done when it returns.
void move_bytes(const Device& from_device, const void* from, const Device& to_device, void* to,
                size_t bytes);
/// Waits until the device has done all work of this thread. Throws its error.
void wait_for(const Device& device);

/// An error of a GPU that this thread used without waiting for it.
struct GpuFault {
  std::string words;       // "": no error
  bool is_lost = false;    // the process cannot use the GPU any more
  bool is_device = false;  // the device failed, not a program on it
};
GpuFault unseen_fault();

/// While it lives, the calling thread's operations are not recorded.
class NoRecord {
 public:
  NoRecord() : before_(runtime().records) { runtime().records = false; }
  ~NoRecord() { runtime().records = before_; }
  NoRecord(const NoRecord&) = delete;
  NoRecord& operator=(const NoRecord&) = delete;

 private:
  bool before_;
};

}  // namespace flow::tensors
