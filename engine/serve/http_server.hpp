// Who may come in: the library's server behind a door that reads every request whole, under
// deadlines and limits, and hands on only what it has read as sound. A connection holds a thread;
// where all are taken, the one that has kept us waiting longest gives way.
#pragma once
#include <httplib.h>

#include <chrono>
#include <list>
#include <mutex>

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

  /// Takes as many connections that wait to be accepted as the system allows: the library was built
  /// for 5. After the bind; an Error says why not.
  Status widen_backlog();
  /// Hangs up on those that ask nothing; `all`: also on those that are being answered. Nobody comes
  /// in any more.
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
  ServedConnections connections_;  // as many as have a thread
  bool closed_ = false;
};

}  // namespace flow
