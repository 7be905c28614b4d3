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
#include "transports/ucx/net.hpp"

namespace flow::ucx {

namespace {

constexpr int64_t kAloneUs = 10'000;  // so long before a listener is destroyed nobody was there

bool is_same(const SocketAddress& one, const SocketAddress& other) {
  return one.port() == other.port() && one.ip() == other.ip();
}

void on_request(ucp_conn_request_h request, void* awaited) {
  static_cast<Awaited*>(awaited)->requests.push_back(request);
}

/// Whether nobody is connected to a socket that listens and not accepted yet: of one that listens,
/// the kernel tells the length of that queue as tcpi_unacked.
bool all_are_accepted(int socket) {
  tcp_info info{};
  socklen_t size = sizeof info;
  return ::getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &size) == 0 && info.tcpi_unacked == 0;
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
  awaited->at = at;
  Status heard = find_socket(*awaited);
  if (heard.ok()) heard = hear_only(awaited->socket, {peer});
  if (heard.ok()) return awaited;
  close(std::move(awaited));
  return heard.error();
}

Status Listeners::find_socket(Awaited& awaited) {
  ucp_listener_attr_t attributes{};
  attributes.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR;
  ucs_status_t status = net_.ucx.ucp_listener_query(awaited.listener, &attributes);
  if (status != UCS_OK)
    return environment_error(
        fmt::format("UCX does not say where it listens: {}", net_.ucx.text(status)));
  awaited.at.storage = attributes.sockaddr;
  auto sockets = listening_sockets();
  if (!sockets.ok()) return sockets.error();
  for (int socket : *sockets) {
    if (is_same(own_end(socket), awaited.at)) awaited.socket = socket;
  }
  if (awaited.socket >= 0) return {};
  return environment_error("a socket of UCX's that listens is not found");
}

Result<ucp_conn_request_h> Listeners::take(Awaited& awaited) {
  FLOW_CHECK(!awaited.requests.empty());
  ucp_conn_request_h request = awaited.requests.front();
  awaited.requests.pop_front();
  ucp_conn_request_attr_t attributes{};
  attributes.field_mask = UCP_CONN_REQUEST_ATTR_FIELD_CLIENT_ADDR;
  ucs_status_t status = net_.ucx.ucp_conn_request_query(request, &attributes);
  if (status == UCS_OK) {
    awaited.let_in.storage = attributes.client_address;
    return request;
  }
  net_.ucx.ucp_listener_reject(awaited.listener, request);
  return environment_error(
      fmt::format("UCX does not say who asks to be let in: {}", net_.ucx.text(status)));
}

void Listeners::close(std::unique_ptr<Awaited> awaited) {
  awaited->is_deaf = awaited->socket >= 0 && hear_nobody(awaited->socket).ok();
  closing_.push_back(std::move(awaited));
}

void Listeners::look(int64_t now_us) {
  if (closing_.empty()) return;
  std::vector<const Awaited*> all_accepted;  // as of before the sockets are listed
  for (const auto& each : closing_) {
    for (; !each->requests.empty(); each->requests.pop_front())
      net_.ucx.ucp_listener_reject(each->listener, each->requests.front());
    bool is_found = each->socket >= 0 || find_socket(*each).ok();
    if (is_found && !each->is_deaf) each->is_deaf = hear_nobody(each->socket).ok();
    if (each->is_deaf && all_are_accepted(each->socket)) all_accepted.push_back(each.get());
  }
  auto sockets = other_tcp_sockets();
  if (!sockets.ok()) return;  // the next look may find them
  std::vector<const Awaited*> visited = hang_up(*sockets);
  auto is_in = [](const std::vector<const Awaited*>& some, const Awaited& one) {
    return std::find(some.begin(), some.end(), &one) != some.end();
  };
  std::erase_if(closing_, [&](const auto& each) {
    bool is_alone = is_in(all_accepted, *each) && !is_in(visited, *each);
    if (!is_alone)
      each->alone_since_us = 0;
    else if (each->alone_since_us == 0)
      each->alone_since_us = now_us;
    bool is_over = is_alone && now_us - each->alone_since_us >= kAloneUs;
    if (is_over) net_.ucx.ucp_listener_destroy(each->listener);
    return is_over;
  });
}

std::vector<const Awaited*> Listeners::hang_up(const std::vector<int>& connected) {
  std::vector<const Awaited*> visited;
  for (int socket : connected) {
    for (const auto& each : closing_) {
      if (hang_up(socket, *each)) visited.push_back(each.get());
    }
  }
  return visited;
}

// Whether it came there and was not let in.
bool Listeners::hang_up(int socket, const Awaited& awaited) {
  if (!is_same(own_end(socket), awaited.at)) return false;
  // UCX's thread may close it meanwhile, and its number be another's: a duplicate stays what it is.
  int same = ::fcntl(socket, F_DUPFD_CLOEXEC, 0);
  if (same < 0) return true;            // the next look may have room for one
  SocketAddress peer = peer_end(same);  // of no family where it has gone
  bool was_let_in = awaited.let_in.storage.ss_family != AF_UNSPEC && is_same(peer, awaited.let_in);
  bool is_visitor = is_same(own_end(same), awaited.at) && !was_let_in;
  if (is_visitor) ::shutdown(same, SHUT_RDWR);  // UCX reads the end of it, and closes it
  ::close(same);
  return is_visitor;
}

}  // namespace flow::ucx
