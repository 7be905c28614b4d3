// An HTTP/1.1 server, with or without TLS. One thread accepts, reads and writes all connections and
// enforces their limits; a handler answers the requests, at once or later.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/serve/http/http_options.hpp"
#include "engine/serve/http/http_response.hpp"
#include "flow/result.hpp"

namespace boost::asio {
class io_context;
}

namespace flow {

class EventLoop;
class HttpConnection;
class HttpServerImpl;

/// Answers one request, once, on any thread, at once or in parts; a default one answers none. If it
/// is destroyed without an answer, the client gets status 500; if without the end of one, as after
/// abort(). It may outlive its server; then it does nothing. One thread at a time uses it.
class HttpReply {
 public:
  HttpReply() = default;
  HttpReply(std::shared_ptr<HttpServerImpl> server, std::shared_ptr<HttpConnection> connection);
  HttpReply(HttpReply&&) noexcept = default;
  HttpReply& operator=(HttpReply&& other) noexcept;
  ~HttpReply();

  void send(HttpResponse response);

  /// Sends the head, and then the body in parts. Without a length it is chunked; a client of
  /// HTTP/1.0 sees its end by that of the connection. A response to HEAD and those with status 204
  /// and 304 have no body: what is written of one is dropped.
  void begin(HttpStreamHead head);
  /// Sends a part at once; all parts together have the length at most. False: the client is gone,
  /// or it has much to read, and the writer should wait for on_writable. A writer on another thread
  /// may see that call before the return.
  bool write(std::string bytes);
  /// If parts of the length are missing, the same as abort().
  void end();
  /// Closes the connection after what was written, without the end marker of the body.
  void abort();

  /// Until the response has ended, `on_writable` is called after a write that returned false, when
  /// the client has read most of it, and `on_left` once if the client leaves; nothing is called
  /// after that. Both on the server's thread, not within a call of this class on that thread.
  void watch(std::function<void()> on_writable, std::function<void()> on_left);
  /// Whether the client is gone, so that nothing reads the answer.
  bool is_abandoned() const;

 private:
  std::shared_ptr<HttpServerImpl> server_;
  std::shared_ptr<HttpConnection> connection_;
  bool is_streaming_ = false;
};

class HttpServer {
 public:
  /// Called on the server's thread; it must not block.
  using Handler = std::function<void(HttpRequest request, HttpReply reply)>;

  /// Listens. The Error says what to do if the port is in use or not permitted, or which file of
  /// TLS cannot be used.
  static Result<std::unique_ptr<HttpServer>> open(const HttpOptions& options, Handler handler);
  /// The same on the thread of `loop`, which outlives it. The server must be destroyed by another
  /// thread.
  static Result<std::unique_ptr<HttpServer>> open(const HttpOptions& options, Handler handler,
                                                  EventLoop& loop);
  /// Closes all connections. Responses that are not sent yet are lost: drain() first.
  ~HttpServer();

  uint16_t port() const;
  size_t connections() const;
  /// What runs the server's thread. Valid as long as the server.
  boost::asio::io_context& context() const;
  /// Connections that wait in the kernel's backlog are still served, then none is accepted. Each
  /// response has `Connection: close`; an idle connection is closed after a time of silence.
  /// `drained` is called on the server's thread when all are closed.
  void begin_drain(std::function<void()> drained = {});
  /// Waits until all connections are closed; false at the deadline.
  bool wait_drained(int64_t timeout_ms);
  /// Replaces the names of HttpRules::hosts. On the server's thread.
  void set_hosts(std::vector<std::string> hosts);

 private:
  static Result<std::unique_ptr<HttpServer>> open(std::shared_ptr<HttpServerImpl> impl);
  explicit HttpServer(std::shared_ptr<HttpServerImpl> impl);
  std::shared_ptr<HttpServerImpl> impl_;
};

}  // namespace flow
