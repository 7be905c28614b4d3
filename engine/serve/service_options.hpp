// Options of a service as its front takes them.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/serve/http/http_options.hpp"
#include "engine/serve/inference.hpp"
#include "engine/value/tensor_spec.hpp"

namespace flow {

struct ServiceOptions {
  std::string name;                                   // of the model
  std::string address = "127.0.0.1";                  // IPv4 or IPv6
  uint16_t port = 0;                                  // 0: chosen by the system
  int32_t grpc_port = -1;                             // 0: chosen by the system; -1: no gRPC
  std::optional<TlsFiles> tls = {};                   // then it answers https only
  std::vector<std::string> keys = {};                 // if there are any, all but health needs one
  std::vector<std::string> hosts = {};                // as in HttpRules
  std::vector<TensorSpec> inputs = {}, outputs = {};  // checked, if there are any
  uint32_t batch_max = 1;                             // maximum rows per call of predict
  int64_t batch_wait_us = 0;                          // how long a batch waits for more requests
  bool is_padded = false;  // batches have batch_max rows; those that are missing are zeros
  size_t queue = 1024;     // maximum number of requests that wait; more get status 429
  int64_t request_timeout_ms = 60'000;  // from the arrival of a request to its response
  bool is_idempotent = true;            // requests may run again after the death of a replica
  int64_t drain_delay_ms = 0;           // new connections are accepted so long in a drain
  double access_log = 0;                // part of the requests that are logged
  Tensors warmup = {};                  // a request that completes those of a canary's step
  bool forwards = false;                // the replicas are HTTP servers, which get the requests
  HttpLimits limits = {};
};

constexpr size_t kRequestBytesMax = 64u << 20;

}  // namespace flow
