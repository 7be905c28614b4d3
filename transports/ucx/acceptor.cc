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
#include "transports/ucx/net.hpp"

namespace flow::ucx {

namespace {

constexpr int kBacklog = 256;
constexpr int kEventsAtOnce = 64;
constexpr size_t kReadBytes = 4096;
constexpr int64_t kUsPerMs = 1000;
constexpr const char* kWentAway = "it closed the connection before the link was up";

Error failed(const std::string& what) {
  return environment_error(fmt::format("{}: {}", what, std::strerror(errno)));
}

Error nobody_there(int why) {
  return environment_error(fmt::format("{}. Does it listen there?", std::strerror(why)));
}

/// One that listens there, or -1 with errno.
int listening_socket(const SocketAddress& at) {
  int socket = ::socket(at.address()->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (socket < 0) return -1;
  int yes = 1;  // a restarted head listens where it did
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

Visit::~Visit() { ::close(socket); }

Doors::~Doors() {
  end();
  if (events_ >= 0) ::close(events_);
}

Status Doors::open() {
  events_ = ::epoll_create1(EPOLL_CLOEXEC);
  return events_ >= 0 ? Status() : Status(failed("cannot make an epoll"));
}

Status Doors::watch(int socket, uint64_t id, uint32_t what) {
  epoll_event event{};
  event.events = what;
  event.data.u64 = id;
  bool is_watched = ::epoll_ctl(events_, EPOLL_CTL_ADD, socket, &event) == 0 ||
                    (errno == EEXIST && ::epoll_ctl(events_, EPOLL_CTL_MOD, socket, &event) == 0);
  return is_watched ? Status() : Status(failed("cannot watch a socket"));
}

Result<std::shared_ptr<Door>> Doors::listen(const Address& address, Accept accept) {
  auto at = numeric_socket(address);
  if (!at.ok()) {
    return user_error(
        fmt::format("cannot listen at {}: `{}` is not an address. Give one of this machine's, such "
                    "as 127.0.0.1",
                    address_text(address), address.host));
  }
  if (net_.options.is_loopback_only && !at->is_loopback()) {
    return user_error(fmt::format(
        "cannot listen at {}: only 127.0.0.1 and ::1 may be listened at without a secret",
        address_text(address)));
  }
  auto door = std::make_shared<Door>();
  door->accept = std::move(accept);
  door->socket = listening_socket(*at);
  if (door->socket < 0) {
    return environment_error(fmt::format(
        "cannot listen at {}: {}. Is the port taken, or the address not this machine's?",
        address_text(address), std::strerror(errno)));
  }
  door->address = socket_text(own_end(door->socket).storage);
  doors_.emplace(++last_, door);
  Status watched = watch(door->socket, last_, EPOLLIN);
  if (watched.ok()) return door;
  close(door);
  return watched.error();
}

void Doors::close(std::shared_ptr<Door> door) {
  if (std::exchange(door->is_closed, true)) return;
  ::close(door->socket);
  std::erase_if(doors_, [&](const auto& each) { return each.second == door; });
  std::vector<uint64_t> of_door;
  for (const auto& [id, visit] : visits_) {
    if (visit->door == door) of_door.push_back(id);
  }
  for (uint64_t id : of_door) over(id, {});
}

void Doors::end() {
  while (!doors_.empty()) close(doors_.begin()->second);
  while (!visits_.empty()) over(visits_.begin()->first, {});
}

void Doors::begin(std::shared_ptr<Visit> visit, uint32_t what) {
  visit->began_us = monotonic_us();
  uint64_t id = ++last_;
  int socket = visit->socket;
  visits_.emplace(id, std::move(visit));
  Status watched = watch(socket, id, what);
  if (!watched.ok()) over(id, watched);
}

void Doors::visit(const SocketAddress& address, std::shared_ptr<Channel> channel) {
  if (!channel->is_coming_up()) return;
  int socket =
      ::socket(address.address()->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (socket < 0) return channel->fail(failed("cannot make a socket").message);
  auto visit =
      std::make_shared<Visit>(socket, Talk(Talk::Side::client, net_.options.key, own_ips_told()));
  visit->channel = std::move(channel);
  visit->peer = address;
  send_at_once(socket);
  bool goes = ::connect(socket, address.address(), address.size) == 0 || errno == EINPROGRESS;
  if (!goes) return visit->channel->not_there(nobody_there(errno));
  begin(std::move(visit), EPOLLOUT);
}

std::vector<Ip> Doors::own_ips_told() const {
  return net_.options.is_loopback_only ? std::vector<Ip>() : own_ips();
}

bool Doors::hear() {
  epoll_event events[kEventsAtOnce];
  int count = ::epoll_wait(events_, events, kEventsAtOnce, 0);
  for (int i = 0; i < count; i++) {
    uint64_t id = events[i].data.u64;
    auto door = doors_.find(id);
    if (door != doors_.end())
      answer(std::shared_ptr<Door>(door->second));
    else
      go_on(id, events[i].events);
  }
  return count > 0;
}

void Doors::answer(const std::shared_ptr<Door>& door) {
  for (int i = 0; i < kEventsAtOnce && !door->is_closed && answer_one(door); i++) {
  }
}

bool Doors::answer_one(const std::shared_ptr<Door>& door) {
  int socket = ::accept4(door->socket, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (socket < 0) {
    door->is_full = errno != EAGAIN && errno != EINTR && errno != ECONNABORTED;
    if (door->is_full) ::epoll_ctl(events_, EPOLL_CTL_DEL, door->socket, nullptr);
    return false;
  }
  auto visit =
      std::make_shared<Visit>(socket, Talk(Talk::Side::server, net_.options.key, own_ips_told()));
  visit->door = door;
  visit->peer = peer_end(socket);
  send_at_once(socket);
  make_room(*door);
  begin(std::move(visit), EPOLLIN);
  return true;
}

void Doors::make_room(const Door& door) {
  size_t unproven = 0;
  uint64_t first = 0;
  for (const auto& [id, visit] : visits_) {
    if (visit->door.get() != &door || visit->talk.is_proven()) continue;
    unproven++;
    if (first == 0 || id < first) first = id;
  }
  if (unproven >= kVisitsMax) {
    over(first, user_error(fmt::format("it was forgotten, as {} others have not proven themselves",
                                       kVisitsMax)));
  }
}

void Doors::go_on(uint64_t id, uint32_t what) {
  auto found = visits_.find(id);
  if (found == visits_.end()) return;
  std::shared_ptr<Visit> visit = found->second;
  Status status = go_on(id, *visit, what);
  // Once it is told the rest is UCX's, and the other side hangs up.
  if (!status.ok()) over(id, visit->is_told ? Status() : status);
}

Status Doors::go_on(uint64_t id, Visit& visit, uint32_t what) {
  if (visit.channel && !visit.is_connected) {
    int error = 0;
    socklen_t size = sizeof error;
    ::getsockopt(visit.socket, SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) return nobody_there(error);
    visit.is_connected = true;
    visit.unsent = visit.talk.hello();
    return say(id, visit);
  }
  Status heard = (what & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0 ? hear(visit) : Status();
  Status said = say(id, visit);  // to one that is refused too, who then knows why
  FLOW_TRY(heard);
  FLOW_TRY(said);
  return take_to_ucx(id, visit);
}

Status Doors::hear(Visit& visit) {
  char bytes[kReadBytes];
  while (true) {
    ssize_t got = ::recv(visit.socket, bytes, sizeof bytes, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return {};
    if (got < 0) return failed("the connection broke");
    if (got == 0) return environment_error(kWentAway);
    visit.has_spoken = true;
    FLOW_TRY(visit.talk.take({bytes, static_cast<size_t>(got)}, visit.unsent));
  }
}

Status Doors::say(uint64_t id, Visit& visit) {
  while (!visit.unsent.empty()) {
    ssize_t sent = ::send(visit.socket, visit.unsent.data(), visit.unsent.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && errno != EAGAIN && errno != EWOULDBLOCK) return failed("the connection broke");
    if (sent < 0) break;
    visit.unsent.erase(0, static_cast<size_t>(sent));
  }
  return watch(visit.socket, id, visit.unsent.empty() ? EPOLLIN : EPOLLIN | EPOLLOUT);
}

/// Where both have proven themselves.
Status Doors::take_to_ucx(uint64_t id, Visit& visit) {
  if (!visit.talk.is_proven()) return {};
  if (!std::exchange(visit.is_trusted, true)) FLOW_TRY(trust(visit));
  if (visit.door && !visit.awaited) {
    FLOW_TRY(await(visit));
    return say(id, visit);
  }
  if (visit.channel && visit.talk.port() != 0 && !std::exchange(visit.is_told, true)) {
    SocketAddress place = visit.peer.for_ucx();
    place.set_port(visit.talk.port());
    visit.channel->connect(place);
  }
  return {};
}

Status Doors::trust(const Visit& visit) {
  std::vector<Ip> ips = visit.talk.peer_ips();
  ips.push_back(visit.peer.ip());
  return net_.trust(std::move(ips));
}

Status Doors::await(Visit& visit) {
  auto awaited = listeners_.open(own_end(visit.socket).for_ucx(), visit.peer.for_ucx().ip());
  if (!awaited.ok()) return awaited.error();
  visit.awaited = std::move(*awaited);
  visit.unsent += visit.talk.place(visit.awaited->at.port());
  return {};
}

bool Doors::let_in() {
  std::vector<uint64_t> asked;
  for (const auto& [id, visit] : visits_) {
    if (visit->awaited && !visit->awaited->requests.empty()) asked.push_back(id);
  }
  for (uint64_t id : asked) let_in(id);
  return !asked.empty();
}

void Doors::let_in(uint64_t id) {
  auto found = visits_.find(id);
  if (found == visits_.end()) return;
  auto request = listeners_.take(*found->second->awaited);
  if (!request.ok()) return over(id, request.error());
  std::shared_ptr<Visit> visit = std::move(found->second);
  visits_.erase(found);  // whoever is told may close the door
  auto channel = std::make_shared<Channel>(net_, socket_text(visit->peer.storage));
  net_.add(channel);
  auto handler = visit->door->accept(make_link(net_.shared_from_this(), channel));
  if (!handler) channel->fail("the link was refused here");
  channel->set_handler(std::move(handler));
  channel->accept(visit->awaited->listener, *request);
  listeners_.close(std::move(visit->awaited));
}

void Doors::over(uint64_t id, const Status& why) {
  auto found = visits_.find(id);
  if (found == visits_.end()) return;
  std::shared_ptr<Visit> visit = std::move(found->second);
  visits_.erase(found);
  if (visit->awaited) listeners_.close(std::move(visit->awaited));
  if (why.ok()) return;
  if (visit->channel) return visit->channel->not_there(why.error());
  bool is_told = visit->has_spoken && !visit->door->is_closed && visit->door->on_rejected;
  if (is_told) visit->door->on_rejected(socket_text(visit->peer.storage), why.error().message);
}

bool Doors::look(int64_t now_us) {
  listeners_.look(now_us);
  for (auto& [id, door] : doors_) {
    if (std::exchange(door->is_full, false)) door->is_full = !watch(door->socket, id, EPOLLIN).ok();
  }
  std::vector<uint64_t> late, up;
  for (const auto& [id, visit] : visits_) {
    if (visit->channel && !visit->channel->is_coming_up()) up.push_back(id);
    bool is_late = now_us - visit->began_us > net_.options.deadline_ms * kUsPerMs;
    if (visit->door && is_late) late.push_back(id);  // a channel knows that of itself
  }
  for (uint64_t id : up) over(id, {});
  for (uint64_t id : late) {
    over(id,
         environment_error(fmt::format("it has not answered for {} ms", net_.options.deadline_ms)));
  }
  return listeners_.is_closing();
}

}  // namespace flow::ucx
