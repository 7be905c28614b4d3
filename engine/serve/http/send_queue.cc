#include "engine/serve/http/send_queue.hpp"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

namespace flow {

void SendQueue::push(std::string bytes) {
  if (bytes.empty()) return;
  bytes_ += bytes.size();
  parts_.push_back({.text = std::move(bytes), .bytes = {}});
}

void SendQueue::push(Bytes bytes) {
  if (bytes->empty()) return;
  bytes_ += bytes->size();
  parts_.push_back({.text = {}, .bytes = std::move(bytes)});
}

SendQueue::Outcome SendQueue::send(int socket) {
  while (!parts_.empty()) {
    std::array<iovec, 4> parts;
    size_t count = std::min(parts_.size(), parts.size());
    for (size_t i = 0; i < count; i++) {
      std::string_view part = parts_[i].view();
      if (i == 0) part.remove_prefix(sent_);
      parts[i] = {const_cast<char*>(part.data()), part.size()};
    }
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = count;
    ssize_t sent = ::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) {
      remove(static_cast<size_t>(sent));
    } else if (errno != EINTR) {
      return errno == EAGAIN || errno == EWOULDBLOCK ? Outcome::blocked : Outcome::failed;
    }
  }
  return Outcome::all_sent;
}

void SendQueue::remove(size_t size) {
  bytes_ -= size;
  sent_ += size;
  while (!parts_.empty() && sent_ >= parts_.front().view().size()) {
    sent_ -= parts_.front().view().size();
    parts_.pop_front();
  }
}

}  // namespace flow
