// A peer of a front at its unix socket, which blocks.
#pragma once
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <optional>
#include <string>
#include <thread>

#include "adder.hpp"
#include "engine/base/descriptor_message.hpp"
#include "engine/protocol/frames.hpp"
#include "engine/protocol/front.pb.h"
#include "engine/serve/tensor_frames.hpp"

namespace flow {

/// -1 if nobody listens.
inline int connect_to_front(const std::string& path) {
  int socket = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
  if (::connect(socket, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) return socket;
  ::close(socket);
  return -1;
}

class SocketPeer {
 public:
  /// Waits until the front listens.
  explicit SocketPeer(const std::string& path) {
    while ((socket_ = connect_to_front(path)) < 0) std::this_thread::yield();
  }
  ~SocketPeer() { close(); }
  SocketPeer(const SocketPeer&) = delete;

  bool send_bytes(std::string_view bytes) {
    while (!bytes.empty()) {
      ssize_t sent = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
    return true;
  }
  bool send(const front::ToFront& message) {
    std::string frame;
    append_frame(frame, message);
    return send_bytes(frame);
  }
  bool send(const FramePieces& pieces) {
    bool is_sent = true;
    for (const Bytes& piece : pieces) is_sent = is_sent && send_bytes(*piece);
    return is_sent;
  }
  bool join(const std::string& version = "r1", const std::string& model = "adder",
            bool shares_memory = false) {
    front::ToFront message;
    message.mutable_join()->set_version(version);
    message.mutable_join()->set_replica("adder[0]");
    message.mutable_join()->set_pid(4711);
    message.mutable_join()->set_model(model);
    message.mutable_join()->set_batch_max(4);
    message.mutable_join()->set_shares_memory(shares_memory);
    return send(message);
  }
  /// The next frame; null at the end of the connection.
  Bytes read_frame() {
    uint32_t size = 0;
    if (!read_bytes(reinterpret_cast<char*>(&size), sizeof size)) return nullptr;
    auto frame = std::make_shared<std::string>(size, '\0');
    if (!read_bytes(frame->data(), size)) return nullptr;
    return frame;
  }
  /// The next descriptor that came with a frame, which the caller owns; -1 if there is none.
  int take_descriptor() {
    if (descriptors_.empty()) return -1;
    int descriptor = descriptors_.front();
    descriptors_.pop_front();
    return descriptor;
  }
  /// Without a kind at the end of the connection.
  front::FromFront read() {
    front::FromFront message;
    if (Bytes frame = read_frame(); !(frame == nullptr))
      REQUIRE(message.ParseFromArray(frame->data(), static_cast<int>(frame->size())));
    return message;
  }
  bool is_at_end() { return read_frame() == nullptr; }
  void close() {
    if (socket_ >= 0) ::close(socket_);
    socket_ = -1;
    for (int descriptor : std::exchange(descriptors_, {})) ::close(descriptor);
  }
  /// Lets a thread that reads see the end.
  void shut_down() { ::shutdown(socket_, SHUT_RDWR); }

 private:
  bool read_bytes(char* data, size_t size) {
    while (size > 0) {
      iovec part{data, size};
      msghdr message{};
      message.msg_iov = &part;
      message.msg_iovlen = 1;
      DescriptorMessage attached;
      attached.prepare(message);
      ssize_t got = ::recvmsg(socket_, &message, MSG_CMSG_CLOEXEC);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) return false;
      attached.take(message, descriptors_);
      data += got;
      size -= static_cast<size_t>(got);
    }
    return true;
  }

  int socket_ = -1;
  std::deque<int> descriptors_;
};

}  // namespace flow
