// What happened to one request, for a log of all requests.
#pragma once
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace flow {

/// The thread of the server's loop fills it, from the arrival of the request to the end of its
/// response.
struct RequestRecord {
  using Clock = std::chrono::steady_clock;

  std::string_view protocol = "http";    // or "grpc"
  std::string client = {};               // address
  std::string method = {}, path = {};    // the path is without its query, which may have secrets
  std::string trace = {};                // the trace id of a valid `traceparent`; "": there is none
  Clock::time_point arrived = {};        // when it was whole
  int status = 0;                        // of HTTP, also for gRPC
  uint64_t bytes_in = 0, bytes_out = 0;  // of the bodies, as they were sent
  bool is_broken = false;                // the response ended early
  bool is_invalid = false;               // it was no request that the server understands
  // Of requests that a version took:
  std::string version = {}, replica = {};
  std::optional<Clock::duration> queue_time = {};  // until its first batch, or its server
  int64_t rows = 0;                                // of that batch, with those of other requests
  std::optional<double> fraction = {};             // of its version's requests that are logged
};

/// Only the thread of the server's loop uses it, but for is_on().
class RequestLog {
 public:
  virtual ~RequestLog() = default;
  /// Whether requests are to be recorded. Any thread.
  virtual bool is_on() const = 0;
  /// The response of the request has ended.
  virtual void add(const RequestRecord& record) = 0;
};

}  // namespace flow
