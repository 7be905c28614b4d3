// Streams, scratch and the errors of failed calls.
#include "kernels/tensor/runtime.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "kernels/cuda/device.hpp"
#include "kernels/tensor/fusion.hpp"

namespace flow::tensors {
namespace {

// Of all threads: bytes of this process on each GPU, for the message when one is full.
std::atomic<size_t> held_bytes[kDevicesMax];

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

Runtime::~Runtime() {
  if (cpu.scratch.data != nullptr) free_host_memory(cpu.scratch.data, cpu.scratch.bytes);
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
  Stream& stream = cuda_stream(device);
  choose(device);
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
    if (scratch.data != nullptr) release_device_memory(device, scratch.data, scratch.bytes);
    scratch = {};
    scratch.data = static_cast<char*>(allocate_device_memory(device, bytes));
  }
  scratch.bytes = bytes;
}

void fail_call(const Device& device, const char* row, int code) {
  if (code == kernels::kUnsupported)
    throw TensorError(
        fmt::format("{} can't do this `{}`: see the table of operations in the reference",
                    text_of(device), row));
  throw TensorError(fmt::format("`{}` failed on {}: {}", row, text_of(device),
                                kernels_of(device).error_text(code)));
}

void* allocate_device_memory(const Device& device, size_t bytes) {
  Stream& stream = stream_of(device);
  auto index = static_cast<size_t>(device.index);
  Result<char*> taken = cuda::allocate(std::max<size_t>(bytes, 1), stream.native);
  // Lua sees a tensor as a few bytes: garbage may fill the GPU.
  if (!taken.ok() && runtime().budget != nullptr && runtime().budget->collect())
    taken = cuda::allocate(std::max<size_t>(bytes, 1), stream.native);
  if (!taken.ok()) {
    Result<cuda::DeviceInfo> info = cuda::describe(device.index);
    std::string room = "its free memory cannot be read";
    if (info.ok())
      room = fmt::format("{} of its {} bytes are free, this process holds {}", info->memory_free,
                         info->memory_total, held_bytes[index].load());
    throw TensorError(fmt::format("out of memory on {}: {} bytes were requested; {} ({})",
                                  text_of(device), bytes, room, taken.error().message));
  }
  held_bytes[index] += bytes;
  return *taken;
}

size_t device_bytes_held() {
  size_t all = 0;
  for (const auto& each : held_bytes) all += each.load(std::memory_order_relaxed);
  return all;
}

void release_device_memory(const Device& device, void* data, size_t bytes) {
  if (data == nullptr) return;
  held_bytes[static_cast<size_t>(device.index)] -= bytes;
  // An earlier error returns here again, and the next call reports it.
  (void)cuda::release(static_cast<char*>(data), stream_of(device).native);
}

void move_bytes(const Device& from_device, const void* from, const Device& to_device, void* to,
                size_t bytes) {
  if (from_device.kind == Device::symbol || to_device.kind == Device::symbol) reject_symbol();
  if (bytes == 0) return;
  auto* source = static_cast<const char*>(from);
  auto* target = static_cast<char*>(to);
  if (from_device.kind == Device::cpu && to_device.kind == Device::cpu) {
    std::memcpy(to, from, bytes);
  } else if (from_device.kind == Device::cpu) {
    void* stream = stream_of(to_device).native;
    check(to_device, staging_of(to_device).to_device(target, source, bytes, stream));
  } else if (to_device.kind == Device::cpu) {
    finish_calls(from_device, target, source, bytes);
  } else if (from_device == to_device) {
    check(from_device, cuda::copy_on_device(target, source, bytes, stream_of(from_device).native));
  } else {  // through the host, in chunks
    constexpr size_t kPiece = size_t{16} << 20;
    std::vector<char> piece(std::min(bytes, kPiece));
    for (size_t at = 0; at < bytes; at += kPiece) {
      size_t length = std::min(kPiece, bytes - at);
      move_bytes(from_device, source + at, {}, piece.data(), length);
      move_bytes({}, piece.data(), to_device, target + at, length);
    }
  }
}

void wait_for(const Device& device) {
  if (device.kind != Device::cpu) finish_calls(device, nullptr, nullptr, 0);
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
