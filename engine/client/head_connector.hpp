// Connects a client to a head on another machine, again after each loss, by sessions of the cluster
// in the role of a client.
#pragma once
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/client/connection.hpp"
#include "engine/cluster/session/session_options.hpp"
#include "engine/cluster/session/sessions.hpp"
#include "flow/transport.hpp"

namespace flow {

/// Thread-safe. Must outlive the connections that it made.
class HeadConnector {
 public:
  /// `head` is "HOST:PORT". Connects to nothing yet.
  static Result<std::unique_ptr<HeadConnector>> open(const std::string& head,
                                                     const std::string& secret_file,
                                                     const TransportFactory& make_transport);
  /// Dials the head and waits until the handshake has proved that it is the head. One try: the
  /// caller repeats it. `is_rejected` is set if another try would fail in the same way.
  Result<std::shared_ptr<EngineConnection>> connect(bool* is_rejected = nullptr);
  /// Ends every connection that was made, and fails every connect() from now on.
  void close();

 private:
  explicit HeadConnector(std::string head) : head_(std::move(head)) {}
  const std::string head_;
  std::mutex mutex_;
  bool is_closed_ = false;  // under mutex_, as the next
  std::vector<std::weak_ptr<cluster::SessionChannel>>
      channels_;  // connect() removes the ended ones
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<cluster::Sessions> sessions_;
};

}  // namespace flow
