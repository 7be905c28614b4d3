// The listening socket of an HTTP server.
#pragma once
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <chrono>
#include <functional>
#include <optional>

#include "engine/serve/http/http_options.hpp"
#include "flow/result.hpp"

namespace flow {

/// Accepts connections and hands them over. If there is no place for one, the listener keeps it,
/// parked, and accepts no others meanwhile. Only the thread of the context uses it.
class HttpListener {
 public:
  using Clock = std::chrono::steady_clock;
  /// Takes ownership of the socket. Returns false, without it, if all places are taken.
  using Adopt = std::function<bool(int socket)>;

  HttpListener(boost::asio::io_context& context, Adopt adopt);
  ~HttpListener();

  Status listen(const HttpOptions& options);
  uint16_t port() const { return port_; }
  boost::asio::ip::tcp protocol() const { return protocol_; }
  bool is_open() const { return acceptor_.is_open(); }

  /// Begins or continues accepting, after a pause for want of a file descriptor or a place.
  void resume();
  /// When the parked connection was accepted; nothing if none is parked.
  std::optional<Clock::time_point> parked_since() const;
  /// Offers the parked connection again. True if none is parked any more.
  bool retry_parked();
  /// Closes the parked connection after `text` is sent.
  void refuse_parked(std::string_view text);

  /// From now on the system ignores new connections. Those that it has accepted are still taken.
  void begin_drain();
  /// Closes the listener if the system holds no connection for it: closing would reset them.
  void close_if_empty();
  void close();

 private:
  bool accept_some();

  const Adopt adopt_;
  boost::asio::ip::tcp protocol_ = boost::asio::ip::tcp::v4();
  boost::asio::ip::tcp::acceptor acceptor_;
  uint16_t port_ = 0;
  int parked_ = -1;
  Clock::time_point parked_since_;
  bool is_waiting_ = false, is_backlog_empty_ = false;
};

/// Raises the limit of open files as far as it is permitted. Returns how many of `wanted`
/// connections fit.
size_t connections_permitted(size_t wanted);

}  // namespace flow
