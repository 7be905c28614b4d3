// Streams, scratch and the errors of failed calls.
#include "kernels/tensor/runtime.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "kernels/cuda/device.hpp"
#include "kernels/tensor/capture.hpp"
#include "kernels/tensor/fusion.hpp"

namespace flow::tensors {
namespace {

// Of all threads: bytes of this process on each GPU, for the message when one is full.
std::atomic<size_t> held_bytes[kDevicesMax];

// The streams of all threads that have not ended.
class LiveStreams {
 public:
  void add(void* stream) {
    std::lock_guard lock(mutex_);
    streams_.insert(stream);
  }
  void remove(void* stream) {
    std::lock_guard lock(mutex_);
    streams_.erase(stream);
  }
  /// Releases in the stream's order if it is alive, which it stays meanwhile.
  bool release(char* data, void* stream) {
    std::lock_guard lock(mutex_);
    if (!streams_.contains(stream)) return false;
    auto recording = released_.find(stream);
    if (recording != released_.end())
      recording->second.push_back(data);
    else
      (void)cuda::release(data, stream);
    return true;
  }
  Status begin_recording(void* stream) {
    std::lock_guard lock(mutex_);
    FLOW_TRY(cuda::begin_recording(stream));
    released_[stream];
    return {};
  }
  Result<void*> end_recording(void* stream) {
    std::lock_guard lock(mutex_);
    Result<void*> graph = cuda::end_recording(stream);
    for (char* data : released_[stream]) (void)cuda::release(data, stream);
    released_.erase(stream);
    return graph;
  }

