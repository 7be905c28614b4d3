// A build without CUDA: every function returns this error.
#include "kernels/cuda/device.hpp"
#include "kernels/cuda/driver_version.hpp"

namespace flow::cuda {
namespace {

Error none() { return environment_error("this build has no CUDA"); }

}  // namespace

Result<int> device_count() { return none(); }
int needed_driver() { return 0; }
Result<DeviceInfo> describe(int) { return none(); }
Status set_device(int) { return none(); }
Result<void*> new_stream() { return none(); }
Status free_stream(void*) { return none(); }
Status wait_for(void*) { return none(); }
Result<char*> allocate(size_t, void*) { return none(); }
Status release(char*, void*) { return none(); }
Status release_idle(char*) { return none(); }
Result<PoolUse> pool_use(int) { return none(); }
Status trim_pool(int) { return none(); }
void load_product_library() {}
Result<char*> allocate_pinned(size_t) { return none(); }
Status release_pinned(char*) { return none(); }
Status copy_to_device(char*, const char*, size_t, void*) { return none(); }
Status copy_to_host(char*, const char*, size_t, void*) { return none(); }
Status copy_on_device(char*, const char*, size_t, void*) { return none(); }
Status copy_between_devices(char*, int, const char*, int, size_t, void*) { return none(); }
Status set_bytes(char*, int, size_t, void*) { return none(); }
Result<void*> new_event() { return none(); }
Status record_event(void*, void*) { return none(); }
Status wait_for_event(void*) { return none(); }
Status follow_event(void*, void*) { return none(); }
Result<bool> has_completed(void*) { return none(); }
Status free_event(void*) { return none(); }
Status begin_recording(void*) { return none(); }
Result<char*> allocate_while_recording(size_t, void*) { return none(); }
Result<void*> end_recording(void*) { return none(); }
Status launch_graph(void*, void*) { return none(); }
Status free_graph(void*) { return none(); }
Status last_fault() { return none(); }
bool has_device_failed(void*) { return false; }

}  // namespace flow::cuda
