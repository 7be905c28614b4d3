#include "transports/ucx/acceptor.hpp"

#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "engine/base/clock.hpp"
#include "transports/ucx/channel.hpp"
#include "transports/ucx/link.hpp"
#include "transports/ucx/ucx_thread.hpp"

namespace flow::ucx {

namespace {

constexpr int kBacklog = 256;
constexpr int kEventsAtOnce = 64;
constexpr size_t kReadBytes = 4096;
constexpr int64_t kUsPerMs = 1000;
constexpr const char* kClosedEarly = "it closed the connection before the link was up";

Error failed(const std::string& what) {
  return environment_error(fmt::format("{}: {}", what, std::strerror(errno)));
}

Error connect_error(int why) {
  return environment_error(fmt::format("{}. Does it listen there?", std::strerror(why)));
}

/// A listening socket, or -1 with errno.
int listening_socket(const SocketAddress& at) {
  int socket = ::socket(at.address()->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (socket < 0) return -1;
  int yes = 1;  // a restarted head listens at the same port
  ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (::bind(socket, at.address(), at.size) == 0 && ::listen(socket, kBacklog) == 0) return socket;
  int why = errno;
  ::close(socket);
  errno = why;
  return -1;
}

void send_at_once(int socket) {
  int yes = 1;
  ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
}

}  // namespace

PendingConnection::~PendingConnection() { ::close(socket); }

Acceptor::~Acceptor() {
  end();
  if (events_ >= 0) ::close(events_);
}

Status Acceptor::open() {
  events_ = ::epoll_create1(EPOLL_CLOEXEC);
  return events_ >= 0 ? Status() : Status(failed("cannot create an epoll"));
}

Status Acceptor::watch(int socket, uint64_t id, uint32_t what) {
  epoll_event event{};
  event.events = what;
  event.data.u64 = id;
  bool is_watched = ::epoll_ctl(events_, EPOLL_CTL_ADD, socket, &event) == 0 ||
                    (errno == EEXIST && ::epoll_ctl(events_, EPOLL_CTL_MOD, socket, &event) == 0);
  return is_watched ? Status() : Status(failed("cannot watch a socket"));
}

Result<std::shared_ptr<ListenSocket>> Acceptor::listen(const Address& address, Accept accept) {
  auto at = numeric_socket(address);
  if (!at.ok()) {
    return user_error(
        fmt::format("cannot listen at {}: `{}` is not an address. Give one of this machine's, such "
                    "as 127.0.0.1",
                    address_text(address), address.host));
  }
  if (ucx_thread_.options.is_loopback_only && !at->is_loopback()) {
    return user_error(fmt::format(
        "cannot listen at {}: only 127.0.0.1 and ::1 may be listened at without a secret",
        address_text(address)));
  }
  auto listen_socket = std::make_shared<ListenSocket>();
  listen_socket->accept = std::move(accept);
  listen_socket->socket = listening_socket(*at);
  if (listen_socket->socket < 0) {
    return environment_error(fmt::format(
        "cannot listen at {}: {}. Is the port taken, or the address not this machine's?",
        address_text(address), std::strerror(errno)));
  }
  listen_socket->address = socket_text(own_end(listen_socket->socket).storage);
  listen_sockets_.emplace(++last_, listen_socket);
  Status watched = watch(listen_socket->socket, last_, EPOLLIN);
  if (watched.ok()) return listen_socket;
  close(listen_socket);
  return watched.error();
}

void Acceptor::close(std::shared_ptr<ListenSocket> listen_socket) {
  if (std::exchange(listen_socket->is_closed, true)) return;
  ::close(listen_socket->socket);
  std::erase_if(listen_sockets_, [&](const auto& each) { return each.second == listen_socket; });
  std::vector<uint64_t> of_socket;
  for (const auto& [id, pending] : pending_) {
    if (pending->listen_socket == listen_socket) of_socket.push_back(id);
  }
  for (uint64_t id : of_socket) finish(id, {});
}

void Acceptor::end() {
  while (!listen_sockets_.empty()) close(listen_sockets_.begin()->second);
  while (!pending_.empty()) finish(pending_.begin()->first, {});
}

void Acceptor::begin(std::shared_ptr<PendingConnection> pending, uint32_t what) {
  pending->began_us = monotonic_us();
  uint64_t id = ++last_;
  int socket = pending->socket;
  pending_.emplace(id, std::move(pending));
  Status watched = watch(socket, id, what);
  if (!watched.ok()) finish(id, watched);
}

void Acceptor::connect(const SocketAddress& address, std::shared_ptr<Channel> channel) {
  if (!channel->is_coming_up()) return;
  int socket =
      ::socket(address.address()->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (socket < 0) return channel->fail(failed("cannot create a socket").message);
  auto pending = std::make_shared<PendingConnection>(
      socket,
      AuthHandshake(AuthHandshake::Side::client, ucx_thread_.options.key, advertised_ips()));
  pending->channel = std::move(channel);
  pending->peer = address;
  send_at_once(socket);
  bool is_started = ::connect(socket, address.address(), address.size) == 0 || errno == EINPROGRESS;
  if (!is_started) return pending->channel->connect_failed(connect_error(errno));
  begin(std::move(pending), EPOLLOUT);
}

std::vector<Ip> Acceptor::advertised_ips() const {
  return ucx_thread_.options.is_loopback_only ? std::vector<Ip>() : own_ips();
}

bool Acceptor::poll_events() {
  epoll_event events[kEventsAtOnce];
  int count = ::epoll_wait(events_, events, kEventsAtOnce, 0);
  for (int i = 0; i < count; i++) {
    uint64_t id = events[i].data.u64;
    auto listen_socket = listen_sockets_.find(id);
    if (listen_socket != listen_sockets_.end())
      accept_all(std::shared_ptr<ListenSocket>(listen_socket->second));
    else
      handle_events(id, events[i].events);
  }
  return count > 0;
}

void Acceptor::accept_all(const std::shared_ptr<ListenSocket>& listen_socket) {
  for (int i = 0; i < kEventsAtOnce && !listen_socket->is_closed && accept_one(listen_socket);
       i++) {
  }
}

bool Acceptor::accept_one(const std::shared_ptr<ListenSocket>& listen_socket) {
  int socket = ::accept4(listen_socket->socket, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (socket < 0) {
    listen_socket->is_full = errno != EAGAIN && errno != EINTR && errno != ECONNABORTED;
    if (listen_socket->is_full) ::epoll_ctl(events_, EPOLL_CTL_DEL, listen_socket->socket, nullptr);
    return false;
  }
  auto pending = std::make_shared<PendingConnection>(
      socket,
      AuthHandshake(AuthHandshake::Side::server, ucx_thread_.options.key, advertised_ips()));
  pending->listen_socket = listen_socket;
  pending->peer = peer_end(socket);
  send_at_once(socket);
  evict_oldest_unproven(*listen_socket);
  begin(std::move(pending), EPOLLIN);
  return true;
}

void Acceptor::evict_oldest_unproven(const ListenSocket& listen_socket) {
  size_t unproven = 0;
  uint64_t first = 0;
  for (const auto& [id, pending] : pending_) {
    if (pending->listen_socket.get() != &listen_socket || pending->handshake.is_proven()) continue;
    unproven++;
    if (first == 0 || id < first) first = id;
  }
  if (unproven >= kPendingMax) {
    finish(first,
           user_error(fmt::format(
               "it was dropped, because {} other connections are not authenticated", kPendingMax)));
  }
}

void Acceptor::handle_events(uint64_t id, uint32_t what) {
  auto found = pending_.find(id);
  if (found == pending_.end()) return;
  std::shared_ptr<PendingConnection> pending = found->second;
  Status status = handle_events(id, *pending, what);
  // Once the port is sent, the rest is UCX's, and the peer closes the connection.
  if (!status.ok()) finish(id, pending->has_ucx_port ? Status() : status);
}

Status Acceptor::handle_events(uint64_t id, PendingConnection& pending, uint32_t what) {
  if (pending.channel && !pending.is_connected) {
    int error = 0;
    socklen_t size = sizeof error;
    ::getsockopt(pending.socket, SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) return connect_error(error);
    pending.is_connected = true;
    pending.unsent = pending.handshake.hello();
    return send(id, pending);
  }
  Status received = (what & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0 ? receive(pending) : Status();
  Status sent = send(id, pending);  // also to a rejected peer, which then knows why
  FLOW_TRY(received);
  FLOW_TRY(sent);
  return hand_to_ucx(id, pending);
}

Status Acceptor::receive(PendingConnection& pending) {
  char bytes[kReadBytes];
  while (true) {
    ssize_t got = ::recv(pending.socket, bytes, sizeof bytes, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return {};
    if (got < 0) return failed("the connection broke");
    if (got == 0) return environment_error(kClosedEarly);
    pending.has_sent_data = true;
    FLOW_TRY(pending.handshake.receive({bytes, static_cast<size_t>(got)}, pending.unsent));
  }
}

Status Acceptor::send(uint64_t id, PendingConnection& pending) {
  while (!pending.unsent.empty()) {
    ssize_t sent =
        ::send(pending.socket, pending.unsent.data(), pending.unsent.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && errno != EAGAIN && errno != EWOULDBLOCK) return failed("the connection broke");
    if (sent < 0) break;
    pending.unsent.erase(0, static_cast<size_t>(sent));
  }
  return watch(pending.socket, id, pending.unsent.empty() ? EPOLLIN : EPOLLIN | EPOLLOUT);
}

/// When both sides are proven.
Status Acceptor::hand_to_ucx(uint64_t id, PendingConnection& pending) {
  if (!pending.handshake.is_proven()) return {};
  if (!std::exchange(pending.is_trusted, true)) FLOW_TRY(trust(pending));
  if (pending.listen_socket && !pending.peer_listener) {
    FLOW_TRY(open_listener(pending));
    return send(id, pending);
  }
  if (pending.channel && pending.handshake.port() != 0 &&
      !std::exchange(pending.has_ucx_port, true)) {
    SocketAddress ucx_address = pending.peer.for_ucx();
    ucx_address.set_port(pending.handshake.port());
    pending.channel->connect(ucx_address);
  }
  return {};
}

Status Acceptor::trust(const PendingConnection& pending) {
  std::vector<Ip> ips = pending.handshake.peer_ips();
  ips.push_back(pending.peer.ip());
  return ucx_thread_.trust(std::move(ips));
}

Status Acceptor::open_listener(PendingConnection& pending) {
  auto peer_listener =
      listeners_.open(own_end(pending.socket).for_ucx(), pending.peer.for_ucx().ip());
  if (!peer_listener.ok()) return peer_listener.error();
  pending.peer_listener = std::move(*peer_listener);
  pending.unsent += pending.handshake.port_message(pending.peer_listener->at.port());
  return {};
}

bool Acceptor::accept_requests() {
  std::vector<uint64_t> requested;
  for (const auto& [id, pending] : pending_) {
    if (pending->peer_listener && !pending->peer_listener->requests.empty())
      requested.push_back(id);
  }
  for (uint64_t id : requested) accept_request(id);
  return !requested.empty();
}

void Acceptor::accept_request(uint64_t id) {
  auto found = pending_.find(id);
  if (found == pending_.end()) return;
  auto request = listeners_.take(*found->second->peer_listener);
  if (!request.ok()) return finish(id, request.error());
  std::shared_ptr<PendingConnection> pending = std::move(found->second);
  pending_.erase(found);  // the callback may end the acceptor
  auto channel = std::make_shared<Channel>(ucx_thread_, socket_text(pending->peer.storage));
  ucx_thread_.add(channel);
  auto handler = pending->listen_socket->accept(make_link(ucx_thread_.shared_from_this(), channel));
  if (!handler) channel->fail("the link was rejected here");
  channel->set_handler(std::move(handler));
  channel->accept(pending->peer_listener->listener, *request);
  listeners_.close(std::move(pending->peer_listener));
}

void Acceptor::finish(uint64_t id, const Status& why) {
  auto found = pending_.find(id);
  if (found == pending_.end()) return;
  std::shared_ptr<PendingConnection> pending = std::move(found->second);
  pending_.erase(found);
  if (pending->peer_listener) listeners_.close(std::move(pending->peer_listener));
  if (why.ok()) return;
  if (pending->channel) return pending->channel->connect_failed(why.error());
  bool must_report = pending->has_sent_data && !pending->listen_socket->is_closed &&
                     pending->listen_socket->on_rejected;
  if (must_report)
    pending->listen_socket->on_rejected(socket_text(pending->peer.storage), why.error().message);
}

bool Acceptor::check_deadlines(int64_t now_us) {
  listeners_.destroy_unused(now_us);
  for (auto& [id, listen_socket] : listen_sockets_) {
    if (std::exchange(listen_socket->is_full, false))
      listen_socket->is_full = !watch(listen_socket->socket, id, EPOLLIN).ok();
  }
  std::vector<uint64_t> late, up;
  for (const auto& [id, pending] : pending_) {
    if (pending->channel && !pending->channel->is_coming_up()) up.push_back(id);
    bool is_late = now_us - pending->began_us > ucx_thread_.options.deadline_ms * kUsPerMs;
    if (pending->listen_socket && is_late) late.push_back(id);  // a channel checks its own deadline
  }
  for (uint64_t id : up) finish(id, {});
  for (uint64_t id : late) {
    finish(id, environment_error(
                   fmt::format("it has not answered for {} ms", ucx_thread_.options.deadline_ms)));
  }
  return listeners_.is_closing();
}

}  // namespace flow::ucx
