// UCX's listeners: one for each authenticated peer, and only that peer may connect. On the UCX
// thread only.
//
// UCX 1.13 keeps a pointer to the listener in a connection that has not sent its identity yet, and
// uses it on a thread of its own when that arrives (tcp_sockcm_ep.c, conn_request_cb): destroying
// the listener before that crashes the process. So a closed listener blocks new connections, shuts
// down those that came in, and is destroyed when they are gone.
#pragma once
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "transports/ucx/library.hpp"
#include "transports/ucx/sockets.hpp"

namespace flow::ucx {

class UcxThread;

/// The listener at which UCX awaits one peer.
struct PeerListener {
  ucp_listener_h listener = nullptr;
  int socket = -1;  // UCX's listening socket; -1 if it was not found yet
  SocketAddress at;
  SocketAddress accepted_peer;  // peer of the accepted request; without a family: none
  std::deque<ucp_conn_request_h> requests;
  // Of a closed one:
  bool is_blocked = false;  // it accepts no connection
  int64_t unused_since_us =
      0;  // since when no check has found a connection; 0: the last check found one
};

class Listeners {
 public:
  explicit Listeners(UcxThread& ucx_thread) : ucx_thread_(ucx_thread) {}

  /// Listens at a port of its own; only `peer` may connect. environment: UCX cannot listen, or its
  /// socket cannot be filtered.
  Result<std::unique_ptr<PeerListener>> open(SocketAddress at, const Ip& peer);
  /// The first request, of at least one: its connection outlives the listener. environment: UCX
  /// does not report its peer; it is rejected.
  Result<ucp_conn_request_h> take(PeerListener& peer_listener);
  /// It accepts no more connections, and destroy_unused() destroys it later.
  void close(std::unique_ptr<PeerListener> peer_listener);
  /// Whether some closed listeners remain.
  bool is_closing() const { return !closing_.empty(); }
  /// Shuts down connections to closed listeners that were not accepted, and destroys a listener if
  /// this check and an earlier one found no connection: one that UCX's thread is accepting is for a
  /// moment neither in the accept queue nor among this process's sockets.
  void destroy_unused(int64_t now_us);

 private:
  Status find_socket(PeerListener& peer_listener);
  /// The closed listeners that some connections had reached; `connected`: sockets that may be
  /// theirs.
  std::vector<const PeerListener*> hang_up(const std::vector<int>& connected);
  bool hang_up(int socket, const PeerListener& peer_listener);

  UcxThread& ucx_thread_;
  std::vector<std::unique_ptr<PeerListener>> closing_;
};

}  // namespace flow::ucx
