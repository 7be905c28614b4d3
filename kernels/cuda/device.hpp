// The GPUs of this machine and their memory: CUDA's runtime behind our errors. Nothing here is
// called when a program starts; a machine without a GPU has 0 of them. Calls are about the GPU that
// set_device chose for the thread.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#include "flow/result.hpp"

namespace flow::cuda {

struct DeviceInfo {
  std::string name;
  std::string id;  // "GPU-…", as nvidia-smi has it
  size_t memory_free = 0, memory_total = 0;
  int major = 0, minor = 0;  // of the instruction set
  int processors = 0;
};

/// 0 where there is no GPU or no driver. An error where this build has no CUDA, or the driver says
/// something else.
Result<int> device_count();
Result<DeviceInfo> describe(int device);
/// For this thread. The device's memory pool keeps what is released for the next allocation.
Status set_device(int device);

/// A stream that does not wait for others.
Result<void*> new_stream();
Status free_stream(void* stream);
/// Waits until all that was put on the stream is done; the first error of any of it.
Status wait_for(void* stream);

/// In the stream's order.
Result<char*> allocate(size_t bytes, void* stream);
Status release(char* data, void* stream);
/// Memory of the host that copies need not wait for.
Result<char*> allocate_pinned(size_t bytes);
Status release_pinned(char* data);

/// In the stream's order; the host's memory must stay until wait_for unless it is not pinned.
Status copy_to_device(char* to, const char* from, size_t bytes, void* stream);
Status copy_to_host(char* to, const char* from, size_t bytes, void* stream);
Status copy_on_device(char* to, const char* from, size_t bytes, void* stream);
Status set_bytes(char* to, int value, size_t bytes, void* stream);

/// A mark on a stream; wait_for_event returns when all that was on the stream before it is done.
Result<void*> new_event();
Status record_event(void* event, void* stream);
Status wait_for_event(void* event);
/// What is put on the stream from now on comes after the event.
Status follow_event(void* event, void* stream);
/// Never waits.
Result<bool> has_completed(void* event);
Status free_event(void* event);

/// What went wrong on the device before, which no later call can mend: the process must end.
Status last_fault();
/// Whether what the stream's device says of it is that the device failed, as by memory that can't
/// be corrected, and not what a program did on it.
bool has_device_failed(void* stream);

}  // namespace flow::cuda
