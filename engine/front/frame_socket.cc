#include "engine/front/frame_socket.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <cerrno>
#include <cstring>
#include <utility>

#include "engine/base/descriptor_message.hpp"
#include "engine/protocol/frames.hpp"

namespace flow {

namespace asio = boost::asio;

namespace {

constexpr size_t kPiecesMax = 64;             // of one call of sendmsg()
constexpr size_t kReadMax = 8 * 1024 * 1024;  // before others have their turn

}  // namespace

FrameSocket::FrameSocket(EventLoop& loop, int socket) : loop_(loop), socket_(loop.context()) {
  boost::system::error_code failed;
  socket_.assign(asio::local::stream_protocol(), socket, failed);
  if (failed) {
    ::close(socket);
    throw boost::system::system_error(failed);
  }
  boost::system::error_code ignored;  // accept4() has set it; Asio only takes note
  socket_.native_non_blocking(true, ignored);
}

void FrameSocket::start(Callbacks callbacks) {
  callbacks_ = std::move(callbacks);
  start_read();
}

// ---- Reading

void FrameSocket::start_read() {
  if (is_closed_) return;
  socket_.async_read_some(
      asio::buffer(in_),
      [self = shared_from_this()](const boost::system::error_code& error, size_t size) {
        if (!self->is_closed_) self->on_read(error, size);
      });
}

void FrameSocket::on_read(const boost::system::error_code& error, size_t size) {
  if (error) return fail(error == asio::error::eof ? "" : error.message());
  if (consume({in_.data(), size}) && read_large()) start_read();
}

/// False if the connection has ended.
bool FrameSocket::consume(std::string_view bytes) {
  while (!bytes.empty() && !is_closed_) {
    if (frame_ == nullptr) {
      size_t taken = std::min(length_.size() - length_filled_, bytes.size());
      std::memcpy(length_.data() + length_filled_, bytes.data(), taken);
      bytes.remove_prefix(taken);
      length_filled_ += taken;
      if (length_filled_ == length_.size() && !begin_frame()) return false;
    } else {
      size_t taken = std::min(frame_size_ - frame_filled_, bytes.size());
      std::memcpy(frame_.get() + frame_filled_, bytes.data(), taken);
      bytes.remove_prefix(taken);
      frame_filled_ += taken;
    }
    if (frame_ != nullptr && frame_filled_ == frame_size_) deliver();
  }
  return !is_closed_;
}

bool FrameSocket::begin_frame() {
  uint32_t size = 0;
  std::memcpy(&size, length_.data(), sizeof size);
  if (size > kFrameMax) {
    fail(fmt::format("it announced a message of {} bytes, and {} are allowed", size, kFrameMax));
    return false;
  }
  // The system gives memory to a large frame only as far as it is filled.
  frame_ = std::make_shared_for_overwrite<char[]>(size);
  frame_size_ = size;
  frame_filled_ = 0;
  return true;
}

void FrameSocket::deliver() {
  std::shared_ptr<char[]> frame = std::exchange(frame_, nullptr);
  length_filled_ = 0;
  std::string_view bytes(frame.get(), frame_size_);
  callbacks_.received(Bytes(bytes, std::move(frame), true));
}

/// Reads the rest of a frame that is larger than the buffer into its place. False if the connection
/// has ended.
bool FrameSocket::read_large() {
  for (size_t total = 0; frame_ != nullptr && total < kReadMax;) {
    size_t missing = frame_size_ - frame_filled_;
    if (missing < in_.size()) return true;
    ssize_t got = ::recv(socket_.native_handle(), frame_.get() + frame_filled_, missing, 0);
    if (got <= 0) return true;  // start_read() finds out what is wrong
    total += static_cast<size_t>(got);
    frame_filled_ += static_cast<size_t>(got);
    if (frame_filled_ < frame_size_) continue;
    deliver();
    if (is_closed_) return false;
  }
  return true;
}

// ---- Writing

void FrameSocket::send(const FramePieces& pieces, int descriptor) {
  if (is_closed_) return;
  std::shared_ptr<const FileDescriptor> attached;
  int copy = descriptor < 0 ? -1 : ::fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
  if (descriptor >= 0 && copy < 0) return;  // the message would mean another one's
  if (copy >= 0) attached = std::make_shared<const FileDescriptor>(copy);
  for (const Bytes& piece : pieces) {
    if (piece->empty()) continue;
    unsent_bytes_ += piece->size();
    outgoing_.push_back({piece, std::exchange(attached, nullptr)});
  }
  if (!is_writing_) flush();
}

void FrameSocket::flush() {
  while (!outgoing_.empty()) {
    if (write_some()) continue;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return wait_writable();
    // The caller of send() may be in the middle of something.
    std::string why = std::strerror(errno);
    loop_.post([self = shared_from_this(), why] { self->fail(why); });
    return;
  }
}

bool FrameSocket::write_some() {
  std::array<iovec, kPiecesMax> parts;
  size_t count = std::min(outgoing_.size(), parts.size());
  for (size_t i = 0; i < count; i++) {
    if (i > 0 && outgoing_[i].descriptor != nullptr) {  // it begins a message of its own
      count = i;
      break;
    }
    std::string_view piece = *outgoing_[i].bytes;
    if (i == 0) piece.remove_prefix(sent_);
    parts[i] = {const_cast<char*>(piece.data()), piece.size()};
  }
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = count;
  DescriptorMessage attached;
  if (outgoing_.front().descriptor != nullptr)
    attached.attach(message, outgoing_.front().descriptor->number);
  ssize_t sent = ::sendmsg(socket_.native_handle(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent < 0) return errno == EINTR;
  outgoing_.front().descriptor.reset();
  unsent_bytes_ -= static_cast<uint64_t>(sent);
  sent_ += static_cast<size_t>(sent);
  while (!outgoing_.empty() && sent_ >= outgoing_.front().bytes->size()) {
    sent_ -= outgoing_.front().bytes->size();
    outgoing_.pop_front();
  }
  return true;
}

void FrameSocket::wait_writable() {
  is_writing_ = true;
  socket_.async_wait(asio::local::stream_protocol::socket::wait_write,
                     [self = shared_from_this()](const boost::system::error_code& error) {
                       self->is_writing_ = false;
                       if (!error && !self->is_closed_) self->flush();
                     });
}

// ---- The end

void FrameSocket::fail(const std::string& why) {
  if (is_closed_) return;
  auto ended = std::move(callbacks_.ended);
  close();
  ended(why);
}

void FrameSocket::close() {
  if (std::exchange(is_closed_, true)) return;
  boost::system::error_code ignored;
  socket_.close(ignored);
  outgoing_.clear();
  frame_.reset();
}

}  // namespace flow
