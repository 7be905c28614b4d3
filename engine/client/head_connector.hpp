// The way from a client to a head on another machine: sessions of their cluster, whose role is a
// client's.
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

/// Thread-safe.
class HeadConnector {
 public:
  /// `head` is "HOST:PORT". Reaches nobody yet.
  static Result<std::unique_ptr<HeadConnector>> open(const std::string& head,
                                                      const std::string& secret_file,
                                                      const TransportFactory& make_transport);
  /// Waits until the head is proven. `is_rejected` where another try would be no better.
  Result<std::shared_ptr<EngineConnection>> connect(bool* is_rejected = nullptr);
  /// Ends all that was connected, or is about to be.
  void close();

 private:
  explicit HeadConnector(std::string head) : head_(std::move(head)) {}
  const std::string head_;
  std::mutex mutex_;
  bool is_closed_ = false;
  std::vector<std::weak_ptr<cluster::SessionChannel>>
      channels_;  // those that are gone leave in connect()
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<cluster::Sessions> sessions_;
};

}  // namespace flow
