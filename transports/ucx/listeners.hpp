// UCX's listeners: one for each peer that has proven itself, of which nobody else hears. On the net
// thread only.
//
// UCX 1.13 keeps a pointer to the listener in what came in there and has not said yet who it is,
// and follows it on a thread of its own when it does (tcp_sockcm_ep.c, conn_request_cb): a listener
// that is destroyed before ends the process. So one that is over hears nobody any more, hangs up on
// who came in, and is destroyed when they are gone.
#pragma once
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "transports/ucx/library.hpp"
#include "transports/ucx/sockets.hpp"

namespace flow::ucx {

class UcxThread;

/// Where UCX awaits one peer.
struct PeerListener {
  ucp_listener_h listener = nullptr;
  int socket = -1;  // UCX's, that listens; -1 where it was not found yet
  SocketAddress at;
  SocketAddress accepted_peer;  // whose request was taken; of no family: nobody's
  std::deque<ucp_conn_request_h> requests;
  // Of one that is closed:
  bool is_blocked = false;      // it hears nobody
  int64_t unused_since_us = 0;  // since then no look has found anybody there; 0: the last one did
};

class Listeners {
 public:
  explicit Listeners(UcxThread& ucx_thread) : ucx_thread_(ucx_thread) {}

  /// At a port of its own there, where `peer` alone is heard. environment: UCX cannot listen, or
  /// strangers cannot be kept out.
  Result<std::unique_ptr<PeerListener>> open(SocketAddress at, const Ip& peer);
  /// The request that came first, of at least one: its connection lives on when the listener is
  /// over. environment: UCX does not say whose it is; it is rejected.
  Result<ucp_conn_request_h> take(PeerListener& peer_listener);
  /// It hears nobody any more, and look() destroys it later.
  void close(std::unique_ptr<PeerListener> peer_listener);
  /// Whether some that were closed are still there.
  bool is_closing() const { return !closing_.empty(); }
  /// Hangs up on those who came to a closed one and were not let in, and destroys it where nobody
  /// was there at this look and at one some time before: one whom UCX's thread accepts just now is
  /// for a moment neither among those who wait nor among this process's sockets.
  void destroy_unused(int64_t now_us);

 private:
  Status find_socket(PeerListener& peer_listener);
  /// Of those that are closed, those to whom some had come; `connected`: sockets that may be
  /// theirs.
  std::vector<const PeerListener*> hang_up(const std::vector<int>& connected);
  bool hang_up(int socket, const PeerListener& peer_listener);

  UcxThread& ucx_thread_;
  std::vector<std::unique_ptr<PeerListener>> closing_;
};

}  // namespace flow::ucx
