// File descriptors that go with the bytes of a unix socket (SCM_RIGHTS).
#pragma once
#include <sys/socket.h>

#include <cstddef>
#include <cstring>
#include <deque>

namespace flow {

/// The control data of one call of sendmsg() or recvmsg(), which it must outlive.
class DescriptorMessage {
 public:
  /// Sends the descriptor with the first byte of the message.
  void attach(msghdr& message, int descriptor) {
    prepare(message, CMSG_SPACE(sizeof descriptor));
    cmsghdr* head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof descriptor);
    std::memcpy(CMSG_DATA(head), &descriptor, sizeof descriptor);
  }
  /// Has recvmsg() take descriptors; the system closes those for which there is no space.
  void prepare(msghdr& message) { prepare(message, sizeof space_); }
  /// After recvmsg(): appends the descriptors that came, which the caller owns.
  static void take(msghdr& message, std::deque<int>& descriptors) {
    for (cmsghdr* head = CMSG_FIRSTHDR(&message); head != nullptr;
         head = CMSG_NXTHDR(&message, head)) {
      if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS) continue;
      size_t count = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      for (size_t i = 0; i < count; i++) {
        int descriptor = -1;
        std::memcpy(&descriptor, CMSG_DATA(head) + i * sizeof descriptor, sizeof descriptor);
        descriptors.push_back(descriptor);
      }
    }
  }

 private:
  static constexpr size_t kDescriptorsMax = 4;

  void prepare(msghdr& message, size_t size) {
    message.msg_control = space_;
    message.msg_controllen = size;
  }

  alignas(cmsghdr) char space_[CMSG_SPACE(sizeof(int) * kDescriptorsMax)] = {};
};

}  // namespace flow
