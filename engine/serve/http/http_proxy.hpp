// Sends requests of an HTTP server on to another one on this machine, and its responses back as
// they arrive: neither a response nor a large body of a request is in memory as a whole.
#pragma once
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "engine/serve/http/http_request.hpp"
#include "engine/serve/http/http_server.hpp"
#include "flow/result.hpp"

namespace flow {

struct ProxyLimits {
  int64_t connect_ms = 1'000;
  int64_t kept_ms = 2'000;  // that an idle connection is kept; many servers close theirs after 5 s
  size_t kept_max = 64;     // idle connections
};

struct ProxiedRequest {
  HttpRequest request;  // read with HttpRules::keeps_fields
  HttpReply reply;
  /// By when the head of the response must have arrived; its body has no limit of time. While a
  /// body that is handed on goes to the upstream, it is moved: see `patience`.
  std::chrono::steady_clock::time_point deadline = std::chrono::steady_clock::time_point::max();
  /// Whether it may be sent a second time although its method is not a safe one.
  bool is_repeatable = false;
  /// Of a body that is handed on while it arrives: how long the upstream may take nothing of it,
  /// and the time from its end to the head of the response. Nothing: no limit.
  std::optional<std::chrono::steady_clock::duration> patience = {};

  /// It is to be sent once more. A body that is handed on may have used up the time of the first
  /// try while it arrived.
  void renew_deadline() {
    if (request.upload && patience)
      deadline = std::max(deadline, std::chrono::steady_clock::now() + *patience);
  }
};

/// Whether a request with the method changes nothing, so that it may be sent a second time.
bool is_safe_method(std::string_view method);

/// When the body of a response came from the upstream.
struct BodyTimes {
  using Clock = std::chrono::steady_clock;
  std::optional<Clock::time_point> first = {};          // its first byte; nothing: it has no byte
  uint64_t events = 0;                                  // of a body of type text/event-stream
  Clock::time_point first_event = {}, last_event = {};  // the ends of these
};

struct ProxyOutcome {
  enum class Kind : uint8_t {
    responded,    // the whole response was passed on
    unreachable,  // no connection: nothing was sent, and the reply is still unanswered
    died,         // the upstream closed the connection before its response; the reply is unanswered
    invalid,      // the response cannot be understood: the client got 502
    broken,       // the response ended early: the client's connection was closed without its end
    left,         // the client left, and the upstream's connection was closed
    timeout,      // the deadline passed: the client got 504
    rejected,     // the rest of the request's body did not arrive: the client got the status
  };
  Kind kind = Kind::responded;
  int status = 0;  // that the client got; 499 if it left; 0 if it got none
  std::chrono::microseconds duration{};
  std::string message = {};  // what was wrong, for a log or an answer
  BodyTimes body = {};
};

class ProxyPool;

/// One upstream server, at a port of 127.0.0.1 or behind another connection. Only the thread of the
/// context uses it, but for its constructor and destructor.
class HttpProxy {
 public:
  /// Called once, on the context's thread. If the reply is unanswered, the caller answers it, or
  /// forwards the request elsewhere.
  using Done = std::function<void(ProxyOutcome outcome, ProxiedRequest request)>;

  /// Whether a new connection has reached the right server: a request is sent only if it has. An
  /// error makes the upstream unreachable.
  using Check = std::function<Status()>;

  /// A stream socket that does not block and that the callee owns, or why there is none.
  using Connected = std::function<void(Result<int> socket)>;
  /// Makes a connection to an upstream that has no port here. Calls back once, on the context's
  /// thread, at once or later; what comes after connect_ms is closed.
  using Connect = std::function<void(Connected done)>;

  /// `context` is the one of the server that read the requests, and outlives the proxy. `check` is
  /// called for each new connection, on the context's thread, also for requests that the proxy has
  /// left behind.
  HttpProxy(boost::asio::io_context& context, uint16_t port, const ProxyLimits& limits = {},
            Check check = {});
  HttpProxy(boost::asio::io_context& context, Connect connect, const ProxyLimits& limits = {});
  /// Requests that are being forwarded continue.
  ~HttpProxy();

  /// Sends the request on a kept connection or a new one. If the upstream closes a kept one before
  /// a byte of its response, a request with a safe method, or one that is_repeatable, is sent once
  /// more on a new connection, if its body is still there.
  void forward(ProxiedRequest request, Done done);
  /// Requests whose outcome is open.
  size_t in_flight() const;

 private:
  std::shared_ptr<ProxyPool> pool_;
};

}  // namespace flow
