// CUDA's runtime with our error type.
#include "kernels/cuda/device.hpp"

#include <cuda_runtime.h>

#include <algorithm>
#include <mutex>
#include <set>
#include <utility>

#include "kernels/cuda/cublaslt.hpp"
#include "kernels/cuda/cudnn.hpp"
#include "kernels/cuda/driver_version.hpp"
#include "kernels/cuda/errors.hpp"

namespace flow::cuda {
namespace {

bool is_no_device(cudaError_t error) {
  return error == cudaErrorNoDevice || error == cudaErrorInsufficientDriver;
}

// CUDA returns the same error without any driver, whose version is then 0.
std::string old_driver() {
  int supported = 0;
  if (cudaDriverGetVersion(&supported) != cudaSuccess) supported = 0;
  return old_driver_text(driver_release(), supported, needed_driver());
}

Error error_of(const char* what, cudaError_t error) {
  // Resets the error, so that the next call does not return it.
  cudaGetLastError();
  std::string words = cudaGetErrorString(error);
  if (is_no_device(error)) return environment_error("no GPU here: " + words);
  return environment_error("the GPU cannot " + std::string(what) + ": " + words + " (" +
                           cudaGetErrorName(error) + ")");
}

Status status_of(const char* what, cudaError_t error) {
  if (error == cudaSuccess) return {};
  return error_of(what, error);
}

cudaStream_t native(void* stream) { return static_cast<cudaStream_t>(stream); }

std::string id_of(const cudaUUID_t& uuid) {
  constexpr char digits[] = "0123456789abcdef";
  std::string text = "GPU-";
  for (int i = 0; i < 16; i++) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    auto byte = static_cast<unsigned char>(uuid.bytes[i]);
    text += digits[byte >> 4];
    text += digits[byte & 15];
  }
  return text;
}

}  // namespace

Result<int> device_count() {
  int count = 0;
  cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess) return count;
  if (!is_no_device(error)) return error_of("be counted", error);
  cudaGetLastError();
  if (std::string old = old_driver(); !old.empty()) return environment_error(old);
  return 0;
}

// A release of the driver runs programs of all runtimes of its major version.
int needed_driver() { return CUDART_VERSION / 1000 * 1000; }

Result<DeviceInfo> describe(int device) {
  cudaDeviceProp properties;
  cudaError_t error = cudaGetDeviceProperties(&properties, device);
  if (error != cudaSuccess) return error_of("be described", error);
  DeviceInfo info;
  int before = 0;
  error = cudaGetDevice(&before);
  if (error == cudaSuccess) error = cudaSetDevice(device);
  if (error == cudaSuccess) error = cudaMemGetInfo(&info.memory_free, &info.memory_total);
  cudaSetDevice(before);
  if (error != cudaSuccess) return error_of("report its memory", error);
  info.name = properties.name;
  info.id = id_of(properties.uuid);
  info.major = properties.major;
  info.minor = properties.minor;
  info.processors = properties.multiProcessorCount;
  return info;
}

Status set_device(int device) {
  FLOW_TRY(status_of("be selected", cudaSetDevice(device)));
  cudaMemPool_t pool;
  FLOW_TRY(status_of("return its memory pool", cudaDeviceGetDefaultMemPool(&pool, device)));
  uint64_t keep = UINT64_MAX;
  return status_of("keep its memory",
                   cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep));
}

Result<void*> new_stream() {
  cudaStream_t stream = nullptr;
  cudaError_t error = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  if (error != cudaSuccess) return error_of("create a stream", error);
  return static_cast<void*>(stream);
}
Status free_stream(void* stream) {
  return status_of("destroy a stream", cudaStreamDestroy(native(stream)));
}
Status wait_for(void* stream) {
  return status_of("finish its work", cudaStreamSynchronize(native(stream)));
}

Result<char*> allocate(size_t bytes, void* stream) {
  void* data = nullptr;
  cudaError_t error = cudaMallocAsync(&data, bytes, native(stream));
  if (error != cudaSuccess)
    return error_of(("allocate " + std::to_string(bytes) + " bytes").c_str(), error);
  return static_cast<char*>(data);
}
Status release(char* data, void* stream) {
  return status_of("release memory", cudaFreeAsync(data, native(stream)));
}
Status release_idle(char* data) {
  FLOW_TRY(status_of("finish its work", cudaDeviceSynchronize()));
  return status_of("release memory", cudaFree(data));
}

Result<PoolUse> pool_use(int device) {
  cudaMemPool_t pool;
  FLOW_TRY(status_of("return its memory pool", cudaDeviceGetDefaultMemPool(&pool, device)));
  uint64_t reserved = 0, used = 0;
  FLOW_TRY(status_of("return the size of its memory pool",
                     cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemCurrent, &reserved)));
  FLOW_TRY(status_of("return the use of its memory pool",
                     cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &used)));
  return PoolUse{reserved, used};
}

Status trim_pool(int device) {
  cudaMemPool_t pool;
  FLOW_TRY(status_of("return its memory pool", cudaDeviceGetDefaultMemPool(&pool, device)));
  return status_of("return cached memory", cudaMemPoolTrimTo(pool, 0));
}

void load_product_library() { lt_prepare(); }

Result<char*> allocate_pinned(size_t bytes) {
  void* data = nullptr;
  cudaError_t error = cudaMallocHost(&data, bytes);
  if (error != cudaSuccess)
    return error_of(("pin " + std::to_string(bytes) + " bytes of the host").c_str(), error);
  return static_cast<char*>(data);
}
Status release_pinned(char* data) {
  return status_of("release the host's memory", cudaFreeHost(data));
}

