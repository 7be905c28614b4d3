// The GPUs of this machine and their memory: CUDA's runtime with our error type. Nothing here is
// called at program start; a machine without a GPU has 0 GPUs. Calls use the GPU that the thread's
// last set_device() selected.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#include "flow/result.hpp"

namespace flow::cuda {

struct DeviceInfo {
  std::string name;
  std::string id;  // "GPU-…", as in nvidia-smi
  size_t memory_free = 0, memory_total = 0;
  int major = 0, minor = 0;  // of the instruction set
  int processors = 0;
};

/// 0 if there is no GPU or no driver. An error if this build has no CUDA, if the driver is too old,
/// or for any other problem of it.
Result<int> device_count();
Result<DeviceInfo> describe(int device);
/// For this thread. The device's memory pool keeps released memory for the next allocation.
Status set_device(int device);

/// A stream that does not synchronize with others.
Result<void*> new_stream();
Status free_stream(void* stream);
/// Waits until all work on the stream is done; returns its first error.
Status wait_for(void* stream);

/// In the stream's order.
Result<char*> allocate(size_t bytes, void* stream);
Status release(char* data, void* stream);
/// Memory whose stream has ended: waits for the device first.
Status release_idle(char* data);

/// Of the device's memory pool, in bytes: what it took from the device, and what is allocated of
/// that. The rest is cached for later allocations.
struct PoolUse {
  size_t reserved = 0, used = 0;
};
Result<PoolUse> pool_use(int device);
/// Returns cached memory to the device. Memory that a stream releases is cached only once the
/// stream has reached the release.
Status trim_pool(int device);

/// Loads what the first product would load, which may wait for the device: cuBLASLt.
void load_product_library();
/// Pinned host memory: copies from and to it are asynchronous.
Result<char*> allocate_pinned(size_t bytes);
Status release_pinned(char* data);

/// In the stream's order; host memory must stay valid until wait_for(), unless it is not pinned.
Status copy_to_device(char* to, const char* from, size_t bytes, void* stream);
Status copy_to_host(char* to, const char* from, size_t bytes, void* stream);
Status copy_on_device(char* to, const char* from, size_t bytes, void* stream);
/// Between two devices' pools, directly if the machine can (NVLink, PCIe), else by the driver
/// through the host. The stream is of either device.
Status copy_between_devices(char* to, int to_device, const char* from, int from_device,
                            size_t bytes, void* stream);
Status set_bytes(char* to, int value, size_t bytes, void* stream);

/// wait_for_event() returns when all work on the stream before the event is done.
Result<void*> new_event();
Status record_event(void* event, void* stream);
Status wait_for_event(void* event);
/// Later work on the stream runs after the event.
Status follow_event(void* event, void* stream);
/// Never waits.
Result<bool> has_completed(void* event);
Status free_event(void* event);

/// From here on, the work that this thread queues on the stream is recorded and not done, until
/// end_recording(). What cannot be recorded, such as an allocation or a wait, fails, and so does
/// end_recording() then.
Status begin_recording(void* stream);
/// As allocate(), on another stream meanwhile.
Result<char*> allocate_while_recording(size_t bytes, void* stream);
/// The recorded work as a graph, which launch_graph() does, as one launch. If it fails, the
/// recording has ended too.
Result<void*> end_recording(void* stream);
/// Operands of the recorded work must be valid then.
Status launch_graph(void* graph, void* stream);
/// Launches that have not ended are not affected.
Status free_graph(void* graph);

/// The sticky error of the device, which no later call can clear: the process must end.
Status last_fault();
/// Whether the stream's device itself failed, for example by an uncorrectable memory error, as
/// opposed to a program on it.
bool has_device_failed(void* stream);

}  // namespace flow::cuda
