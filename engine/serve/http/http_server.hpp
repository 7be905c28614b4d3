// An HTTP/1.1 server, with or without TLS. One thread accepts, reads and writes all connections and
// enforces their limits; a handler answers the requests, at once or later.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>

#include "engine/serve/http/http_options.hpp"
#include "engine/serve/http/http_response.hpp"
#include "flow/result.hpp"

namespace flow {

class HttpConnection;
class HttpServerImpl;

/// Answers one request, once, on any thread; a default one answers none. If it is destroyed without
/// an answer, the client gets status 500. It may outlive its server; then it does nothing.
class HttpReply {
 public:
  HttpReply() = default;
  HttpReply(std::shared_ptr<HttpServerImpl> server, std::shared_ptr<HttpConnection> connection);
  HttpReply(HttpReply&&) noexcept = default;
  HttpReply& operator=(HttpReply&& other) noexcept;
  ~HttpReply();

  void send(HttpResponse response);
  /// Whether the client is gone, so that nothing reads the answer.
  bool is_abandoned() const;

 private:
  std::shared_ptr<HttpServerImpl> server_;
  std::shared_ptr<HttpConnection> connection_;
};

class HttpServer {
 public:
  /// Called on the server's thread; it must not block.
  using Handler = std::function<void(HttpRequest request, HttpReply reply)>;

  /// Listens. The Error says what to do if the port is in use or not permitted, or which file of
  /// TLS cannot be used.
  static Result<std::unique_ptr<HttpServer>> open(const HttpOptions& options, Handler handler);
  /// Closes all connections. Responses that are not sent yet are lost: drain() first.
  ~HttpServer();

  uint16_t port() const;
  size_t connections() const;
  /// Connections that wait in the kernel's backlog are still served, then none is accepted. Each
  /// response has `Connection: close`; an idle connection is closed after a time of silence.
  void begin_drain();
  /// Waits until all connections are closed; false at the deadline.
  bool wait_drained(int64_t timeout_ms);

 private:
  explicit HttpServer(std::shared_ptr<HttpServerImpl> impl);
  std::shared_ptr<HttpServerImpl> impl_;
};

}  // namespace flow
