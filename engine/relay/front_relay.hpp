// Where the replicas of a worker reach the front of their service, which runs beside the head: the
// relay listens in the folder of the front on the worker's machine, as a front there would, and
// carries each connection to the front through a sealed pipe. The worker's process runs it, because
// user code in the executors must not know the cluster's secret.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "engine/cluster/session/session.hpp"
#include "flow/result.hpp"

namespace flow {

/// Thread-safe.
class FrontRelay {
 public:
  /// A replica whose connection has not reached its front after this time is disconnected; it tries
  /// again.
  static constexpr int64_t kConnectMs = 15'000;

  /// `options`: of sessions with fronts, as a worker. `host`: of the head. `on_note` gets lines for
  /// the log, on the relay's thread.
  FrontRelay(cluster::SessionOptions options, std::string host,
             std::function<void(std::string)> on_note);
  ~FrontRelay();
  FrontRelay(const FrontRelay&) = delete;
  FrontRelay& operator=(const FrontRelay&) = delete;

  /// Listens at `front.sock` in the folder, unless it does already. The folder's name is that of
  /// the front.
  Status open(const std::string& folder);
  /// The port of the head's host at which workers reach this front now; 0: none is known.
  /// Connections through another port stay.
  void set_port(const std::string& front, uint16_t port);

 private:
  class Impl;
  const std::shared_ptr<Impl> impl_;
};

}  // namespace flow
