// Where the clients of a service connect: the HTTP server of its front.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/serve/http/event_loop.hpp"
#include "engine/serve/http/http_server.hpp"
#include "engine/serve/service_options.hpp"
#include "flow/result.hpp"

namespace flow {

/// Only the loop's thread uses it, but for construction, and destruction after the loop has
/// stopped.
class FrontListener {
 public:
  struct Callbacks {
    HttpServer::Handler handle;
    /// As in HttpRules. It is asked only if the service has keys.
    std::function<bool(std::string_view path, std::string_view authorization)> authorize;
    std::function<void(const std::string&)> log;
  };

  /// `port_file` as in FrontOptions.
  FrontListener(EventLoop& loop, std::string port_file, Callbacks callbacks);
  ~FrontListener();

  /// Listens as the options say.
  Status open(const ServiceOptions& options);
  bool is_open() const { return http_ != nullptr; }
  /// With the machine's name if it listens on all addresses; "" before open().
  const std::string& url() const { return url_; }
  /// Error if a version with these options would have to listen in another way.
  Status check(const ServiceOptions& options) const;
  /// Error if its replicas answer requests in another way: with a function, or as servers.
  Status check_kind(const ServiceOptions& options) const;
  /// Takes over the names of hosts.
  void set_hosts(const ServiceOptions& options);
  /// As HttpServer::begin_drain().
  void begin_drain(std::function<void()> drained);

 private:
  Result<std::unique_ptr<HttpServer>> listen(const ServiceOptions& options, uint16_t port);
  uint16_t former_port() const;
  void keep_port() const;

  EventLoop& loop_;
  const std::string port_file_;
  const Callbacks callbacks_;
  ServiceOptions options_;  // of open()
  std::unique_ptr<HttpServer> http_;
  std::string url_;
};

}  // namespace flow
