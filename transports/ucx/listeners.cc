#include "transports/ucx/listeners.hpp"

#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "transports/ucx/filter.hpp"
#include "transports/ucx/net.hpp"

namespace flow::ucx {

namespace {

bool is_same(const SocketAddress& one, const SocketAddress& other) {
  return one.port() == other.port() && one.ip() == other.ip();
}

void on_request(ucp_conn_request_h request, void* awaited) {
  static_cast<Awaited*>(awaited)->requests.push_back(request);
}

/// Of a socket that listens: how many are connected and not accepted yet.
uint32_t unaccepted(int socket) {
  tcp_info info{};
  socklen_t size = sizeof info;
  return ::getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &size) == 0 ? info.tcpi_unacked : 0;
}

}  // namespace

Result<std::unique_ptr<Awaited>> Listeners::open(SocketAddress at, const Ip& peer) {
  auto awaited = std::make_unique<Awaited>();
  at.set_port(0);
  ucp_listener_params_t params{};
  params.field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER;
  params.sockaddr.addr = at.address();
  params.sockaddr.addrlen = at.size;
  params.conn_handler.cb = on_request;
  params.conn_handler.arg = awaited.get();
  ucs_status_t status = net_.ucx.ucp_listener_create(net_.worker, &params, &awaited->listener);
  if (status != UCS_OK) {
    return environment_error(fmt::format("UCX cannot listen for it at {}: {}",
                                         socket_text(at.storage), net_.ucx.text(status)));
  }
  ucp_listener_attr_t attributes{};
  attributes.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR;
  net_.ucx.ucp_listener_query(awaited->listener, &attributes);
  awaited->at = at;
  awaited->at.storage = attributes.sockaddr;
  Status heard = hear_only(*awaited, peer);
  if (heard.ok()) return awaited;
  close(std::move(awaited));
  return heard.error();
}

Status Listeners::hear_only(Awaited& awaited, const Ip& peer) {
  auto sockets = listening_sockets();
  if (!sockets.ok()) return sockets.error();
  for (int socket : *sockets) {
    if (is_same(own_end(socket), awaited.at)) awaited.socket = socket;
  }
  if (awaited.socket < 0) return environment_error("a socket of UCX's that listens is not found");
  return ucx::hear_only(awaited.socket, {peer});
}

ucp_conn_request_h Listeners::take(Awaited& awaited) {
  ucp_conn_request_h request = awaited.requests.front();
  awaited.requests.pop_front();
  ucp_conn_request_attr_t attributes{};
  attributes.field_mask = UCP_CONN_REQUEST_ATTR_FIELD_CLIENT_ADDR;
  if (net_.ucx.ucp_conn_request_query(request, &attributes) == UCS_OK)
    awaited.let_in.storage = attributes.client_address;
  return request;
}

void Listeners::close(std::unique_ptr<Awaited> awaited) {
  if (awaited->socket >= 0) static_cast<void>(hear_nobody(awaited->socket));
  closing_.push_back(std::move(awaited));
}

void Listeners::look() {
  if (closing_.empty()) return;
  std::vector<Awaited*> served;  // as of before the sockets are listed: who came in is among these
  for (const auto& each : closing_) {
    for (; !each->requests.empty(); each->requests.pop_front())
      net_.ucx.ucp_listener_reject(each->listener, each->requests.front());
    if (each->socket < 0 || unaccepted(each->socket) == 0) served.push_back(each.get());
  }
  auto sockets = connected_sockets();
  if (!sockets.ok()) return;  // the next look may find them
  std::vector<Awaited*> visited = hang_up(*sockets);
  for (Awaited* each : served) {
    if (std::find(visited.begin(), visited.end(), each) != visited.end()) continue;
    net_.ucx.ucp_listener_destroy(each->listener);
    std::erase_if(closing_, [each](const auto& one) { return one.get() == each; });
  }
}

std::vector<Awaited*> Listeners::hang_up(const std::vector<int>& connected) {
  std::vector<Awaited*> visited;
  for (int socket : connected) {
    SocketAddress own = own_end(socket), peer = peer_end(socket);
    for (const auto& each : closing_) {
      if (!is_same(own, each->at) || is_same(peer, each->let_in)) continue;
      ::shutdown(socket, SHUT_RDWR);  // UCX reads the end of it, and closes it
      visited.push_back(each.get());
    }
  }
  return visited;
}

}  // namespace flow::ucx
