// A GPU for tests without one: its kernels run in the emulator, and its memory is an address range
// that only kernels and copies may touch. A host read of it ends the process with a signal; on many
// machines with a real GPU such a read would go unnoticed.
#include "kernels/cuda/device.hpp"
#include "kernels/cuda/driver_version.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "kernels/tensor/runtime.hpp"
#include "tests/kernels/emulator/device_control.hpp"
#include "tests/kernels/emulator/emulator.hpp"
#include "tests/kernels/emulator/streams.hpp"

namespace flow::emulator {

DeviceControl& device_control() {
  static DeviceControl control;
  return control;
}

}  // namespace flow::emulator

namespace flow::cuda {
namespace {

using emulator::device_control;

constexpr size_t kMemory = size_t{1} << 30, kAlignment = 256, kPage = 4096;

class Memory {
 public:
  Memory() {
    void* room =
        ::mmap(nullptr, kMemory, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    start_ = room == MAP_FAILED ? nullptr : static_cast<char*>(room);
    if (start_ != nullptr) free_[0] = kMemory;
  }
  void open(bool is_open) {
    std::lock_guard hold(mutex_);
    uses_ += is_open ? 1 : -1;
    if (uses_ == (is_open ? 1 : 0))
      ::mprotect(start_, kMemory, is_open ? PROT_READ | PROT_WRITE : PROT_NONE);
  }
  char* take(size_t bytes) {
    bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    std::lock_guard hold(mutex_);
    size_t reserved = device_control().is_cache_in_pieces ? reserved_ : used_;
    if (reserved + bytes > kMemory - device_control().others_hold) return nullptr;
    for (auto [at, size] : free_) {
      if (size < bytes) continue;
      used_ += bytes;
      reserved_ = std::max(reserved_, reserved + bytes);
      free_.erase(at);
      if (size > bytes) free_[at + bytes] = size - bytes;
      taken_[at] = bytes;
      return start_ + at;
    }
    return nullptr;
  }
  bool give(const char* data) {
    std::lock_guard hold(mutex_);
    auto found = taken_.find(static_cast<size_t>(data - start_));
    if (found == taken_.end()) return false;
    // The time of a change of protection grows with the resident pages.
    size_t first = (found->first + kPage - 1) / kPage * kPage;
    size_t end = (found->first + found->second) / kPage * kPage;
    if (first < end) ::madvise(start_ + first, end - first, MADV_DONTNEED);
    used_ -= found->second;
    auto made = free_.insert(*found).first;
    taken_.erase(found);
    auto next = std::next(made);
    if (next != free_.end() && made->first + made->second == next->first) {
      made->second += next->second;
      free_.erase(next);
    }
    if (made == free_.begin()) return true;
    auto before = std::prev(made);
    if (before->first + before->second == made->first) {
      before->second += made->second;
      free_.erase(made);
    }
    return true;
  }
  /// All of it is in one allocated range.
  bool holds(const char* data, size_t bytes) {
    std::lock_guard hold(mutex_);
    if (data < start_ || data >= start_ + kMemory) return false;
    auto at = static_cast<size_t>(data - start_);
    auto next = taken_.upper_bound(at);
    if (next == taken_.begin()) return false;
    auto piece = std::prev(next);
    return at + bytes <= piece->first + piece->second;
  }
  /// Of the device, beside what the pool caches and what others hold.
  size_t free_bytes() {
    std::lock_guard hold(mutex_);
    return kMemory - device_control().others_hold - reserved_;
  }
  PoolUse use() {
    std::lock_guard hold(mutex_);
    return {reserved_, used_};
  }
  void trim() {
    std::lock_guard hold(mutex_);
    reserved_ = used_;
  }

 private:
  std::mutex mutex_;
  char* start_ = nullptr;
  int uses_ = 0;
  size_t used_ = 0, reserved_ = 0;  // of the pool, which caches what is released
  std::map<size_t, size_t> free_, taken_;
};

Memory& memory() {
  static Memory* made = [] {
    auto* own = new Memory;
    emulator::device_memory = [](bool open) {
      if (open && !emulator::is_repeating) emulator::wait_for_kernels();
      memory().open(open);
    };
    // An emulated kernel could read host memory, a GPU's kernel cannot.
    tensors::check_operand = [](const char* row, const kernels::View& operand) {
      if (operand.count() == 0 || memory().holds(operand.data, 1)) return;
      throw tensors::TensorError(std::string("a kernel of `") + row +
                                 "` was given memory of the host");
    };
    return own;
  }();
  return *made;
}

// The emulator's threads share their kernel stream; here each has a handle of its own.
struct StreamHandle {
  emulator::Stream* stream;
};
emulator::Stream* stream_of(void* stream) { return static_cast<StreamHandle*>(stream)->stream; }
emulator::Event& event_of(void* event) { return *static_cast<emulator::Event*>(event); }

// The work that a thread records on its stream.
struct Graph {
  std::vector<std::function<int()>> work;
};
struct Recording {
  void* stream = nullptr;
  std::unique_ptr<Graph> graph;
  bool is_invalid = false;
  std::function<void(std::function<int()>)> add = [this](std::function<int()> launch) {
    graph->work.push_back(std::move(launch));
  };
};
thread_local std::unique_ptr<Recording> recording;

// For calls that CUDA rejects while a thread records, after which the recording is useless.
Status check_not_recording(const char* what) {
  if (recording == nullptr) return {};
  recording->is_invalid = true;
  return environment_error(std::string("the GPU cannot ") + what +
                           ": operation not permitted when stream is capturing");
}
Status check_not_recording(const char* what, void* stream) {
  if (recording == nullptr || recording->stream != stream) return {};
  return check_not_recording(what);
}

// The kernel of a graph that failed, as a GPU reports it: at the next wait.
std::mutex failure_mutex;
std::string failure_of_graph;

Status check_graphs() {
  std::lock_guard hold(failure_mutex);
  if (failure_of_graph.empty()) return {};
  return environment_error("the GPU cannot finish its work: " +
                           std::exchange(failure_of_graph, {}));
}

void repeat(const Graph& graph) {
  emulator::is_repeating = true;
  for (const auto& each : graph.work)
    if (each() != 0) {
      std::lock_guard hold(failure_mutex);
      failure_of_graph = emulator::error_text();
      break;
    }
  emulator::is_repeating = false;
}

class Open {
 public:
  Open() { memory().open(true); }
  ~Open() { memory().open(false); }
  Open(const Open&) = delete;
};

std::map<const char*, size_t> pinned;

bool is_pinned(const char* data, size_t bytes) {
  auto next = pinned.upper_bound(data);
  if (next == pinned.begin()) return false;
  auto piece = std::prev(next);
  return data + bytes <= piece->first + piece->second;
}

// FLOW_EMULATED_LOG names a file that gets a line for each trim of the pool, and for each load of
// the library for products, with how CUDA would load kernels then.
void log(const std::string& line) {
  if (const char* path = std::getenv("FLOW_EMULATED_LOG"); path != nullptr)
    std::ofstream(path, std::ios::app) << line << "\n";
}

// Copies from and to pinned memory run as late as a GPU may run them.
Status copy(char* to, bool to_device, const char* from, bool from_device, size_t bytes,
            void* stream) {
  if ((to_device && !memory().holds(to, bytes)) || (from_device && !memory().holds(from, bytes)))
    return environment_error("the GPU cannot copy: invalid argument");
  device_control().copies++;
  if (recording != nullptr && recording->stream == stream) {
    if (to_device != from_device && !is_pinned(to_device ? from : to, bytes))
      return check_not_recording("copy");
    recording->add([=] {
      Open open;
      std::memcpy(to, from, bytes);
      return 0;
    });
    return {};
  }
  if (is_pinned(to_device ? from : to, bytes)) {
    emulator::enqueue(stream_of(stream), [=] {
      Open open;
      std::memcpy(to, from, bytes);
    });
    return {};
  }
  emulator::wait_for(stream_of(stream));
  Open open;
  std::memcpy(to, from, bytes);
  return {};
}

}  // namespace

Result<int> device_count() { return device_control().devices.load(); }
int needed_driver() { return 13000; }
Result<DeviceInfo> describe(int device) {
  if (device < 0 || device >= device_control().devices)
    return environment_error("the GPU cannot be described: invalid device ordinal");
  DeviceInfo info;
  info.name = "emulated";
  info.id = "GPU-00000000-0000-0000-0000-00000000000" + std::to_string(device);
  emulator::wait_for_kernels();  // releases pending memory
  info.memory_free = memory().free_bytes();
  info.memory_total = kMemory;
  info.major = 9;
  info.processors = 1;
  return info;
}
Status set_device(int device) {
  if (device >= 0 && device < device_control().devices) return {};
  return environment_error("the GPU cannot be chosen: invalid device ordinal");
}
Result<void*> new_stream() {
  device_control().kernels_streams++;
  return static_cast<void*>(new StreamHandle{emulator::new_stream()});
}
Status free_stream(void* stream) {
  device_control().kernels_streams--;
  emulator::free_stream(stream_of(stream));
  delete static_cast<StreamHandle*>(stream);
  return {};
}
Status wait_for(void* stream) {
  FLOW_TRY(check_not_recording("finish its work", stream));
  device_control().waits++;
  emulator::wait_for(stream_of(stream));
  return check_graphs();
}
Result<void*> new_event() { return static_cast<void*>(new emulator::Event); }
Status record_event(void* event, void* stream) {
  FLOW_TRY(check_not_recording("record an event", stream));
  emulator::record(event_of(event), stream_of(stream));
  return {};
}
Status wait_for_event(void* event) {
  FLOW_TRY(check_not_recording("finish its work"));
  device_control().waits++;
  emulator::wait_for(event_of(event));
  return check_graphs();
}
Status follow_event(void* event, void* stream) {
  FLOW_TRY(check_not_recording("wait for an event", stream));
  emulator::follow(event_of(event), stream_of(stream));
  return {};
}
Result<bool> has_completed(void* event) { return emulator::has_completed(event_of(event)); }
Status free_event(void* event) {
  delete &event_of(event);
  return {};
}
Result<char*> allocate(size_t bytes, void* stream) {
  FLOW_TRY(check_not_recording("allocate memory", stream));
  char* data = memory().take(bytes);
  if (data == nullptr) {  // memory that waits for its release goes first
    emulator::wait_for(stream_of(stream));
    data = memory().take(bytes);
  }
  if (data != nullptr) return data;
  return environment_error("the GPU cannot allocate " + std::to_string(bytes) +
                           " bytes: out of memory");
}
Status release(char* data, void* stream) {
  FLOW_TRY(check_not_recording("release memory", stream));
  if (!memory().holds(data, 1))
    return environment_error("the GPU cannot release memory: invalid argument");
  emulator::enqueue(stream_of(stream), [data] { memory().give(data); });
  return {};
}
Status release_idle(char* data) {
  FLOW_TRY(check_not_recording("finish its work"));
  device_control().idle_releases++;
  emulator::wait_for_kernels();
  if (memory().give(data)) return {};
  return environment_error("the GPU cannot release memory: invalid argument");
}
Result<PoolUse> pool_use(int) { return memory().use(); }
Status trim_pool(int) {
  device_control().trims++;
  log("trim");
  memory().trim();
  return {};
}
void load_product_library() {
  device_control().product_libraries++;
  const char* loading = std::getenv("CUDA_MODULE_LOADING");
  log(std::string("kernels ") + (loading == nullptr ? "LAZY" : loading));
}
Result<char*> allocate_pinned(size_t bytes) {
  FLOW_TRY(check_not_recording("pin memory"));
  device_control().pinned++;
  char* data = new char[bytes];
  pinned[data] = bytes;
  return data;
}
Status release_pinned(char* data) {
  FLOW_TRY(check_not_recording("release the host's memory"));
  pinned.erase(data);
  delete[] data;
  return {};
}
Status copy_to_device(char* to, const char* from, size_t bytes, void* stream) {
  return copy(to, true, from, false, bytes, stream);
}
Status copy_to_host(char* to, const char* from, size_t bytes, void* stream) {
  return copy(to, false, from, true, bytes, stream);
}
Status copy_on_device(char* to, const char* from, size_t bytes, void* stream) {
  return copy(to, true, from, true, bytes, stream);
}
Status copy_between_devices(char* to, int to_device, const char* from, int from_device,
                            size_t bytes, void* stream) {
  int devices = device_control().devices;
  if (to_device == from_device || to_device >= devices || from_device >= devices ||
      !memory().holds(to, bytes) || !memory().holds(from, bytes))
    return environment_error("the GPU cannot copy: invalid argument");
  device_control().peer_copies++;
  emulator::enqueue(stream_of(stream), [=] {
    Open open;
    std::memcpy(to, from, bytes);
  });
  return {};
}
Status set_bytes(char* to, int value, size_t bytes, void* stream) {
  if (!memory().holds(to, bytes))
    return environment_error("the GPU cannot fill memory: invalid argument");
  if (recording != nullptr && recording->stream == stream) {
    recording->add([=] {
      Open open;
      std::memset(to, value, bytes);
      return 0;
    });
    return {};
  }
  emulator::wait_for(stream_of(stream));
  Open open;
  std::memset(to, value, bytes);
  return {};
}
Status begin_recording(void* stream) {
  FLOW_TRY(check_not_recording("record its work"));
  recording = std::make_unique<Recording>();
  recording->stream = stream;
  recording->graph = std::make_unique<Graph>();
  emulator::recorder = &recording->add;
  return {};
}
Result<char*> allocate_while_recording(size_t bytes, void* stream) {
  return allocate(bytes, stream);
}
Result<void*> end_recording(void* stream) {
  if (recording == nullptr || recording->stream != stream)
    return environment_error("the GPU cannot record its work: it does not");
  std::unique_ptr<Recording> ended = std::move(recording);
  emulator::recorder = nullptr;
  if (ended->is_invalid)
    return environment_error(
        "the GPU cannot record its work: operation failed due to a previous error during capture");
  device_control().graphs++;
  return static_cast<void*>(new std::shared_ptr<Graph>(std::move(ended->graph)));
}
Status launch_graph(void* graph, void* stream) {
  FLOW_TRY(check_not_recording("launch a graph", stream));
  device_control().graph_launches++;
  emulator::enqueue(stream_of(stream),
                    [own = *static_cast<std::shared_ptr<Graph>*>(graph)] { repeat(*own); });
  return {};
}
Status free_graph(void* graph) {
  device_control().graphs--;
  delete static_cast<std::shared_ptr<Graph>*>(graph);
  return {};
}
Status last_fault() { return {}; }
bool has_device_failed(void*) { return false; }

}  // namespace flow::cuda

// For a test library that queues work on a stream of its caller.
extern "C" __attribute__((visibility("default"), used)) void flow_emulator_put(void* stream,
                                                                               void (*work)(void*),
                                                                               void* argument) {
  flow::emulator::enqueue(flow::cuda::stream_of(stream), [=] { work(argument); });
}
// For a test library that accesses the memory itself, after all work so far.
extern "C" __attribute__((visibility("default"), used)) void flow_emulator_access(
    void (*work)(void*), void* argument) {
  flow::emulator::wait_for_kernels();
  flow::cuda::Open open;
  work(argument);
}
// Copies as a kernel would; false if the device side is not GPU memory.
extern "C" __attribute__((visibility("default"), used)) bool flow_emulator_copy(void* to,
                                                                                const void* from,
                                                                                size_t bytes,
                                                                                bool to_device) {
  auto* on_device = static_cast<const char*>(to_device ? to : from);
  if (!flow::cuda::memory().holds(on_device, bytes)) return false;
  flow::cuda::Open open;
  std::memcpy(to, from, bytes);
  return true;
}
