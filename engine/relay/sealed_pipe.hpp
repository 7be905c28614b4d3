// Carries the bytes of a local connection to another machine and back, through a StreamSession over
// TCP.
#pragma once
#include <array>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "engine/relay/stream_session.hpp"
#include "engine/serve/http/event_loop.hpp"

namespace flow {

/// Only the loop's thread uses it.
class SealedPipe : public std::enable_shared_from_this<SealedPipe> {
 public:
  struct Callbacks {
    /// The peer has proven that it holds the secret. It may call attach(), tell() and close().
    std::function<void()> opened{};
    std::function<void(const std::string& note)> noted{};
    /// Called once, at the end, and not after close(). `why` is shown to users.
    std::function<void(cluster::EndKind kind, const std::string& why)> ended{};
  };

  /// Takes over a TCP connection that is established.
  SealedPipe(EventLoop& loop, boost::asio::ip::tcp::socket socket,
             const cluster::SessionOptions& options);
  void start(Callbacks callbacks);

  /// Owns the local stream socket from now on, which does not block. Its end ends the pipe, and the
  /// end of the pipe closes it after what has arrived for it was written.
  void attach(int local);
  /// A short message to the other end, as StreamSession::tell. Without effect unless it is open.
  void tell(std::string_view note);
  /// Ends the pipe and closes both connections; the other end gets `why`, if it still reads.
  void close(std::string_view why);

  bool is_open() const { return session_.is_open(); }
  /// Valid once it was open.
  const cluster::SessionPeer& peer() const { return session_.peer(); }

 private:
  void wait_tick();
  void read_socket();
  void read_local();
  void write_local();
  void flush();
  void update();
  void end();
  void close_socket();
  void close_local();

  boost::asio::ip::tcp::socket socket_;
  boost::asio::generic::stream_protocol::socket local_;
  boost::asio::steady_timer ticks_;
  cluster::StreamSession session_;
  const std::chrono::milliseconds tick_;
  Callbacks callbacks_;
  std::array<char, cluster::kStreamChunkMax> from_socket_, from_local_, to_local_;
  std::string out_;  // bytes that are being sent
  int ticks_since_end_ = 0;
  bool was_opened_ = false, has_ended_ = false;
  bool is_reading_local_ = false, is_writing_local_ = false, is_writing_ = false;
};

}  // namespace flow
