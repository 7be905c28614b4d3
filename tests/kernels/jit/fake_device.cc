// A fake GPU in host memory, which replaces kernels/cuda.
#include <cstdlib>
#include <cstring>
#include <set>

#include "kernels/cuda/device.hpp"
#include "kernels/table.hpp"

namespace flow::kernels {

// The CPU's rows, as many as tensors on "cuda:0" need.
const Kernels* cuda_kernels() { return &cpu_kernels(); }

}  // namespace flow::kernels

std::string fake_fault;  // the result of every later wait

namespace flow::cuda {

namespace {
int stream;
auto& held = *new std::set<char*>;  // not destroyed: GPU memory lives until the process ends
}  // namespace

Result<int> device_count() { return 1; }
Result<DeviceInfo> describe(int) {
  DeviceInfo info;
  info.name = "a GPU of the tests";
  info.major = 9;
  return info;
}
Status set_device(int) { return {}; }
Result<void*> new_stream() { return static_cast<void*>(&stream); }
Status free_stream(void*) { return {}; }
Status wait_for(void*) {
  if (fake_fault.empty()) return {};
  return environment_error("the GPU cannot finish its work: " + fake_fault);
}
Result<char*> allocate(size_t bytes, void*) {
  return *held.insert(static_cast<char*>(std::malloc(bytes))).first;
}
Status release(char* data, void*) {
  held.erase(data);
  std::free(data);
  return {};
}
Status release_idle(char* data) { return release(data, nullptr); }
Result<PoolUse> pool_use(int) { return PoolUse(); }
Status trim_pool(int) { return {}; }
void load_product_library() {}
Result<char*> allocate_pinned(size_t bytes) { return allocate(bytes, nullptr); }
Status release_pinned(char* data) { return release(data, nullptr); }
Status copy_to_device(char* to, const char* from, size_t bytes, void*) {
  std::memcpy(to, from, bytes);
  return {};
}
Status copy_to_host(char* to, const char* from, size_t bytes, void*) {
  std::memcpy(to, from, bytes);
  return {};
}
Status copy_on_device(char* to, const char* from, size_t bytes, void*) {
  std::memcpy(to, from, bytes);
  return {};
}
Status copy_between_devices(char* to, int, const char* from, int, size_t bytes, void*) {
  std::memcpy(to, from, bytes);
  return {};
}
Status set_bytes(char* to, int value, size_t bytes, void*) {
  std::memset(to, value, bytes);
  return {};
}
Result<void*> new_event() { return static_cast<void*>(&stream); }
Status record_event(void*, void*) { return {}; }
Status wait_for_event(void*) { return wait_for(nullptr); }
Status follow_event(void*, void*) { return {}; }
Status free_event(void*) { return {}; }
static Error records_nothing() { return environment_error("the fake GPU records nothing"); }
Status begin_recording(void*) { return records_nothing(); }
Result<char*> allocate_while_recording(size_t, void*) { return records_nothing(); }
Result<void*> end_recording(void*) { return records_nothing(); }
Status launch_graph(void*, void*) { return records_nothing(); }
Status free_graph(void*) { return {}; }
Status last_fault() { return {}; }
bool has_device_failed(void*) { return fake_fault.starts_with("uncorrectable ECC"); }

}  // namespace flow::cuda
