// Restricts the machines that may connect to a socket of UCX: UCX parses data before a peer is
// authenticated, and some data crashes it.
#pragma once
#include <cstdint>
#include <deque>
#include <string_view>
#include <vector>

#include "flow/result.hpp"
#include "transports/ucx/sockets.hpp"

namespace flow::ucx {

/// From now on a listening socket accepts connections from these machines only; requests of others
/// are dropped without an answer. At most kFilterIpsMax.
Status accept_only_from(int socket, const std::vector<Ip>& ips);
constexpr size_t kFilterIpsMax = 400;
/// From now on no new connection is accepted; a connection whose handshake is incomplete is not
/// completed either. Connections that wait for accept() stay.
Status block_connections(int socket);

/// The machines that may connect to the permanent sockets of a UCX worker: those that have
/// authenticated, the last kFilterIpsMax of their addresses, or fewer if the kernel has less memory
/// for filters.
class SocketFilter {
 public:
  /// Filters those of `sockets` that listen at a port that is in the worker's packed address. At
  /// first they accept no connection.
  Status watch(const std::vector<int>& sockets, std::string_view worker_address);
  Status allow(const std::vector<Ip>& ips);  // of one machine

 private:
  Status apply() const;

  std::vector<int> sockets_;
  std::deque<Ip> ips_;  // in the order of authentication
};

}  // namespace flow::ucx
