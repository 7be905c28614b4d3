// UCX's listeners: one for each peer that has proven itself, of which nobody else hears. On the net
// thread only.
//
// UCX 1.13 keeps a pointer to the listener in what came in there and has not said yet who it is,
// and follows it on a thread of its own when it does (tcp_sockcm_ep.c, conn_request_cb): a listener
// that is destroyed before ends the process. So one that is over hears nobody any more, hangs up on
// who came in, and is destroyed when they are gone.
#pragma once
#include <deque>
#include <memory>
#include <vector>

#include "transports/ucx/library.hpp"
#include "transports/ucx/sockets.hpp"

namespace flow::ucx {

class Net;

/// Where UCX awaits one peer.
struct Awaited {
  ucp_listener_h listener = nullptr;
  int socket = -1;  // UCX's, that listens; -1 where it was not found
  SocketAddress at;
  SocketAddress let_in;  // whose request was taken; of no family: nobody's
  std::deque<ucp_conn_request_h> requests;
};

class Listeners {
 public:
  explicit Listeners(Net& net) : net_(net) {}

  /// At a port of its own there, where `peer` alone is heard.
  Result<std::unique_ptr<Awaited>> open(SocketAddress at, const Ip& peer);
  /// The request that came first: its connection lives on when the listener is over.
  ucp_conn_request_h take(Awaited& awaited);
  void close(std::unique_ptr<Awaited> awaited);
  /// Whether some that were closed are still there.
  bool is_closing() const { return !closing_.empty(); }
  /// Destroys those whose visitors are gone. Not in the turn in which they were closed: the kernel
  /// may still let one in by what it was told before.
  void look();

 private:
  Status hear_only(Awaited& awaited, const Ip& peer);
  /// On all who came in but those who were let in: those of the closed to whom some had come.
  std::vector<Awaited*> hang_up(const std::vector<int>& connected);

  Net& net_;
  std::vector<std::unique_ptr<Awaited>> closing_;
};

}  // namespace flow::ucx
