// Which machines a socket of UCX's hears: UCX parses what it is sent before anybody has proven
// anything, and some of it ends the process.
#pragma once
#include <cstdint>
#include <deque>
#include <string_view>
#include <vector>

#include "flow/result.hpp"
#include "transports/ucx/sockets.hpp"

namespace flow::ucx {

/// A socket that listens lets in connections of these machines alone, from now on; what others
/// send to begin one is dropped, unanswered. At most kFilterIpsMax.
Status accept_only_from(int socket, const std::vector<Ip>& ips);
constexpr size_t kFilterIpsMax = 400;
/// Nobody, from now on: a connection that was begun before is not completed either. What waits to
/// be accepted already stays.
Status block_connections(int socket);

/// What the lasting sockets of a UCX worker hear: machines that have proven themselves, the last
/// kFilterIpsMax of their addresses, or fewer where the kernel has no room for so many.
class SocketFilter {
 public:
  /// Of those of `sockets` that listen at a port that is in the worker's packed address. They hear
  /// nobody yet.
  Status watch(const std::vector<int>& sockets, std::string_view worker_address);
  Status allow(const std::vector<Ip>& ips);  // of one machine

 private:
  Status apply() const;

  std::vector<int> sockets_;
  std::deque<Ip> ips_;  // who was proven last is last
};

}  // namespace flow::ucx
