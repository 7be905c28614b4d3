// A connection of a front to one of its peers: frames with a length prefix on a unix socket.
#pragma once
#include <array>
#include <boost/asio/local/stream_protocol.hpp>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "engine/base/file_descriptor.hpp"
#include "engine/serve/http/event_loop.hpp"
#include "engine/serve/tensor_frames.hpp"
#include "flow/bytes.hpp"

namespace flow {

/// Only the loop's thread uses it.
class FrameSocket : public std::enable_shared_from_this<FrameSocket> {
 public:
  struct Callbacks {
    /// A frame without its length.
    std::function<void(const Bytes& frame)> received;
    /// The connection has ended: the peer closed it, or something failed. It is never called by
    /// send(), nor after close().
    std::function<void(const std::string& why)> ended;
  };

  /// Owns the socket, which does not block.
  FrameSocket(EventLoop& loop, int socket);

  void start(Callbacks callbacks);
  /// Sends as much as the socket takes at once, and the rest later. A copy of `descriptor` goes
  /// with the first byte of the frame, unless the process has too many.
  void send(const FramePieces& pieces, int descriptor = -1);
  uint64_t unsent_bytes() const { return unsent_bytes_; }
  void close();

 private:
  static constexpr size_t kReadBytes = 16 * 1024;

  struct Outgoing {
    Bytes bytes;
    std::shared_ptr<const FileDescriptor> descriptor = {};  // that goes with the first byte
  };

  void start_read();
  void on_read(const boost::system::error_code& error, size_t size);
  bool consume(std::string_view bytes);
  bool begin_frame();
  void deliver();
  bool read_large();
  void flush();
  bool write_some();
  void wait_writable();
  void fail(const std::string& why);

  EventLoop& loop_;
  boost::asio::local::stream_protocol::socket socket_;
  Callbacks callbacks_;
  std::array<char, kReadBytes> in_;
  std::array<char, sizeof(uint32_t)> length_;  // of the frame that arrives
  size_t length_filled_ = 0;
  std::shared_ptr<char[]> frame_;  // null until its length is there
  size_t frame_size_ = 0, frame_filled_ = 0;
  std::deque<Outgoing> outgoing_;  // the peer bounds it
  size_t sent_ = 0;                // of the first piece
  uint64_t unsent_bytes_ = 0;
  bool is_writing_ = false, is_closed_ = false;
};

}  // namespace flow