 private:
  std::mutex mutex_;
  std::set<void*> streams_;
  std::map<void*, std::vector<char*>> released_;  // by stream that records
};

LiveStreams& live_streams() {
  static auto* made = new LiveStreams;  // tensors may be dropped after static objects
  return *made;
}

[[noreturn]] void no_gpu(const Device& device, const std::string& why) {
  throw TensorError(fmt::format("{} can't be used: {}", text_of(device), why));
}

void check(const Device& device, const Status& status) {
  if (!status.ok())
    throw TensorError(fmt::format("{} failed: {}", text_of(device), status.error().message));
}

template <typename T>
T checked(const Device& device, Result<T> result) {
  if (!result.ok())
    throw TensorError(fmt::format("{} failed: {}", text_of(device), result.error().message));
  return std::move(result).value();
}

// CUDA's calls use the GPU that the thread selected last.
void choose(const Device& device) {
  int& chosen = runtime().chosen;
  if (chosen == device.index) return;
  check(device, cuda::set_device(device.index));
  chosen = device.index;
}

void check_there(const Device& device) {
  if (kernels::cuda_kernels() == nullptr) no_gpu(device, "this flow was built without CUDA");
  Result<int> count = cuda::device_count();
  if (!count.ok()) no_gpu(device, count.error().message);
  if (*count == 0) no_gpu(device, "there is no GPU here, or no driver for it");
  if (device.index >= *count || device.index >= kDevicesMax)
    no_gpu(device, fmt::format("there are {} GPUs here, the first is cuda:0", *count));
}

// The thread's stream on that GPU, created at its first use.
Stream& cuda_stream(const Device& device) {
  Runtime& own = runtime();
  auto index = static_cast<size_t>(device.index);
  if (index < own.cuda.size() && own.cuda[index].native != nullptr) return own.cuda[index];
  check_there(device);
  choose(device);
  if (own.cuda.size() <= index) own.cuda.resize(index + 1);
  Stream& made = own.cuda[index];
  made.native = checked(device, cuda::new_stream());
  live_streams().add(made.native);
  made.fault =
      reinterpret_cast<int64_t*>(checked(device, cuda::allocate(sizeof(int64_t), made.native)));
  check(device,
        cuda::set_bytes(reinterpret_cast<char*>(made.fault), 0, sizeof(int64_t), made.native));
  return made;
}

Staging& staging_of(const Device& device) {
  auto& all = runtime().staging;
  auto index = static_cast<size_t>(device.index);
  if (all.size() <= index) all.resize(index + 1);
  if (all[index] == nullptr) all[index] = std::make_unique<Staging>();
  return *all[index];
}

// Copies to the host and waits for all earlier calls; throws if one of them set a fault.
void finish_calls(const Device& device, char* to, const char* from, size_t bytes) {
  Stream& stream = stream_of(device);
  int64_t fault =
      checked(device, staging_of(device).to_host(to, from, bytes, stream.fault, stream.native));
  if (runtime().failure_check)
    if (Status failed = runtime().failure_check(); !failed.ok())
      throw TensorError(failed.error().message);
  if (fault == 0) return;
  check(device,
        cuda::set_bytes(reinterpret_cast<char*>(stream.fault), 0, sizeof fault, stream.native));
  throw TensorError(
      fmt::format("an index was outside its tensor on {}: element {} of the index of an "
                  "operation since the last wait",
                  text_of(device), fault));
}

}  // namespace

void (*check_operand)(const char* row, const View& operand) = nullptr;

// No wait: a hanging GPU must not keep the process. The stream ends when its work is done.
Runtime::~Runtime() {
  if (cpu.scratch.data != nullptr) free_host_memory(cpu.scratch.data, cpu.scratch.bytes);
  staging.clear();
  for (size_t index = 0; index < cuda.size(); index++) {
    Stream& stream = cuda[index];
    if (stream.native == nullptr || !cuda::set_device(static_cast<int>(index)).ok()) continue;
    live_streams().remove(stream.native);
    if (stream.scratch.data != nullptr) {
      held_bytes[index] -= stream.scratch.bytes;
      (void)cuda::release(stream.scratch.data, stream.native);
    }
    if (stream.fault != nullptr)
      (void)cuda::release(reinterpret_cast<char*>(stream.fault), stream.native);
    (void)cuda::free_stream(stream.native);
  }
  cuda.clear();
}

Runtime& runtime() {
  thread_local Runtime own;
  return own;
}

const Kernels& kernels_of(const Device& device) {
  if (device.kind == Device::cpu) return kernels::cpu_kernels();
  if (device.kind == Device::symbol) reject_symbol();
  const Kernels* table = kernels::cuda_kernels();
  if (table == nullptr) check_there(device);
  return *table;
}

Stream& stream_of(const Device& device) {
  if (device.kind == Device::cpu) {
    Runtime& own = runtime();
    own.cpu.threads = own.threads;
    return own.cpu;
  }
  if (device.kind == Device::symbol) reject_symbol();
  if (const Capture* capture = runtime().capture; capture && !(capture->device() == device))
    throw CaptureError(
        fmt::format("flow.graph cannot record an operation on {}: its graph is on {}",
                    text_of(device), text_of(capture->device())));
  Stream& stream = cuda_stream(device);
  choose(device);
  runtime().used_gpus |= uint64_t{1} << device.index;
  stream.precision = runtime().precision;
  return stream;
}

void grow_scratch(const Device& device) {
  kernels::Scratch& scratch = stream_of(device).scratch;
  size_t bytes =
      scratch.needed + scratch.needed / 4;  // rounded up, so that it does not grow again soon
  if (device.kind == Device::cpu) {
    free_host_memory(scratch.data, scratch.bytes);
    scratch = {};
    scratch.data = static_cast<char*>(allocate_host_memory(bytes));
    if (scratch.data == nullptr)
      throw TensorError(fmt::format(
          "out of memory: an operation needs {} bytes in addition to its operands", bytes));
  } else {
    if (scratch.data != nullptr)
      release_device_memory(device, stream_of(device).native, scratch.data, scratch.bytes);
    scratch = {};
    scratch.data = static_cast<char*>(allocate_device_memory(device, bytes));
  }
  scratch.bytes = bytes;
  if (device.kind == Device::cuda) choose(device);  // a collection may have chosen another GPU
}

void fail_call(const Device& device, const char* row, int code) {
  if (code == kernels::kUnsupported)
    throw TensorError(
        fmt::format("{} can't do this `{}`: see the table of operations in the reference",
                    text_of(device), row));
  throw TensorError(fmt::format("`{}` failed on {}: {}", row, text_of(device),
                                kernels_of(device).error_text(code)));
}

namespace {

// Where the memory of a full GPU is. The parts add up to the whole.
std::string memory_text(const Device& device) {
  Result<cuda::DeviceInfo> info = cuda::describe(device.index);
  Result<cuda::PoolUse> pool = cuda::pool_use(device.index);
  if (!info.ok() || !pool.ok()) return "how its memory is used cannot be read";
  size_t held = held_bytes[static_cast<size_t>(device.index)].load();
  size_t reserved = std::max(pool->reserved, held);
  size_t known = reserved + info->memory_free;
  return fmt::format(
      "of its {} bytes, this process's tensors hold {}, its memory pool caches {}, other "
      "processes and libraries hold {}, and {} are free",
      info->memory_total, held, reserved - held,
      info->memory_total > known ? info->memory_total - known : 0, info->memory_free);
}

// Lua sees a tensor as a few bytes, so garbage may fill the GPU; and what the pool caches may be in
// pieces that are too small.
bool free_memory(const Device& device, Stream& stream) {
  bool has_collected = runtime().budget != nullptr && runtime().budget->collect();
  bool has_trimmed = cuda::wait_for(stream.native).ok() && cuda::trim_pool(device.index).ok();
  return has_collected || has_trimmed;
}

}  // namespace

Result<char*> allocate_on_stream(const Device& device, size_t bytes, void* stream) {
  size_t size = std::max<size_t>(bytes, 1);
  Result<char*> taken = runtime().capture == nullptr ? cuda::allocate(size, stream)
                                                     : cuda::allocate_while_recording(size, stream);
  if (taken.ok()) held_bytes[static_cast<size_t>(device.index)] += bytes;
  return taken;
}

void throw_out_of_memory(const Device& device, size_t bytes, const std::string& why) {
  throw TensorError(fmt::format("out of memory on {}: {} bytes were requested; {} ({})",
                                text_of(device), bytes, memory_text(device), why));
}

void* allocate_device_memory(const Device& device, size_t bytes) {
  if (runtime().capture != nullptr) return runtime().capture->memory()->take(bytes);
  Stream& stream = stream_of(device);
  Result<char*> taken = allocate_on_stream(device, bytes, stream.native);
  if (!taken.ok() && free_memory(device, stream))
    taken = allocate_on_stream(device, bytes, stream.native);
  if (!taken.ok()) throw_out_of_memory(device, bytes, taken.error().message);
  return *taken;
}

Status begin_recording(const Device& device) {
  Stream& stream = stream_of(device);
  (void)free_memory(device, stream);
  return live_streams().begin_recording(stream_of(device).native);
}
Result<void*> end_recording(const Device& device) {
  return live_streams().end_recording(recorded_stream(device).native);
}
Stream& recorded_stream(const Device& device) {
  return runtime().cuda[static_cast<size_t>(device.index)];
}

size_t device_bytes_held() {
  size_t all = 0;
  for (const auto& each : held_bytes) all += each.load(std::memory_order_relaxed);
  return all;
}

// An earlier error returns here again, and the next call reports it.
void release_device_memory(const Device& device, void* stream, void* data, size_t bytes) noexcept {
  if (data == nullptr) return;
  if (Capture* capture = runtime().capture; capture && capture->memory()->holds(data))
    return capture->memory()->give(static_cast<char*>(data));
  auto index = static_cast<size_t>(device.index);
  held_bytes[index] -= bytes;
  Runtime& own = runtime();
  if (own.chosen != device.index && cuda::set_device(device.index).ok()) own.chosen = device.index;
  bool is_own = index < own.cuda.size() && own.cuda[index].native == stream;
  if (is_own && own.capture == nullptr)
    (void)cuda::release(static_cast<char*>(data), stream);
  else if (!live_streams().release(static_cast<char*>(data), stream))
    (void)cuda::release_idle(static_cast<char*>(data));
}

void prepare_device(const Device& device) {
  (void)stream_of(device);
  check(device, staging_of(device).reserve());
  cuda::load_product_library();
}

void release_cached_memory(bool is_shared) {
  Runtime& own = runtime();
  for (size_t index = 0; index < own.cuda.size(); index++) {
    Stream& stream = own.cuda[index];
    if (stream.native == nullptr) continue;
    Device device{Device::cuda, static_cast<int>(index)};
    if (stream.scratch.bytes > kScratchKept) {
      release_device_memory(device, stream.native, stream.scratch.data, stream.scratch.bytes);
      stream.scratch = {};
    }
    // A GPU with an error returns it again, where it is reported.
    if (is_shared && cuda::set_device(device.index).ok()) {
      own.chosen = device.index;
      if (cuda::wait_for(stream.native).ok()) (void)cuda::trim_pool(device.index);
    }
  }
}

// Later work on `device` runs after the work so far on `other`.
static void follow_stream(const Device& device, const Device& other) {
  void* stream = stream_of(device).native;
  void* followed = stream_of(other).native;  // and chooses the GPU that the event is of
  void* event = checked(other, cuda::new_event());
  Status status = cuda::record_event(event, followed);
  if (status.ok()) status = cuda::follow_event(event, stream);
  (void)cuda::free_event(event);  // once it is reached
  check(other, status);
}

static std::string unrecorded_copy(const Device& from, const Device& to) {
  if (from.kind == Device::cpu)
    return "flow.graph cannot record a copy from the host: make the tensor before the call, and "
           "pass it as an argument if it differs between calls";
  if (to.kind == Device::cpu)
    return "flow.graph cannot record a wait for the GPU's result: return the tensor from the "
           "function, and read it after the call";
  return fmt::format(
      "flow.graph cannot record a copy from {} to {}: make it before the call, and pass it as an "
      "argument",
      text_of(from), text_of(to));
}

void move_bytes(const Device& from_device, const void* from, const Device& to_device, void* to,
                size_t bytes) {
  if (from_device.kind == Device::symbol || to_device.kind == Device::symbol) reject_symbol();
  if (bytes == 0) return;
  Capture* capture = runtime().capture;
  auto* source = static_cast<const char*>(from);
  auto* target = static_cast<char*>(to);
  if (from_device.kind == Device::cpu && to_device.kind == Device::cpu) {
    std::memcpy(to, from, bytes);
  } else if (capture != nullptr && from_device.kind == Device::cpu &&
             runtime().copies_are_constant) {
    capture->add_constant(target, source, bytes);
  } else if (capture != nullptr && !(from_device == to_device)) {
    throw CaptureError(unrecorded_copy(from_device, to_device));
  } else if (from_device.kind == Device::cpu) {
    void* stream = stream_of(to_device).native;
    check(to_device, staging_of(to_device).to_device(target, source, bytes, stream));
  } else if (to_device.kind == Device::cpu) {
    finish_calls(from_device, target, source, bytes);
  } else if (from_device == to_device) {
    if (capture != nullptr) {
      capture->use(source);
      capture->use(target);
    }
    check(from_device, cuda::copy_on_device(target, source, bytes, stream_of(from_device).native));
  } else {
    follow_stream(to_device, from_device);
    check(to_device, cuda::copy_between_devices(target, to_device.index, source, from_device.index,
                                                bytes, stream_of(to_device).native));
    follow_stream(from_device, to_device);  // which may change or free the source
  }
}

void wait_for(const Device& device) {
  if (device.kind == Device::cpu) return;
  check_not_captured("a wait for the GPU");
  finish_calls(device, nullptr, nullptr, 0);
}

GpuFault unseen_fault() {
  GpuFault fault;
  for (size_t index = 0; index < runtime().cuda.size(); index++) {
    void* stream = runtime().cuda[index].native;
    if (stream == nullptr) continue;
    try {
      wait_for({Device::cuda, static_cast<int>(index)});
    } catch (const TensorError& failure) {
      if (fault.words.empty()) fault.words = failure.what();
    }
    fault.is_lost = fault.is_lost || !cuda::wait_for(stream).ok();
    fault.is_device = fault.is_device || cuda::has_device_failed(stream);
  }
  return fault;
}

}  // namespace flow::tensors
