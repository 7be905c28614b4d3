// Accepts the connections of a gRPC server. The library would accept any number of them, and give
// up its listener for good when the process has no file descriptor left.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <thread>

#include "engine/base/address.hpp"
#include "engine/serve/grpc/grpc_connections.hpp"
#include "flow/result.hpp"

namespace flow {

/// A connection without a place is closed at once: its client tries again after some time.
class GrpcListener {
 public:
  /// Gets a connected socket, which does not block, and closes it some time.
  using Adopt = std::function<void(int socket)>;

  /// The table outlives it.
  explicit GrpcListener(GrpcConnections& connections) : connections_(connections) {}
  ~GrpcListener();
  GrpcListener(const GrpcListener&) = delete;
  GrpcListener& operator=(const GrpcListener&) = delete;

  /// Port 0 takes a free one. The Error says what to do if the port is in use or not permitted.
  Status listen(const std::string& service, const Address& address);
  uint16_t port() const { return port_; }
  /// Accepts connections on a thread of its own until close().
  Status start(Adopt adopt);
  /// Closes the listener: new connections are refused from now on.
  void close();

 private:
  void loop();
  bool accept_one();

  GrpcConnections& connections_;
  Adopt adopt_;
  int listener_ = -1, wake_ = -1;
  uint16_t port_ = 0;
  std::thread thread_;
};

}  // namespace flow
