// Frames between a worker and its executors: a u32 length, little-endian, and a protobuf message.
#pragma once
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>

#include "flow/result.hpp"

namespace flow {

struct Gpu;
namespace wire {
class Gpu;
}

constexpr uint32_t kFrameMax = 256u << 20;  // larger content goes through objects/ files
constexpr int kWireDescriptor = 3;          // an executor's end

// How an executor ends that can do nothing more on its GPU. It has said why as its last line.
constexpr int kLostGpuExit = 70;    // what ran there broke its own context
constexpr int kFailedGpuExit = 71;  // the device failed

// Which GPUs a process sees, as CUDA reads it.
// Which attempt a program belongs to.
constexpr const char* kRunVariable = "FLOW_RUN";
constexpr const char* kTaskVariable = "FLOW_TASK";  // as ctx.task
constexpr const char* kAttemptVariable = "FLOW_ATTEMPT";
constexpr const char* kSlotVariable = "FLOW_SLOT";

constexpr const char* kVisibleVariable = "CUDA_VISIBLE_DEVICES";
constexpr const char* kOrderVariable = "CUDA_DEVICE_ORDER";
constexpr const char* kOrder = "PCI_BUS_ID";

/// Cuts a stream of bytes into frames.
class FrameCutter {
 public:
  void add(std::string_view bytes) { buffer_.append(bytes); }
  /// The next whole frame, or false. Sets `broken` where a length is over the limit.
  bool next(std::string_view& frame, bool& broken);

 private:
  std::string buffer_;
  size_t used_ = 0;
};

/// Appends `message` as one frame.
template <typename Message>
void append_frame(std::string& out, const Message& message) {
  uint32_t size = static_cast<uint32_t>(message.ByteSizeLong());
  out.append(reinterpret_cast<const char*>(&size), sizeof size);
  message.AppendToString(&out);
}

void put_gpu(const Gpu& gpu, wire::Gpu& to);
Gpu get_gpu(const wire::Gpu& from);

/// False when the other side is gone.
bool write_fully(int descriptor, std::string_view bytes);
bool read_fully(int descriptor, char* data, size_t size);

}  // namespace flow
