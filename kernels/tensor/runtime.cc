// Streams, scratch and the words of a failed call.
#include "kernels/tensor/runtime.hpp"

#include <fmt/format.h>

#include <cstring>

namespace flow::tensors {
namespace {

[[noreturn]] void no_gpu(const Device& device) {
  throw Failure(fmt::format("{} can't be used: this flow has no GPU here", text_of(device)));
}

}  // namespace

Runtime& runtime() {
  thread_local Runtime own;
  return own;
}

const Kernels& kernels_of(const Device& device) {
  if (device.kind == Device::cpu) return kernels::cpu_kernels();
  const Kernels* table = kernels::cuda_kernels();
  if (table == nullptr) no_gpu(device);
  return *table;
}

Stream& stream_of(const Device& device) {
  Runtime& own = runtime();
  if (device.kind == Device::cpu) {
    own.cpu.threads = own.threads;
    return own.cpu;
  }
  if (static_cast<size_t>(device.index) >= own.cuda.size()) no_gpu(device);
  return own.cuda[static_cast<size_t>(device.index)];
}

void grow_scratch(const Device& device) {
  kernels::Scratch& scratch = stream_of(device).scratch;
  size_t bytes = scratch.needed + scratch.needed / 4;  // some calls later it would grow again
  if (device.kind == Device::cpu) {
    give_host_memory(scratch.data, scratch.bytes);
    scratch = {};
    scratch.data = static_cast<char*>(take_host_memory(bytes));
    if (scratch.data == nullptr)
      throw Failure(
          fmt::format("out of memory: an operation needs {} bytes beside its operands", bytes));
  } else {
    if (scratch.data != nullptr) give_device_memory(device, scratch.data, scratch.bytes);
    scratch = {};
    scratch.data = static_cast<char*>(take_device_memory(device, bytes));
  }
  scratch.bytes = bytes;
}

void fail_call(const Device& device, const char* row, int code) {
  if (code == kernels::kUnsupported)
    throw Failure(fmt::format("{} can't do this `{}`: see the table of operations in the reference",
                              text_of(device), row));
  throw Failure(fmt::format("`{}` failed on {}: {}", row, text_of(device),
                            kernels_of(device).error_text(code)));
}

void* take_device_memory(const Device& device, size_t) { no_gpu(device); }
void give_device_memory(const Device&, void*, size_t) {}

void move_bytes(const Device& from_device, const void* from, const Device& to_device, void* to,
                size_t bytes) {
  if (from_device.kind != Device::cpu) no_gpu(from_device);
  if (to_device.kind != Device::cpu) no_gpu(to_device);
  if (bytes > 0) std::memcpy(to, from, bytes);
}

void wait_for(const Device& device) {
  if (device.kind != Device::cpu) no_gpu(device);
}

}  // namespace flow::tensors
