// Where the clients of a service connect: the servers of its front, for HTTP and gRPC.
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/serve/grpc/grpc_server.hpp"
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
    /// As in HttpRules.
    std::function<std::optional<HttpError>(const HttpRequest& head)> refusal;
    std::function<void(const std::string&)> log;
  };

  /// As in FrontOptions.
  struct PortFiles {
    std::string http, grpc;
  };

  /// The backend answers what arrives over gRPC. All three outlive it.
  FrontListener(EventLoop& loop, InferenceBackend& backend, RequestLog& requests,
                PortFiles port_files, Callbacks callbacks);
  ~FrontListener();

  /// Listens as the options say.
  Status open(const ServiceOptions& options);
  bool is_open() const { return http_ != nullptr; }
  /// With the machine's name if it listens on all addresses; "" before open().
  const std::string& url() const { return url_; }
  /// Address and port; "" without gRPC.
  const std::string& grpc_address() const { return grpc_address_; }
  /// Error if a version with these options would have to listen in another way.
  Status check(const ServiceOptions& options) const;
  /// Error if its replicas answer requests in another way: with a function, or as servers.
  Status check_kind(const ServiceOptions& options) const;
  /// Takes over the names of hosts.
  void set_hosts(const ServiceOptions& options);
  /// As HttpServer::begin_drain(). Calls over gRPC that are open after the grace are cancelled.
  void begin_drain(std::chrono::milliseconds grace, std::function<void()> drained);

 private:
  Result<std::unique_ptr<HttpServer>> listen(const ServiceOptions& options, uint16_t port);
  Result<std::unique_ptr<GrpcServer>> listen_for_grpc(const ServiceOptions& options, uint16_t port);
  template <typename Listen>
  auto open_at(uint16_t port, const std::string& port_file, const Listen& listen) const;
  void keep_port(const std::string& port_file, uint16_t port) const;

  EventLoop& loop_;
  InferenceBackend& backend_;
  RequestLog& requests_;
  const PortFiles port_files_;
  const Callbacks callbacks_;
  ServiceOptions options_;  // of open()
  std::unique_ptr<HttpServer> http_;
  std::unique_ptr<GrpcServer> grpc_;
  std::string url_, grpc_address_;
};

}  // namespace flow
