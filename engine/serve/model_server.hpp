// The HTTP front of a service: Open Inference Protocol v2 on loopback, requests batched for one
// thread that predicts.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "flow/value.hpp"

namespace flow {

/// Of the connections to a service.
struct ServiceLimits {
  size_t connections_max = 128;
  int64_t evict_after_ms = 100;  // with one that is silent, while others wait for its place
  int64_t idle_ms = 60'000;      // between two requests
  int64_t head_ms = 10'000;      // from a head's first byte to its last
  int64_t body_ms = 120'000;     // for a body
};

struct ServiceOptions {
  std::string name;           // of the model
  uint16_t port = 0;          // 0 chooses
  uint32_t batch_max = 1;     // rows of one call of predict
  int64_t batch_wait_us = 0;  // how long a batch waits to fill
  ServiceLimits limits = {};
  /// Called on `run`'s thread with a line for each request that the service failed to answer.
  std::function<void(const std::string&)> log = {};
};

/// One request's or reply's tensors by name.
using Tensors = std::map<std::string, Tensor>;
using Predict = std::function<Result<Tensors>(const Tensors& inputs)>;

class ModelServer {
 public:
  /// Listens on 127.0.0.1; an Error names a port that is in use.
  static Result<std::unique_ptr<ModelServer>> open(const ServiceOptions& options);
  virtual ~ModelServer() = default;
  virtual std::string url() const = 0;
  /// Calls `predict` on this thread for each batch until `should_stop`.
  virtual void run(const Predict& predict, const std::function<bool()>& should_stop) = 0;
};

constexpr size_t kRequestBytesMax = 64u << 20;

/// A request's JSON to tensors. Every malformed body is an Error of kind user that says what and
/// where.
Result<Tensors> parse_infer_request(std::string_view body, std::string& id);
/// An Error names the output that holds NaN or an infinity, which JSON has no word for.
Result<std::string> print_infer_response(const std::string& model, const std::string& id,
                                         const Tensors& outputs);

}  // namespace flow
