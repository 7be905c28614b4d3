// Frames between client and server, as processes of any version send them.
#pragma once
#include <sys/socket.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "flow/flow.hpp"

namespace flow::test {

/// Sends `bytes` as one frame. The peer may have disconnected.
inline void send_raw(int descriptor, std::string_view bytes) {
  uint32_t size = static_cast<uint32_t>(bytes.size());
  std::string frame(reinterpret_cast<const char*>(&size), sizeof size);
  frame += bytes;
  (void)!::send(descriptor, frame.data(), frame.size(), MSG_NOSIGNAL);
}

/// The bytes of the next frame; "" if the peer has disconnected.
inline std::string receive_raw(int descriptor) {
  uint32_t size = 0;
  if (::recv(descriptor, &size, sizeof size, MSG_WAITALL) != sizeof size) return "";
  std::string bytes(size, '\0');
  if (::recv(descriptor, bytes.data(), size, MSG_WAITALL) != static_cast<ssize_t>(size)) return "";
  return bytes;
}

/// The error text for a peer of version 1.
inline std::string version_1_error() {
  return std::string("the process at the other end uses version 1 of the client protocol, and ") +
         "this one uses version 2 (flow " + version() + "): use the same build of flow for both";
}

}  // namespace flow::test
