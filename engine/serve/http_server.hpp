// The HTTP server: reads each request whole, under deadlines and limits, and passes only valid
// requests to the HTTP library. A connection occupies one thread. If all threads are occupied, the
// connection that has been idle longest is closed.
#pragma once
#include <httplib.h>

#include <chrono>
#include <list>
#include <memory>
#include <mutex>

#include "engine/base/thread_pool.hpp"
#include "engine/serve/http_head.hpp"
#include "engine/serve/model_server.hpp"

namespace flow {

/// One connection.
struct ServedConnection {
  enum class Phase { idle, asking, answered };
  int socket = -1;
  Phase phase = Phase::idle;
  std::chrono::steady_clock::time_point since;
  bool is_evicted = false;
};

class HttpServer final : public httplib::Server {
 public:
  HttpServer(const ServiceLimits& limits, uint64_t body_max, Methods methods);

  /// Raises the accept backlog to the system's maximum, because the library was built with 5. Call
  /// it after the bind. An Error gives the reason of a failure.
  Status widen_backlog();
  /// Starts the first thread of connections. Call it before listen().
  Status start_threads();
  /// Closes idle connections; with `all` also those whose request is being answered. No new
  /// connection is accepted.
  void close(bool all);

 private:
  class ConnectionQueue;
  class HttpConnection;
  using ServedConnections = std::list<ServedConnection>;

  bool process_and_close_socket(socket_t socket) override;
  void evict_idle(size_t wanted);
  void reject_overload(int socket);

  const ServiceLimits limits_;
  const uint64_t body_max_;
  const Methods methods_;
  std::mutex mutex_;
  ServedConnections connections_;  // one per thread at most
  bool closed_ = false;
  std::unique_ptr<ThreadPool> threads_;  // until the server stops; last: they use the others
};

}  // namespace flow
