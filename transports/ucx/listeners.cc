#include "transports/ucx/listeners.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "transports/ucx/filter.hpp"
#include "transports/ucx/ucx_thread.hpp"

namespace flow::ucx {

namespace {

constexpr int64_t kUnusedUs = 10'000;  // a listener is destroyed after it was unused for this long

bool is_same(const SocketAddress& one, const SocketAddress& other) {
  return one.port() == other.port() && one.ip() == other.ip();
}

void on_request(ucp_conn_request_h request, void* peer_listener) {
  static_cast<PeerListener*>(peer_listener)->requests.push_back(request);
}

/// Whether the accept queue of a listening socket is empty: for such a socket the kernel reports
/// the length of the queue as tcpi_unacked.
bool all_are_accepted(int socket) {
  tcp_info info{};
  socklen_t size = sizeof info;
  return ::getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &size) == 0 && info.tcpi_unacked == 0;
}

}  // namespace

Result<std::unique_ptr<PeerListener>> Listeners::open(SocketAddress at, const Ip& peer) {
  auto peer_listener = std::make_unique<PeerListener>();
  at.set_port(0);
  ucp_listener_params_t params{};
  params.field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER;
  params.sockaddr.addr = at.address();
  params.sockaddr.addrlen = at.size;
  params.conn_handler.cb = on_request;
  params.conn_handler.arg = peer_listener.get();
  ucs_status_t status =
      ucx_thread_.ucx.ucp_listener_create(ucx_thread_.worker, &params, &peer_listener->listener);
  if (status != UCS_OK) {
    return environment_error(fmt::format("UCX cannot listen for it at {}: {}",
                                         socket_text(at.storage), ucx_thread_.ucx.text(status)));
  }
  peer_listener->at = at;
  Status filtered = find_socket(*peer_listener);
  if (filtered.ok()) filtered = accept_only_from(peer_listener->socket, {peer});
  if (filtered.ok()) return peer_listener;
  close(std::move(peer_listener));
  return filtered.error();
}

Status Listeners::find_socket(PeerListener& peer_listener) {
  ucp_listener_attr_t attributes{};
  attributes.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR;
  ucs_status_t status = ucx_thread_.ucx.ucp_listener_query(peer_listener.listener, &attributes);
  if (status != UCS_OK)
    return environment_error(
        fmt::format("UCX does not report its listening port: {}", ucx_thread_.ucx.text(status)));
  peer_listener.at.storage = attributes.sockaddr;
  auto sockets = listening_sockets();
  if (!sockets.ok()) return sockets.error();
  for (int socket : *sockets) {
    if (is_same(own_end(socket), peer_listener.at)) peer_listener.socket = socket;
  }
  if (peer_listener.socket >= 0) return {};
  return environment_error("the listening socket of UCX is not found");
}

Result<ucp_conn_request_h> Listeners::take(PeerListener& peer_listener) {
  FLOW_CHECK(!peer_listener.requests.empty());
  ucp_conn_request_h request = peer_listener.requests.front();
  peer_listener.requests.pop_front();
  ucp_conn_request_attr_t attributes{};
  attributes.field_mask = UCP_CONN_REQUEST_ATTR_FIELD_CLIENT_ADDR;
  ucs_status_t status = ucx_thread_.ucx.ucp_conn_request_query(request, &attributes);
  if (status == UCS_OK) {
    peer_listener.accepted_peer.storage = attributes.client_address;
    return request;
  }
  ucx_thread_.ucx.ucp_listener_reject(peer_listener.listener, request);
  return environment_error(fmt::format("UCX does not report the peer of a connection request: {}",
                                       ucx_thread_.ucx.text(status)));
}

void Listeners::close(std::unique_ptr<PeerListener> peer_listener) {
  peer_listener->is_blocked =
      peer_listener->socket >= 0 && block_connections(peer_listener->socket).ok();
  closing_.push_back(std::move(peer_listener));
}

void Listeners::destroy_unused(int64_t now_us) {
  if (closing_.empty()) return;
  std::vector<const PeerListener*> all_accepted;  // before the sockets are listed
  for (const auto& each : closing_) {
    for (; !each->requests.empty(); each->requests.pop_front())
      ucx_thread_.ucx.ucp_listener_reject(each->listener, each->requests.front());
    bool is_found = each->socket >= 0 || find_socket(*each).ok();
    if (is_found && !each->is_blocked) each->is_blocked = block_connections(each->socket).ok();
    if (each->is_blocked && all_are_accepted(each->socket)) all_accepted.push_back(each.get());
  }
  auto sockets = other_tcp_sockets();
  if (!sockets.ok()) return;  // the next check may find them
  std::vector<const PeerListener*> with_peers = hang_up(*sockets);
  auto is_in = [](const std::vector<const PeerListener*>& some, const PeerListener& one) {
    return std::find(some.begin(), some.end(), &one) != some.end();
  };
  std::erase_if(closing_, [&](const auto& each) {
    bool is_unused = is_in(all_accepted, *each) && !is_in(with_peers, *each);
    if (!is_unused)
      each->unused_since_us = 0;
    else if (each->unused_since_us == 0)
      each->unused_since_us = now_us;
    bool is_due = is_unused && now_us - each->unused_since_us >= kUnusedUs;
    if (is_due) ucx_thread_.ucx.ucp_listener_destroy(each->listener);
    return is_due;
  });
}

std::vector<const PeerListener*> Listeners::hang_up(const std::vector<int>& connected) {
  std::vector<const PeerListener*> with_peers;
  for (int socket : connected) {
    for (const auto& each : closing_) {
      if (hang_up(socket, *each)) with_peers.push_back(each.get());
    }
  }
  return with_peers;
}

// Whether a connection came to it and was not accepted.
bool Listeners::hang_up(int socket, const PeerListener& peer_listener) {
  if (!is_same(own_end(socket), peer_listener.at)) return false;
  // UCX's thread may close the socket meanwhile and its number be reused: a duplicate keeps the
  // file.
  int same = ::fcntl(socket, F_DUPFD_CLOEXEC, 0);
  if (same < 0) return true;            // the next check may have a free descriptor
  SocketAddress peer = peer_end(same);  // without a family if it is gone
  bool was_accepted = peer_listener.accepted_peer.storage.ss_family != AF_UNSPEC &&
                      is_same(peer, peer_listener.accepted_peer);
  bool is_unaccepted = is_same(own_end(same), peer_listener.at) && !was_accepted;
  if (is_unaccepted) ::shutdown(same, SHUT_RDWR);  // UCX reads the end of the stream and closes it
  ::close(same);
  return is_unaccepted;
}

}  // namespace flow::ucx
