// The HTTP server of a service: Open Inference Protocol v2 on loopback. Requests are batched for
// the one thread that predicts.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "flow/value.hpp"

namespace flow {

/// Limits of the connections to a service.
struct ServiceLimits {
  size_t connections_max = 128;
  int64_t evict_after_ms = 100;  // closes a connection that is idle this long while others wait
  int64_t idle_ms = 60'000;      // between two requests
  int64_t head_ms = 10'000;      // from the first to the last byte of a head
  int64_t body_ms = 120'000;     // for a whole body
};

struct ServiceOptions {
  std::string name;           // of the model
  uint16_t port = 0;          // 0: chosen by the system
  uint32_t batch_max = 1;     // maximum rows per call of predict
  int64_t batch_wait_us = 0;  // how long a batch waits for more requests
  ServiceLimits limits = {};
  /// Called on the thread of `run` with one line per request that the service failed to answer.
  std::function<void(const std::string&)> log = {};
};

/// The tensors of one request or reply, by name.
using Tensors = std::map<std::string, Tensor>;
using Predict = std::function<Result<Tensors>(const Tensors& inputs)>;

class ModelServer {
 public:
  /// Listens on 127.0.0.1. Error if the port is in use.
  static Result<std::unique_ptr<ModelServer>> open(const ServiceOptions& options);
  virtual ~ModelServer() = default;
  virtual std::string url() const = 0;
  /// Calls `predict` on this thread for each batch until `should_stop` returns true.
  virtual void run(const Predict& predict, const std::function<bool()>& should_stop) = 0;
};

constexpr size_t kRequestBytesMax = 64u << 20;

/// Decodes a request's JSON to tensors. Every malformed body is an Error of kind user that names
/// the fault and its place.
Result<Tensors> parse_infer_request(std::string_view body, std::string& id);
/// The Error names the output that holds NaN or an infinity, which JSON cannot represent.
Result<std::string> print_infer_response(const std::string& model, const std::string& id,
                                         const Tensors& outputs);

}  // namespace flow
