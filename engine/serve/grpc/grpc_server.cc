#include "engine/serve/grpc/grpc_server.hpp"

#include <fmt/format.h>
#include <grpc/support/log.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <chrono>
#include <cstdlib>
#include <future>
#include <thread>
#include <utility>

#include "engine/base/address.hpp"
#include "engine/base/engine_thread.hpp"
#include "engine/serve/grpc/grpc_listener.hpp"
#include "engine/serve/grpc/inference_service.hpp"

namespace flow {

namespace {

using std::chrono::milliseconds;
using std::chrono::system_clock;

constexpr unsigned int kReloadS = 1;  // how often the files of TLS are looked at
constexpr int kHandshakeMs = 10'000;
constexpr int kMetadataBytesMax = 16 * 1024;

std::shared_ptr<grpc::ServerCredentials> credentials_of(const TlsFiles& files) {
  auto provider = std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(
      files.key, files.certificate, files.clients, kReloadS);
  grpc::experimental::TlsServerCredentialsOptions options(std::move(provider));
  options.watch_identity_key_cert_pairs();
  if (!files.clients.empty()) {
    options.watch_root_certs();
    options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  }
  return grpc::experimental::TlsServerCredentials(options);
}

class GrpcServerImpl final : public GrpcServer {
 public:
  GrpcServerImpl(const GrpcOptions& options, InferenceBackend& backend)
      : options_(options),
        open_connections_(options.connections_max, milliseconds(options.evict_after_ms)),
        service_({.backend = backend,
                  .connections = open_connections_,
                  .message_max = options.message_max,
                  .describe_time = milliseconds(options.describe_ms),
                  .message_time = milliseconds(options.message_ms),
                  .answer_time = milliseconds(options.answer_ms)}),
        listener_(open_connections_) {}

  ~GrpcServerImpl() override {
    listener_.close();
    if (drain_.joinable())
      drain_.join();
    else if (server_)
      server_->Shutdown(system_clock::now());
  }

  Status listen() {
    std::shared_ptr<grpc::ServerCredentials> credentials = grpc::InsecureServerCredentials();
    if (options_.tls) {
      // gRPC would only log what is wrong with a file.
      FLOW_TRY(TlsContext::open(*options_.tls));
      credentials = credentials_of(*options_.tls);
    }
    // Otherwise clients could fill the log, with failed handshakes.
    if (std::getenv("GRPC_VERBOSITY") == nullptr)
      gpr_set_log_verbosity(static_cast<gpr_log_severity>(GPR_LOG_SEVERITY_ERROR + 1));
    grpc::ServerBuilder builder;
    builder.SetMaxReceiveMessageSize(static_cast<int>(options_.message_max));
    builder.SetResourceQuota(grpc::ResourceQuota("flow").Resize(options_.memory_max));
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, options_.streams_max);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, static_cast<int>(options_.idle_ms));
    builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeMs);
    builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMetadataBytesMax);
    // gRPC decompresses without a limit: a small message could need all memory.
    builder.AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
    using Connections = grpc::ServerBuilder::experimental_type::ExternalConnectionType;
    connections_ = builder.experimental().AddExternalConnectionAcceptor(Connections::FROM_FD,
                                                                        std::move(credentials));
    builder.RegisterService(&service_);
    FLOW_TRY(listener_.listen(options_.name, {options_.address, options_.port}));
    server_ = builder.BuildAndStart();
    if (!server_)
      return environment_error(fmt::format(
          "the service `{}` cannot answer over gRPC: with GRPC_VERBOSITY=error in its environment "
          "it says why",
          options_.name));
    return listener_.start([this](int socket) {
      grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
      connection.fd = socket;
      connections_->HandleNewConnection(&connection);
    });
  }

  uint16_t port() const override { return listener_.port(); }

  void begin_drain(int64_t grace_ms, std::function<void()> drained) override {
    if (drain_.joinable()) return;
    listener_.close();
    drain_ = engine_thread(
        [this, drained = std::move(drained), until = system_clock::now() + milliseconds(grace_ms)] {
          server_->Shutdown(until);
          drained_.set_value();
          if (drained) drained();
        });
  }

  bool wait_drained(int64_t timeout_ms) override {
    return is_drained_.wait_for(milliseconds(timeout_ms)) == std::future_status::ready;
  }

 private:
  const GrpcOptions options_;
  GrpcConnections open_connections_;
  InferenceService service_;  // outlives the server
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> connections_;
  std::unique_ptr<grpc::Server> server_;
  GrpcListener listener_;  // its thread uses the two above
  std::promise<void> drained_;
  std::future<void> is_drained_ = drained_.get_future();
  std::thread drain_;  // gRPC blocks the thread that ends its server
};

}  // namespace

Result<std::unique_ptr<GrpcServer>> GrpcServer::open(const GrpcOptions& options,
                                                     InferenceBackend& backend) {
  auto server = std::make_unique<GrpcServerImpl>(options, backend);
  FLOW_TRY(server->listen());
  return std::unique_ptr<GrpcServer>(std::move(server));
}

}  // namespace flow
