// Splits streams into frames, and writes frames.
#include "engine/protocol/frames.hpp"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "engine/protocol/executor.pb.h"
#include "flow/gpu.hpp"

namespace flow {

bool FrameCutter::next(std::string_view& frame, bool& broken) {
  uint32_t size = 0;
  broken = false;
  if (buffer_.size() - used_ < sizeof size) {
    buffer_.erase(0, used_);
    used_ = 0;
    return false;
  }
  std::memcpy(&size, buffer_.data() + used_, sizeof size);
  if (size > kFrameMax) {
    broken = true;
    return false;
  }
  if (buffer_.size() - used_ - sizeof size < size) {
    buffer_.erase(0, used_);
    used_ = 0;
    return false;
  }
  frame = std::string_view(buffer_).substr(used_ + sizeof size, size);
  used_ += sizeof size + size;
  return true;
}

bool write_fully(int descriptor, std::string_view bytes) {
  while (!bytes.empty()) {
    ssize_t written = ::write(descriptor, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && errno == EAGAIN) {
      pollfd wait{descriptor, POLLOUT, 0};
      ::poll(&wait, 1, -1);
      continue;
    }
    if (written <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

bool read_fully(int descriptor, char* data, size_t size) {
  while (size > 0) {
    ssize_t got = ::read(descriptor, data, size);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    data += got;
    size -= static_cast<size_t>(got);
  }
  return true;
}

void put_gpu(const Gpu& gpu, wire::Gpu& to) {
  to.set_index(gpu.index);
  to.set_uuid(gpu.uuid);
  to.set_name(gpu.name);
  to.set_pci(gpu.pci);
  to.set_memory_bytes(gpu.memory_bytes);
  to.set_numa(gpu.numa);
  to.set_is_mig(gpu.is_mig);
  to.set_nvlink(static_cast<uint32_t>(gpu.nvlink) + 1);
  to.set_fabric(gpu.fabric);
  to.set_fault(gpu.fault);
  to.set_is_dead(gpu.is_dead);
}

Gpu get_gpu(const wire::Gpu& from) {
  return {from.index(),        from.uuid(),  from.name(),   from.pci(),
          from.memory_bytes(), from.numa(),  from.is_mig(), static_cast<int32_t>(from.nvlink() - 1),
          from.fabric(),       from.fault(), from.is_dead()};
}

}  // namespace flow
