// Frames between a worker and its executors: a u32 length, little-endian, followed by a protobuf
// message.
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

constexpr uint32_t kFrameMax = 256u << 20;  // larger data goes through files under objects/
constexpr int kWireDescriptor = 3;          // of an executor

// Exit codes of an executor whose GPU context is unusable. Its last line gives the reason.
constexpr int kLostGpuExit = 70;    // the attempt broke its own context
constexpr int kFailedGpuExit = 71;  // the device failed

// The GPUs that a process sees, as CUDA reads it.
// The attempt that a program belongs to.
constexpr const char* kRunVariable = "FLOW_RUN";
constexpr const char* kTaskVariable = "FLOW_TASK";  // as ctx.task
constexpr const char* kAttemptVariable = "FLOW_ATTEMPT";
constexpr const char* kSlotVariable = "FLOW_SLOT";
constexpr const char* kTraceVariable = "TRACEPARENT";  // of OpenTelemetry

constexpr const char* kVisibleVariable = "CUDA_VISIBLE_DEVICES";
constexpr const char* kOrderVariable = "CUDA_DEVICE_ORDER";
constexpr const char* kOrder = "PCI_BUS_ID";

/// Splits a stream of bytes into frames.
class FrameCutter {
 public:
  void add(std::string_view bytes) { buffer_.append(bytes); }
  /// The next complete frame, or false. Sets `broken` if a length exceeds the limit.
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

/// Returns false if the peer has closed the connection.
bool write_fully(int descriptor, std::string_view bytes);
bool read_fully(int descriptor, char* data, size_t size);

}  // namespace flow
