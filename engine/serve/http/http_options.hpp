// Where an HTTP server listens, and its limits.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "engine/serve/http/http_request.hpp"
#include "engine/serve/http/tls.hpp"

namespace flow {

struct HttpLimits {
  size_t connections_max = 16'000;  // less if the process may open fewer files
  int64_t evict_after_ms = 100;     // a connection that waits this long for a request is closed if
                                    // another one needs its place
  int64_t idle_ms = 60'000;         // between two requests
  int64_t head_ms = 10'000;         // from the first to the last byte of a head
  int64_t body_ms = 120'000;        // for a whole body; of one that is handed on while it arrives,
                                    // without a further byte
  int64_t write_ms = 60'000;        // for a whole response, and 1 s more for each 64 KiB of it
  int64_t silence_ms = 1'000;       // in a drain, an idle connection is closed after this time
  int64_t half_closed_ms = 1'000;  // a client that sends no more is answered for this time; then it
                                   // counts as gone
  uint64_t bytes_max = 256u << 20;  // of all bodies and responses; more are answered with 503
};

struct HttpOptions {
  std::string name;                   // of the service, for errors
  std::string address = "127.0.0.1";  // IPv4 or IPv6
  uint16_t port = 0;                  // 0: a free one
  std::optional<TlsFiles> tls = {};
  HttpRules rules = {};
  HttpLimits limits = {};
  /// Called by open() and on the server's thread with what an operator should know, such as
  /// certificates that cannot be loaded again.
  std::function<void(const std::string&)> log = {};
  RequestLog* requests = nullptr;  // outlives the server; null: requests are not recorded
};

}  // namespace flow
