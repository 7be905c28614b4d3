// The HTTP server of a service: Open Inference Protocol v2. Requests are batched for
// the one thread that predicts.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/serve/http/http_server.hpp"
#include "engine/serve/inference.hpp"
#include "engine/value/tensor_spec.hpp"

namespace flow {

struct ServiceOptions {
  std::string name;                                   // of the model
  std::string address = "127.0.0.1";                  // IPv4 or IPv6
  uint16_t port = 0;                                  // 0: chosen by the system
  std::optional<TlsFiles> tls = {};                   // then it answers https only
  std::vector<std::string> keys = {};                 // if there are any, all but health needs one
  std::vector<std::string> hosts = {};                // as in HttpRules
  std::vector<TensorSpec> inputs = {}, outputs = {};  // checked, if there are any
  uint32_t batch_max = 1;                             // maximum rows per call of predict
  int64_t batch_wait_us = 0;                          // how long a batch waits for more requests
  size_t queue = 1024;                  // maximum number of requests that wait; more get status 429
  int64_t request_timeout_ms = 60'000;  // from the arrival of a request to its response
  int64_t drain_ms = 10'000;            // for the requests that are open when the service ends
  HttpLimits limits = {};
  /// Called on the thread of `run` with one line per request that the service failed to answer, and
  /// per call of predict that took longer than the timeout.
  std::function<void(const std::string&)> log = {};
};

using Predict = std::function<Result<Tensors>(const Tensors& inputs)>;

class ModelServer {
 public:
  /// Listens. Error if the port is in use or a file of TLS cannot be used.
  static Result<std::unique_ptr<ModelServer>> open(const ServiceOptions& options);
  virtual ~ModelServer() = default;
  /// With the machine's name if it listens on all addresses.
  virtual std::string url() const = 0;
  /// Calls `predict` on this thread for each batch until `should_stop` returns true. It then
  /// answers the open requests, and returns when no connection is left or the time for that has
  /// passed; it always waits for the end of a call of `predict`. `should_stop` is called on another
  /// thread. An exception of `options.log` is passed on after the requests were rejected.
  virtual void run(const Predict& predict, const std::function<bool()>& should_stop) = 0;
};

constexpr size_t kRequestBytesMax = 64u << 20;

}  // namespace flow
