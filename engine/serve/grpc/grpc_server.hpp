// A service over gRPC: the Open Inference Protocol v2, with the calls of Triton that its client
// uses. A build without gRPC has only the error of open().
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "engine/serve/http/tls.hpp"
#include "engine/serve/inference_backend.hpp"
#include "flow/result.hpp"

namespace flow {

struct GrpcOptions {
  std::string name;                   // of the service, for errors
  std::string address = "127.0.0.1";  // IPv4 or IPv6
  uint16_t port = 0;                  // 0: a free one
  std::optional<TlsFiles> tls = {};   // a file that changes is loaded again
  size_t message_max = 64u << 20;     // bytes of a request
  size_t memory_max = 512u << 20;     // bytes that the library may use for all connections
  int streams_max = 128;              // calls at a time on one connection; a client queues more
  size_t connections_max = 4'000;     // GrpcConnections says what happens to one more
  int64_t evict_after_ms = 100;       // for which a connection without a valid key keeps its place
  int64_t idle_ms = 300'000;          // a connection without a call is closed after this time
  int64_t describe_ms = 10'000;       // for a whole call other than one for inference
  int64_t message_ms = 120'000;       // in which the message of ModelInfer must arrive
  int64_t answer_ms = 60'000;         // in which a client must have taken its whole answer
};

class GrpcServer {
 public:
  /// Listens. The Error says what to do if the port is in use or not permitted, which file of TLS
  /// cannot be used, or what this build lacks. The backend outlives the server, and may destroy
  /// responders after it.
  static Result<std::unique_ptr<GrpcServer>> open(const GrpcOptions& options,
                                                  InferenceBackend& backend);
  /// Cancels all calls after the end of a drain that has begun.
  virtual ~GrpcServer() = default;

  virtual uint16_t port() const = 0;
  /// Accepts no connection and no call from now on, and cancels the open calls after `grace_ms`.
  /// `drained` is called when none is left, on a thread of the server.
  virtual void begin_drain(int64_t grace_ms, std::function<void()> drained = {}) = 0;
  /// Waits until a drain that has begun is done; false after `timeout_ms`.
  virtual bool wait_drained(int64_t timeout_ms) = 0;
};

}  // namespace flow