Status copy_to_device(char* to, const char* from, size_t bytes, void* stream) {
  return status_of("take a copy",
                   cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, native(stream)));
}
Status copy_to_host(char* to, const char* from, size_t bytes, void* stream) {
  return status_of("give a copy",
                   cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, native(stream)));
}
Status copy_on_device(char* to, const char* from, size_t bytes, void* stream) {
  return status_of("copy",
                   cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, native(stream)));
}

namespace {

// Lets `device` access the memory of `owner`'s pool, if the machine can. Otherwise the driver
// copies through the host.
void open_pool(int owner, int device) {
  int can = 0;
  cudaMemPool_t pool;
  if (cudaDeviceCanAccessPeer(&can, device, owner) == cudaSuccess && can != 0 &&
      cudaDeviceGetDefaultMemPool(&pool, owner) == cudaSuccess) {
    cudaMemAccessDesc access{};
    access.location.type = cudaMemLocationTypeDevice;
    access.location.id = device;
    access.flags = cudaMemAccessFlagsProtReadWrite;
    (void)cudaMemPoolSetAccess(pool, &access, 1);
  }
  cudaGetLastError();
}

void open_pools(int a, int b) {
  static std::mutex mutex;
  static std::set<std::pair<int, int>> opened;
  std::lock_guard lock(mutex);
  if (!opened.emplace(std::min(a, b), std::max(a, b)).second) return;
  open_pool(a, b);
  open_pool(b, a);
}

}  // namespace

Status copy_between_devices(char* to, int to_device, const char* from, int from_device,
                            size_t bytes, void* stream) {
  open_pools(to_device, from_device);
  return status_of("take a copy of another GPU",
                   cudaMemcpyPeerAsync(to, to_device, from, from_device, bytes, native(stream)));
}
Status set_bytes(char* to, int value, size_t bytes, void* stream) {
  return status_of("fill memory", cudaMemsetAsync(to, value, bytes, native(stream)));
}

Result<void*> new_event() {
  cudaEvent_t event = nullptr;
  cudaError_t error = cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  if (error != cudaSuccess) return error_of("create an event", error);
  return static_cast<void*>(event);
}
Status record_event(void* event, void* stream) {
  return status_of("record an event",
                   cudaEventRecord(static_cast<cudaEvent_t>(event), native(stream)));
}
Status wait_for_event(void* event) {
  return status_of("finish its work", cudaEventSynchronize(static_cast<cudaEvent_t>(event)));
}
Status follow_event(void* event, void* stream) {
  return status_of("wait for an event",
                   cudaStreamWaitEvent(native(stream), static_cast<cudaEvent_t>(event), 0));
}
Result<bool> has_completed(void* event) {
  cudaError_t error = cudaEventQuery(static_cast<cudaEvent_t>(event));
  if (error == cudaSuccess) return true;
  if (error != cudaErrorNotReady) return error_of("finish its work", error);
  cudaGetLastError();
  return false;
}
Status free_event(void* event) {
  return status_of("destroy an event", cudaEventDestroy(static_cast<cudaEvent_t>(event)));
}

// Calls of other threads are not restricted meanwhile.
Status begin_recording(void* stream) {
  return status_of("record its work",
                   cudaStreamBeginCapture(native(stream), cudaStreamCaptureModeThreadLocal));
}
Result<char*> allocate_while_recording(size_t bytes, void* stream) {
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  cudaThreadExchangeStreamCaptureMode(&mode);
  Result<char*> taken = allocate(bytes, stream);
  cudaThreadExchangeStreamCaptureMode(&mode);
  return taken;
}
Result<void*> end_recording(void* stream) {
  cudaGraph_t recorded = nullptr;
  FLOW_TRY(status_of("record its work", cudaStreamEndCapture(native(stream), &recorded)));
  cudaGraphExec_t graph = nullptr;
  cudaError_t error = cudaGraphInstantiate(&graph, recorded, 0);
  cudaGraphDestroy(recorded);
  if (error != cudaSuccess) return error_of("prepare a graph", error);
  return static_cast<void*>(graph);
}
Status launch_graph(void* graph, void* stream) {
  return status_of("launch a graph",
                   cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph), native(stream)));
}
Status free_graph(void* graph) {
  return status_of("destroy a graph", cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph)));
}

Status last_fault() { return status_of("continue", cudaPeekAtLastError()); }

// An error that may have either cause, such as a failed launch, is considered the program's.
bool has_device_failed(void* stream) {
  cudaError_t error = cudaStreamSynchronize(native(stream));
  cudaGetLastError();
  switch (error) {
    case cudaErrorDevicesUnavailable:
    case cudaErrorNoDevice:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorUnknown:  // of a GPU that has fallen off the bus
      return true;
    default:
      return false;
  }
}

const char* error_text(int code) {
  if (code >= kDnnErrors) return cudnn_error_text(code);
  if (code == kLtErrors) {
    static const std::string text = std::string("the library that ") + kLtVariable +
                                    " names cannot be used: " + lt_use().problem;
    return text.c_str();
  }
  if (code > kLtErrors) return "cuBLASLt rejected a product that it had accepted";
  auto error = static_cast<cudaError_t>(code);
  return is_no_device(error) ? "no GPU here" : cudaGetErrorString(error);
}

}  // namespace flow::cuda
